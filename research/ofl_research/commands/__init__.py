"""The commands of `ofl` that this distribution adds: bench and reproduce."""
