"""Mechanisms: how a release is made, and what it promises. `members.py` lists them, `base.py` says what one is."""
