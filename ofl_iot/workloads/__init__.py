"""What a device trains: a model, its data and its loss, as a flat vector of parameters."""
