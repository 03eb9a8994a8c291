"""Files, threads, compiled code and logs. No module here depends on tensors or privacy."""
