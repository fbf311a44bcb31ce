"""The experiments as declarations: which cells, and how their results become a section of the report."""
