"""`dpfact keys`: a hospital's long-term key for secure sums."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from dpfact_flower.cli.options import console
from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import check_name

# Imports are inside the commands, because `dpfact --help` must not wait for them.
# ruff: noqa: PLC0415

keys_app = typer.Typer(
    help="Secure sums: make a hospital's key, show its public line.", no_args_is_help=True
)


@keys_app.command("make")
def make(
    key: Path,
    site: Annotated[str, typer.Option(help="This site's name, as the centre knows it.")],
) -> None:
    """Make a long-term key in the file KEY, and print the line that the other sites need.

    Send that line to every other site, not through the centre, and compare the fingerprint by
    telephone. Keep KEY secret: the key is never sent.
    """
    from dpfact_flower.machine.files import create_once
    from dpfact_flower.privacy.secure_sum.keys import new_signing_key

    check_name("--site", site)
    path = key.expanduser().absolute()
    if path.exists():
        raise SettingsError(
            f"{path}: exists; a key is never replaced, because others have pinned it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    create_once(path, new_signing_key())
    _say(path, site)
    console.print(
        "Put this line and those of all other sites into one file. In the site's settings, set "
        f"secure-peers to that file, and secure-key to {path}.", soft_wrap=True, markup=False,
    )  # fmt: skip


@keys_app.command("show")
def show(
    file: Path,
    site: Annotated[str, typer.Option(help="This site's name, if FILE is its key.")] = "",
) -> None:
    """Show the public line of a key, or the names and fingerprints of a peers file."""
    from dpfact_flower.privacy.secure_sum.keys import fingerprint
    from dpfact_flower.site.keyring import read_peers

    path = file.expanduser().absolute()
    if site:
        _say(path, site)
        return
    for name, public in read_peers(path).items():
        console.print(f"{escape(name)}: {fingerprint(public)}", soft_wrap=True)


def _say(path: Path, site: str) -> None:
    from dpfact_flower.privacy.secure_sum.keys import fingerprint, public_text, read_public_key
    from dpfact_flower.site.keyring import read_key_file

    text = public_text(read_key_file(path))
    console.print(f"{site} {text}", markup=False, soft_wrap=True)
    console.print(f"fingerprint: {fingerprint(read_public_key(text))}", soft_wrap=True)
