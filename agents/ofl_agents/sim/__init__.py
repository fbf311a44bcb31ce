"""`ofl sim`: a federation on one machine, its display, summary and audit."""
