"""What a device sends first, and how a leader merges it. Pure: no clock, no I/O; chance is passed in as `rng`."""
