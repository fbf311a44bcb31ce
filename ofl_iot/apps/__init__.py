"""Anyone's model and data: what a user writes, how it is loaded, the process it runs in. Nothing here needs torch."""
