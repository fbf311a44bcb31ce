"""What computes a cell: modules with `run(cell, data, tell)` that return plain JSON values."""
