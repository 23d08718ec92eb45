"""What every room may use, and what knows nothing of any: files, and who works in a folder."""
