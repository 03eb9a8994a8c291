"""The `dpfact` command."""

from dpfact_flower.cli.main import app, main

__all__ = ["app", "main"]
