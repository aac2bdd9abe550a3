"""What everything else stands on: the spec, errors, randomness, and how records are gone through."""
