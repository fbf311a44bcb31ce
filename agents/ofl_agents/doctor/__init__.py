"""What `ofl doctor` examines, a module for each part: this machine, the identity, the broker, the stored state."""
