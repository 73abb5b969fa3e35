"""From what the model answered to a complete order and a score, with what went wrong as data."""
