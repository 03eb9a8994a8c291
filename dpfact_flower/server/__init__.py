"""The server's work without Flower: rounds, quorum, checkpoints, and updates from replies."""
