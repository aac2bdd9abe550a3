"""What is measured with noise, and what it costs: the one part of noisy sums that sees confidential values."""
