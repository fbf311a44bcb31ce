"""The leader machine and its parts: merging, journal, downloads, contribution."""
