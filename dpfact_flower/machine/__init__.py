"""Files, threads, compiled code, logs: what lies underneath and knows nothing of the subject."""
