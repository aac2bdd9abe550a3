"""What a model is, the models of the paper, and how draws are made."""
