"""Noisy tables: tables with additive noise."""
