"""Loops in vector instructions: LLVM is written here alone."""
