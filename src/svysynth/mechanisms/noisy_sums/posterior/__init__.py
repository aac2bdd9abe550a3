"""Posteriors that know the noise: they see a measurement and public facts, and nothing confidential."""
