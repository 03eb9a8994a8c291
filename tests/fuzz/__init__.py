"""Damaged files and hostile requests, by the thousand: own errors only, and nothing of a patient.

``python -m tests.fuzz --requests 100000 --files 10000 --seed 1`` prints what it met; the tests
beside it try a short sample.
"""
