"""The server's estimates from noisy statistics. All estimation is post-processing."""
