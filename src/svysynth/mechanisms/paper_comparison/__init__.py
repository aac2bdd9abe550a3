"""Paper Laplace: the paper's Laplace noise, for comparison."""
