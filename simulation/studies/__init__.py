"""Studies of what privacy costs, of what time tells, and of where the paper's bound breaks."""
