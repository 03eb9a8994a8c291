"""The server's estimates from noisy statistics, all of them post-processing of releases."""
