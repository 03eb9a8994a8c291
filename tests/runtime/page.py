"""A deployment as in docs/how-to/deploy.md, made by the package's commands, for tests."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from dpfact_flower.runtime import installation
from dpfact_flower.runtime.installation import write_centre
from dpfact_flower.runtime.superlink import Connection, SuperLink, free_port, tool
from dpfact_flower.runtime.supervisor import supervised
from tests.commands import dpfact
from tests.patience import await_that

TEMPLATES = Path(installation.__file__).with_name("templates")
UIDS = (61501, 61502)
"""Ids in place of a hospital's two users. Files and processes only need a number."""


def written(name: str) -> str:
    """Return a deployment's file as the commands write it into the page's folder."""
    return Template((TEMPLATES / name).read_text()).substitute(
        folder="/srv/dpfact", bin="/opt/dpfact/bin", name="north", port=9200,
        centre="centre.example:443", hardened=installation.HARDENED,
    )  # fmt: skip


@dataclass(frozen=True)
class Users:
    """A hospital's two users, who are the same user unless the tests run as root."""

    node: int
    site: int

    @property
    def two(self) -> bool:
        return self.node != self.site


def page_users() -> Users:
    """Return two users if this process can switch to users who can read the tested code."""
    if os.geteuid() != 0:
        return Users(os.geteuid(), os.geteuid())
    command = [sys.executable, "-c", "import os, dpfact_flower; open(os.devnull, 'w')"]
    for uid in UIDS:
        try:
            subprocess.run(
                command, user=uid, group=uid, extra_groups=[], check=True, capture_output=True
            )
        except (OSError, subprocess.CalledProcessError):
            return Users(0, 0)
    return Users(*UIDS)


@dataclass(frozen=True)
class Hospital:
    """A hospital with its own folder in place of /srv/dpfact, and a free port for its SuperNode."""

    name: str
    folder: Path
    users: Users
    address: str
    port: int = field(default_factory=free_port)

    @property
    def config(self) -> Path:
        return self.folder / "site" / f"{self.name}.toml"

    @property
    def key(self) -> Path:
        return self.folder / "node" / self.name

    def state(self, study: str = "") -> Path:
        """Return the site's state folder, or its separate state folder for a study."""
        return self.folder / "site" / "state" / study / self.name

    @property
    def check(self) -> list[str]:
        words = ["site", "check", "--config", str(self.config), "--key", str(self.key)]
        return [tool("dpfact"), *words]

    def prepare(self, authority: Path, data: Path) -> None:
        """Set up the hospital by its command, and give each part to its user as install.sh does.

        `reply-after` is off, because a busy machine would often be late.
        """
        dpfact(
            "site", "init", self.name, "--centre", self.address, "--ca", authority, "--data", data,
            "--max-epsilon", 4, "--folder", self.folder, "--port", self.port,
            "-s", "reply-after=0.0",
        )  # fmt: skip
        lines = (self.folder / "install.sh").read_text().splitlines()
        own = "\n".join(line for line in lines if line.startswith(("chmod", "chown")))
        for name, uid in (("dpfact-node", self.users.node), ("dpfact-site", self.users.site)):
            own = own.replace(f"-R {name} ", f"-R {uid} ")
        subprocess.run(["sh", "-ec", own], check=True, capture_output=True)

    def service(self, name: str, more: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
        """Return the command of a systemd unit, and the options with which systemd starts it."""
        uid = {"dpfact-node": self.users.node, "dpfact-site": self.users.site}[name]
        other = {"user": uid, "group": uid, "extra_groups": []} if self.users.two else {}
        text = (self.folder / f"{name}.service").read_text()
        text = text.replace("--node-user dpfact-node", f"--node-user {self.users.node}")
        command, environment = unit_of(text, more)
        return command, {"env": environment, "cwd": "/", **other}

    @contextmanager
    def unit(self, name: str, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a systemd unit of the page as systemd would. Its log is NAME.log."""
        command, options = self.service(name, more)
        with (
            (self.folder / f"{name}.log").open("wb") as log,
            supervised(command, stdout=log, stderr=log, **options) as process,
        ):
            yield process

    def log(self, unit: str) -> str:
        return (self.folder / f"{unit}.log").read_text()


def unit_of(text: str, more: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment of a systemd unit."""
    entries = dict(re.findall(r"^(\w+)=(.*)$", text.replace("\\\n", " "), re.MULTILINE))
    own = dict(word.split("=", 1) for word in entries["Environment"].split())
    return shlex.split(entries["ExecStart"]), {"PATH": "/usr/bin:/bin", **more, **own}


def centre_command(folder: Path) -> list[str]:
    """Return the command with which a centre's unit starts its SuperLink."""
    return unit_of((folder / "dpfact-centre.service").read_text(), {})[0]


@contextmanager
def centre(folder: Path) -> Iterator[SuperLink]:
    """Start a SuperLink in `folder`/tls. Its log is in `folder`."""
    port, tls, log = free_port(), folder / "tls", folder / "superlink.log"
    write_centre(tls, "127.0.0.1", port)
    link = Connection.of(str(tls))
    command = centre_command(tls)
    with (
        log.open("wb") as file,
        supervised(command, cwd=tls, env=link.environment, stdout=file, stderr=file) as process,
    ):
        await_that(
            lambda: "startup complete" in log.read_text() or process.poll() is not None,
            "the SuperLink",
        )
        yield SuperLink(link.name, link.environment, address=f"127.0.0.1:{port}", process=process)
