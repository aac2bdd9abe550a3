"""Tables and their standard errors, the same for real and synthetic data."""
