"""The spec: one page of TOML that says everything about a run, with a file for each section."""
