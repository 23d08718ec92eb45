"""A federation that tolerates Byzantine clients: handwritten digits, one part per client."""
