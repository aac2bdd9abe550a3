"""Tables with additive noise."""
