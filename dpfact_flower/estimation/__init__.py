"""The server's estimates, computed from noisy statistics at no privacy cost."""
