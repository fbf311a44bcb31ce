"""`ofl model`: where a model is found and what it is written to."""
