"""The paper's studies and the data they start from."""
