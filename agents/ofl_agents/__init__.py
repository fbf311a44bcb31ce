"""Programs on devices and on the coordinator's machine."""
