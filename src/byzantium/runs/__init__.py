"""Training as data: jobs, runs, sweeps of them, and their results on disk."""
