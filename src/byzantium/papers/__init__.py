"""Tables and figures of papers, as data, and ours beside the published numbers."""
