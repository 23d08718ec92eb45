"""A federation that survives its clients: handwritten digits, one part a client."""
