"""Loops in vector instructions; the only modules that emit LLVM code."""
