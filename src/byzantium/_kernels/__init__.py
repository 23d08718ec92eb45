"""Private: how the passes over the vectors run, in torch and as compiled kernels."""
