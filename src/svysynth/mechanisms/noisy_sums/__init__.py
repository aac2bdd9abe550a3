"""FBS and FBP from noisy sums: a global guarantee that depends on no sampler (docs/method.md)."""
