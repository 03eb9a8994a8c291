"""Files of a deployment, written into one folder per side: keys, secrets, settings and units.

Only the steps in ``install.sh``, which the administrator should read first, need root. ``start.sh``
starts the units' commands as the current user, to try a deployment on one machine.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

import tomli_w

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.credentials import new_authority, new_node_key, new_server
from dpfact_flower.machine.files import create_once, private_folder
from dpfact_flower.settings import Scalar

_TEMPLATES = Path(__file__).parent / "templates"
_START = """\
# To try it without root: starts what the units start, as whoever types it. Ctrl-C ends it.
trap 'kill $started' EXIT
trap exit INT TERM
"""


def write_centre(folder: Path, name: str, port: int) -> None:
    """Write a centre's authority, certificate, unit, proxy and connection.

    `name` is a DNS name or address. The SuperLink listens behind the proxy, at 127.0.0.1:`port`.
    """
    _new(folder, "ca.key")
    key, certificate = new_authority()
    create_once(folder / "ca.key", key)
    (folder / "ca.crt").write_bytes(certificate)
    renew_centre(folder, name)
    for each in ("flwr", "runs", "codes"):
        private_folder(folder / each)
    values = {"folder": folder, "name": name, "port": port}
    _fill(folder / "flwr" / "config.toml", "config.toml", values)
    _fill(folder / "dpfact-proxy.conf", "dpfact-proxy.conf", values)
    _fill(folder / "install.sh", "install-centre.sh", values)
    _fill(folder / "compose.yaml", "centre.compose.yaml", values)
    _units(folder, ("dpfact-centre.service",), values)


def renew_centre(folder: Path, name: str) -> None:
    """Write a new key and certificate of the centre's server, signed by the centre's authority."""
    _check(name)
    key, certificate = new_server(name, (folder / "ca.key").read_bytes())
    (folder / "server.key").unlink(missing_ok=True)
    create_once(folder / "server.key", key)
    (folder / "server.pem").write_bytes(certificate)


def write_site(
    folder: Path,
    settings: Mapping[str, Scalar],
    *,
    centre: str,
    authority: bytes,
    data: Path,
    port: int,
) -> bytes:
    """Write a hospital's key, secret, settings, data and units. Return the key's public line.

    `centre` is a name with a port, and `authority` is a PEM certificate. The `data` file is copied,
    because the copy needs an owner of its own. The SuperNode listens at 127.0.0.1:`port`.
    """
    name = str(settings["site"])
    _check(centre)
    _new(folder, "node")
    node, site = folder / "node", folder / "site"
    for each in (node, site, site / "state"):
        private_folder(each)
    private, public = new_node_key(name)
    secret = os.urandom(32)
    create_once(node / name, private)
    create_once(node / "ca.crt", authority)
    for each in (node, site):
        create_once(each / "secret", secret)
    create_once(site / f"{name}.npz", data.read_bytes())
    paths = {"data-path": str(site / f"{name}.npz"), "state-dir": str(site / "state")}
    text = tomli_w.dumps({"site": name, **paths, **settings})
    create_once(site / f"{name}.toml", text.encode())
    (folder / f"{name}.pub").write_bytes(public)
    values = {"folder": folder, "name": name, "port": port, "centre": centre}
    _fill(folder / "install.sh", "install-site.sh", values)
    _fill(folder / "compose.yaml", "hospital.compose.yaml", values)
    _units(folder, ("dpfact-node.service", "dpfact-site.service"), values)
    return public


def _check(text: str) -> None:
    """Refuse a text that needs quotes in a unit, a shell or an nginx configuration."""
    if not re.fullmatch(r"[A-Za-z0-9/._:-]+", text):
        raise SettingsError(f"{text!r}: use letters, digits and / . _ - : alone")


def _new(folder: Path, sign: str) -> None:
    """Make the folder, which others may enter. Refuse a folder with another installation."""
    _check(str(folder))
    if (folder / sign).exists():
        raise SettingsError(
            f"--folder: {folder} is set up already; its keys and ledger are never replaced. Name "
            "another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def _fill(path: Path, template: str, values: Mapping[str, object]) -> str:
    text = Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(
        values, bin=Path(sys.executable).parent
    )
    path.write_text(text, encoding="utf-8")
    return text


def _units(folder: Path, names: tuple[str, ...], values: Mapping[str, object]) -> None:
    """Write units, and a script that starts their commands."""
    script = _START
    for name in names:
        text = _fill(folder / name, name, values).replace("\\\n", " ")
        entries = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        command = f'env {entries["Environment"]} {entries["ExecStart"]} &\nstarted="$started $!"\n'
        script += command.replace(" --node-user dpfact-node", "")
    (folder / "start.sh").write_text(f"{script}wait\n", encoding="utf-8")
