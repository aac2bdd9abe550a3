"""What is promised and what it costs: guarantees, the ledger, and releases that cannot be made without a charge."""
