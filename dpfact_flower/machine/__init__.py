"""Modules for files, threads, compiled code and logs. None depends on tensors or privacy."""
