"""What the server estimates from noisy statistics: all of it post-processing of releases."""
