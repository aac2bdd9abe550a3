"""The foundations of all other code: the spec, errors, random numbers, and how records are processed."""
