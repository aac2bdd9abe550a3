"""The paper's mechanism: record bounds, weights α, and draws that are calibrated to ε."""
