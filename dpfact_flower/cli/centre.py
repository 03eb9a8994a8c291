"""`dpfact centre`: set up a coordinating centre, and admit hospitals to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from dpfact_flower.cli.options import HOME, Home, Port, say
from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import check_name

centre_app = typer.Typer(
    name="centre", help="At the centre: set it up, admit hospitals.", no_args_is_help=True
)


@centre_app.command("init")
def centre_init(
    name: Annotated[str, Argument()],
    folder: Home = HOME,
    port: Port = 9190,
    renew: Annotated[
        bool, Option("--renew", help="Only make a new certificate, which lasts two years.")
    ] = False,
) -> None:
    """Write a centre's files: certificates, systemd unit, proxy, connection.

    NAME is the DNS name (or address) under which hospitals reach the centre.
    """
    from dpfact_flower.machine.credentials import read_certificate
    from dpfact_flower.privacy.secure_sum.keys import fingerprint
    from dpfact_flower.runtime.installation import renew_centre, write_centre

    folder = folder.expanduser().absolute()
    if renew:
        renew_centre(folder, name)
        say(f"Restart dpfact-centre and the proxy to use the new {folder}/server.pem.")
        return
    write_centre(folder, name, port)
    authority = fingerprint(read_certificate((folder / "ca.crt").read_bytes()))
    say(
        f"Written to {folder}.\n"
        f"1. Start it. Read {folder}/install.sh, then: sudo sh {folder}/install.sh\n"
        f"   To try it without root: sh {folder}/start.sh\n"
        f"2. Move {folder}/ca.key to a safe. You need it again to renew the certificate.\n"
        f"3. Give {folder}/ca.crt to each hospital, and read them its fingerprint by telephone:\n"
        f"   {authority}\n"
        f"4. Each hospital sends a .pub file: dpfact centre admit NAME.pub --folder {folder}"
    )


@centre_app.command("admit")
def centre_admit(
    public_key: Annotated[Path, Argument(metavar="NAME.pub")],
    folder: Home = HOME,
    fingerprint: Annotated[
        str, Option(help="What the hospital read to you; without it, you are asked.")
    ] = "",
) -> None:
    """Register a hospital's key under its name, after a comparison by telephone.

    NAME.pub is the file that dpfact site init wrote. The file must be named after the hospital.
    Admission ties that name to the key. The centre must be running.
    """
    from dpfact_flower.machine.credentials import read_node_key
    from dpfact_flower.privacy.secure_sum import keys
    from dpfact_flower.runtime.connection import Connection

    path = public_key.expanduser().absolute()
    check_name("NAME", path.stem)
    found = keys.fingerprint(read_node_key(path.read_bytes()))
    if not fingerprint:
        typer.confirm(f"{path.stem}: {found}\nDid the hospital read the same to you?", abort=True)
    elif fingerprint.split() != found.split():
        raise SettingsError(
            f"--fingerprint: the key in {path} has {found}; nothing was registered. Ask the "
            "hospital for its file again"
        )
    node = Connection.of(str(folder.expanduser())).register(path, path.stem)
    say(f"{path.stem} is admitted, as node {node}. Its SuperNode comes online within a minute.")
