"""A folder that holds results already is written over when that is asked for, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpfact_flower.errors import SettingsError

Force = Annotated[bool, typer.Option("--force", help="Write over what the folder holds already.")]


def refuse_used(folder: Path, file: str, what: str, *, force: bool) -> bool:
    """Whether a folder holds a finished result; refused unless `force`.

    Parameters
    ----------
    folder : Path
    file : str
        Name of the file that is written last.
    what : str
        What the result is, for the error.
    force : bool

    Raises
    ------
    SettingsError
        Naming the folder, and the way out.
    """
    used = (folder / file).exists()
    if used and not force:
        raise SettingsError(
            f"--out: {folder} holds {what} already; name another folder, or replace it with --force"
        )
    return used
