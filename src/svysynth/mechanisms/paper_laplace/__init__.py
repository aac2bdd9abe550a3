"""The paper's Laplace noise, for comparison."""
