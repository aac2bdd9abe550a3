"""A survey: files, roles of columns, the design, in memory and on disk."""
