"""`ofl new`: a project to start from."""
