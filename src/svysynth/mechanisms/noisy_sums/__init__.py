"""Noisy sums: FBS and FBP from sums with noise, with a global guarantee that depends on no sampler (docs/method.md)."""
