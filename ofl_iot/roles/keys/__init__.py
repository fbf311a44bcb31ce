"""Distributed key generation: the holder of a device's keys, its participant, the coordinator's ceremony."""
