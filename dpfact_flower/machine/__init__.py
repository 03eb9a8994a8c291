"""Low-level modules for files, memory, threads, processes, compiled code and logs."""
