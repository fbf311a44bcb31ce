"""Who is who: certificates of a federation's own authority, the sealing keys they vouch for, tokens to get one.

Nothing here reads a file, a clock or the network: time is a number of seconds since 1970, passed in.
"""
