"""Studies of the utility of mechanisms, and attacks on their privacy."""
