"""The command line as `sphinx_click` reads it."""

import typer

from dpfact_flower.cli import app

dpfact = typer.main.get_command(app)
