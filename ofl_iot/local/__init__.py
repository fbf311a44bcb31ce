"""A party's local socket: how programs on the same machine ask a running party without stopping it."""
