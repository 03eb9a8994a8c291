"""Repeat the paper's evaluation with one command: ``python -m simulation.paper``; see `__main__`.

Data flows one way: `plan` (what to run) -> `jobs` (one fit, one file) -> `systems` (how) -> the
experiments `convergence`, `traffic`, `prediction`, `norms`, `epsilon`, `phenotypes` (tables and
figures) -> `page` (docs/evaluation.md).
"""
