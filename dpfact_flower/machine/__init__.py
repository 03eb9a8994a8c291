"""Files, threads, compiled code, logs: foundations without knowledge of the subject."""
