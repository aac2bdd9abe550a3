"""Mechanisms: how a release is made, and what it promises. `registry.py` lists them, `base.py` says what one is."""
