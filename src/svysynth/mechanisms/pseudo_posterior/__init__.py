"""Pseudo posterior: the paper's mechanism, with record bounds, weights α, and draws that are calibrated to ε."""
