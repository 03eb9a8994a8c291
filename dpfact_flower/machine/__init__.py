"""Files, threads, compiled code and logs, without knowledge of tensors or privacy."""
