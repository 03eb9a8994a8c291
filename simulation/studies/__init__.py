"""Studies of what privacy costs, and of where the paper's bound breaks."""
