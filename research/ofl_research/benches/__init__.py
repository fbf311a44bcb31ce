"""What `ofl bench` measures."""
