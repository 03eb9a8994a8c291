"""Studies of the cost of privacy, of reply times, and of the paper's bound."""
