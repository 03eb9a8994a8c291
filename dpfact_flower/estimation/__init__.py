"""The server's estimates from noisy statistics, computed at no privacy cost."""
