"""Trained models outside a federation: copies of them, the files they are written to, how two of them differ."""
