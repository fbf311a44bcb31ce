"""What an observer knows of a fleet, as one value: its types, its words, its renderings in a terminal."""
