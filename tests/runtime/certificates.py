"""Certificates and SuperNode keys for tests."""

from pathlib import Path
from typing import NamedTuple

from dpfact_flower.runtime.installation import new_authority, new_node_key, new_server


class Certificates(NamedTuple):
    """PEM files of a SuperLink with TLS, and of its certificate authority."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(folder: Path, name: str) -> Certificates:
    """Make an authority and a server certificate for 127.0.0.1 in a new folder of that name."""
    own = folder / name
    own.mkdir()
    files = Certificates(own / "ca.crt", own / "server.pem", own / "server.key")
    signing, authority = new_authority()
    key, certificate = new_server("127.0.0.1", signing)
    for path, content in zip(files, (authority, certificate, key), strict=True):
        path.write_bytes(content)
    return files


def make_key(folder: Path, site: str) -> Path:
    """Make a SuperNode's key: `site` is private, and `site.pub` is for the centre."""
    private, public = new_node_key(site)
    (folder / site).write_bytes(private)
    (folder / f"{site}.pub").write_bytes(public)
    return folder / site
