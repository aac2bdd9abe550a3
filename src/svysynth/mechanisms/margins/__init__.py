"""Margins: noisy margins of answers in bands, a graphical model fitted to them, and synthetic files."""
