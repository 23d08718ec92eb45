"""A federation that trains LoRA adapters, one of them poisoned."""
