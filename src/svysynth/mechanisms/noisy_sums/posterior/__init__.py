"""Posteriors that account for the noise: they use a measurement and public facts, and nothing confidential."""
