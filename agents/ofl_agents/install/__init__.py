"""`ofl install`: a party as a systemd service."""
