"""The models of outcome and weight: a family of interchangeable parts, all of the kind described in `base.py`."""
