"""Evaluate a finished run's result, and present the result in reports."""
