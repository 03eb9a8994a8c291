"""docs/how-to/deploy.md as tests run it: its blocks, and a hospital set up by them."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from dpfact_flower.runtime.connection import quiet_environment
from dpfact_flower.runtime.superlink import SuperLink, free_port
from dpfact_flower.runtime.supervisor import supervised
from tests.patience import await_that

CONNECTION = "dpfact"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
UIDS = (61501, 61502)
"""Stand for the page's two users; files and processes need no more than a number."""


def page_blocks() -> list[str]:
    """Commands and files of the page: the indented blocks."""
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE.read_text(), re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]


def block_with(text: str) -> str:
    """The one block that holds a text."""
    (block,) = [block for block in page_blocks() if text in block]
    return block


@dataclass(frozen=True)
class Users:
    """Who plays the page's two users: two of them for root, and else one for both."""

    node: int
    site: int

    @property
    def two(self) -> bool:
        return self.node != self.site


def page_users() -> Users:
    """Two users where this one may be others, and those can read the code that is tested."""
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


UNTIMED = "reply-after = 0.0"
"""In place of the page's: a loaded machine may be late, and every reply would be waited for."""


@dataclass(frozen=True)
class Hospital:
    """What the page makes of one hospital, below a folder of its own in place of /srv/dpfact."""

    name: str
    folder: Path
    users: Users
    address: str
    port: int

    @property
    def config(self) -> Path:
        return self.folder / "site" / f"{self.name}.toml"

    @property
    def key(self) -> Path:
        return self.folder / "node" / self.name

    @property
    def state(self) -> Path:
        """Its state folder for this site."""
        return self.folder / "site" / "state" / self.name

    def text(self, block: str) -> str:
        """A block of the page, for this hospital."""
        for old, new in {
            "/srv/dpfact": str(self.folder),
            "/opt/dpfact/bin": str(Path(sys.executable).parent),
            "centre.example:443": self.address,
            "--port 9200": f"--port {self.port}",
            "-o dpfact-node": f"-o {self.users.node}",
            "--node-user dpfact-node": f"--node-user {self.users.node}",
            "-o dpfact-site": f"-o {self.users.site}",
            "north": self.name,
            "sudo ": "",
            "reply-after = 60.0": UNTIMED,
        }.items():
            block = block.replace(old, new)
        return block

    def prepare(self, authority: Path, data: Path) -> None:
        """Steps 2, 3 and 5: folders, secret, key, settings and data, each for its user."""
        work = self.folder.with_name(f"{self.name}-work")
        work.mkdir()
        work.joinpath("ca.crt").write_bytes(authority.read_bytes())
        for sign in ("useradd --system dpfact-node", "ssh-keygen -q"):
            lines = [line for line in block_with(sign).splitlines() if "useradd" not in line]
            command = ["sh", "-ec", self.text("\n".join(lines))]
            subprocess.run(command, cwd=work, check=True, capture_output=True)
        self.config.write_text(self.text(block_with("budget-delta =")))
        path = self.config.with_name(f"{self.name}.npz")
        path.write_bytes(data.read_bytes())
        path.chmod(0o600)
        for each in (self.config, path):
            os.chown(each, self.users.site, -1)

    def service(self, name: str, more: Mapping[str, str]) -> tuple[list[str], dict[str, Any]]:
        """Command of a systemd unit of the page, and how systemd would start it."""
        uid = {"dpfact-node": self.users.node, "dpfact-site": self.users.site}[name]
        other = {"user": uid, "group": uid, "extra_groups": []} if self.users.two else {}
        command, environment = unit_of(self.text(block_with(f"User={name}\n")), more)
        return command, {"env": environment, "cwd": "/", **other}

    @contextmanager
    def unit(self, name: str, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """A systemd unit of the page, started as systemd would; its log is NAME.log."""
        command, options = self.service(name, more)
        with (
            (self.folder / f"{name}.log").open("wb") as log,
            supervised(command, stdout=log, stderr=log, **options) as process,
        ):
            yield process

    def log(self, unit: str) -> str:
        """What a unit has logged."""
        return (self.folder / f"{unit}.log").read_text()


def unit_of(text: str, more: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a systemd unit."""
    entries = dict(re.findall(r"^(\w+)=(.*)$", text.replace("\\\n", " "), re.MULTILINE))
    own = dict(word.split("=", 1) for word in entries["Environment"].split())
    return shlex.split(entries["ExecStart"]), {"PATH": "/usr/bin:/bin", **more, **own}


def hospital(folder: Path, name: str, users: Users, address: str) -> Hospital:
    """A hospital whose SuperNode has a free port of this machine."""
    return Hospital(name, folder / name, users, address, free_port())


def centre_command(tls: Path, port: int) -> list[str]:
    """The page's SuperLink as its unit starts it, on a free port and with its files in `tls`."""
    unit = block_with("User=dpfact-centre\n").replace("/srv/tls", str(tls))
    unit = unit.replace("/opt/dpfact/bin", str(Path(sys.executable).parent))
    command, _ = unit_of(unit.replace("--port 9190", f"--port {port}"), {})
    return [*command, "--control-api-address", f"127.0.0.1:{free_port()}"]


@contextmanager
def centre(folder: Path, tls: Path) -> Iterator[SuperLink]:
    """The page's SuperLink, under way, and below `folder` a Flower home that knows it."""
    port, home = free_port(), folder / "flwr"
    home.mkdir()
    address, log = f"127.0.0.1:{port}", home / "superlink.log"
    connection = {"address": address, "root-certificates": str(tls / "ca.crt")}
    config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(config))
    environment = {**quiet_environment(), "FLWR_HOME": str(home)}
    with (
        log.open("wb") as file,
        supervised(
            centre_command(tls, port), cwd=tls, env=environment, stdout=file, stderr=file
        ) as process,
    ):
        await_that(
            lambda: "startup complete" in log.read_text() or process.poll() is not None,
            "the SuperLink",
        )
        yield SuperLink(home, address, process)
