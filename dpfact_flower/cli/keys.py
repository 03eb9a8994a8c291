"""`dpfact keys`: a hospital's long-term key for secure sums."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from dpfact_flower.cli.options import say
from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import check_name

keys_app = Typer(
    name="keys",
    help="Secure sums: make a hospital's key, show its public line.",
    no_args_is_help=True,
)


@keys_app.command()
def make(
    key: Path,
    site: Annotated[str, Option(help="This site's name, as the centre knows it.")],
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
    _show_key(path, site)
    say(
        "Put this line and those of all other sites into one file. In the site's settings, set "
        f"secure-peers to that file, and secure-key to {path}."
    )


@keys_app.command()
def show(
    file: Path,
    site: Annotated[str, Option(help="This site's name, if FILE is its key.")] = "",
) -> None:
    """Show the public line of a key, or the names and fingerprints of a peers file."""
    from dpfact_flower.privacy.secure_sum.keys import fingerprint
    from dpfact_flower.site.keyring import read_peers

    path = file.expanduser().absolute()
    if site:
        _show_key(path, site)
        return
    for name, public in read_peers(path).items():
        say(f"{name}: {fingerprint(public)}")


def _show_key(path: Path, site: str) -> None:
    from dpfact_flower.privacy.secure_sum.keys import fingerprint, public_text, read_public_key
    from dpfact_flower.site.keyring import read_key_file

    text = public_text(read_key_file(path))
    say(f"{site} {text}\nfingerprint: {fingerprint(read_public_key(text))}")
