"""Clusters of Ray: the connection to one, its nodes, and the merging of checkpoints there."""
