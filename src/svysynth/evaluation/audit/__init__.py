"""Audits that try to refute every privacy claim."""
