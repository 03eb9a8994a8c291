"""Loops in vector instructions. Only these modules emit LLVM code."""
