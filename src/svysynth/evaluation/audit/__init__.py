"""Audits that try to break every claim."""
