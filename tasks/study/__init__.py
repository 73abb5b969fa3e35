"""Point-wise against list-wise, measured; and all strategies against each other, simulated."""
