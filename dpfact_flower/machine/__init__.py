"""Modules for files, threads, compiled code and logs, independent of tensors and privacy."""
