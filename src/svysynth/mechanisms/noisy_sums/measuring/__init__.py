"""What is measured with noise, and what it costs: the only part of noisy sums that uses confidential values."""
