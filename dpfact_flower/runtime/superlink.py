"""A SuperLink on loopback that this process starts and stops: for `dpfact simulate` and tests.

With `local_supernode` a whole deployment on one machine, to try things: for notebooks and tests.

`flwr run` on its own would start a SuperLink that stays behind as a daemon, keeps the folder and
environment of its first run, and exits 0 when a run fails. This one has a Flower home and ports of
its own, ends with this process, however that ends, and a run's outcome is read from it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import tomli_w

from dpfact_flower.machine.files import private_folder
from dpfact_flower.runtime.connection import (
    COMPLETED,
    Connection,
    RunFailedError,
    quiet_environment,
    run_command,
    tool,
)
from dpfact_flower.runtime.keeper import kept
from dpfact_flower.runtime.told import Listener
from dpfact_flower.settings import Scalar

_CONNECTION = "dpfact"
_START_SECONDS = 300
"""Only so as not to wait forever: a busy machine takes long, and a SuperLink that fails exits."""


@dataclass(frozen=True)
class Certificates:
    """PEM files of a SuperLink that speaks TLS.

    Attributes
    ----------
    authority : Path
        Certificate of the authority that signed the SuperLink's.
    certificate, key : Path
        The SuperLink's own. The certificate must hold for 127.0.0.1: the SuperLink's helper
        processes connect there, whatever its public name, and check it.
    """

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink.

    Attributes
    ----------
    home : Path
        Its Flower home (FLWR_HOME), with its log and database.
    address : str
        Where `flwr` and SuperNodes connect, 127.0.0.1:PORT.
    process : Popen
        Its keeper, which exits as it does.
    """

    home: Path
    address: str
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> dict[str, str]:
        """Environment for Flower's commands against this SuperLink."""
        return _environment(self.home)

    def run(
        self,
        app: Path,
        config: Mapping[str, Scalar],
        *,
        federation_config: str = "",
        quiet: bool = False,
        heard: Listener | None = None,
    ) -> None:
        """Run a Flower App to its end, streaming its log, or handing its lines to who listens.

        Raises
        ------
        RunFailedError
            If Flower does not report the run as completed.
        """
        link = Connection(_CONNECTION, self.environment)
        run = link.submit(app, config, federation_config)
        with _log_for(heard, quiet=quiet) as log:
            status = link.follow(run, log).get("status")
        if status != COMPLETED:
            if heard:
                heard.show_all()
            raise RunFailedError(f"the run ended as {status!r}; its log is above")

    def run_command(
        self, app: Path, config: Mapping[str, Scalar], *, federation_config: str = ""
    ) -> list[str]:
        """Arguments of `flwr run` against this SuperLink."""
        return [*run_command(app, _CONNECTION, config, federation_config), "--stream"]


@contextmanager
def _log_for(heard: Listener | None, *, quiet: bool) -> Iterator[int | None]:
    """Where a run's log goes: to who listens, or to nobody, or to this process's output."""
    if heard is None:
        with Path(os.devnull).open("wb") as nowhere:
            yield nowhere.fileno() if quiet else None
        return
    read, write = os.pipe()
    listening = Thread(target=_hear, args=(read, heard))
    listening.start()
    try:
        yield write
    finally:
        os.close(write)
        listening.join()


def _hear(log: int, heard: Listener) -> None:
    with os.fdopen(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            heard(line)


@contextmanager
def local_superlink(
    home: Path,
    *,
    simulation: bool,
    certificates: Certificates | None = None,
    options: Sequence[str] = (),
) -> Iterator[SuperLink]:
    """Start a SuperLink on a free loopback port; stop it, and its helpers, at the end.

    It also ends with this process, however that ends: see `dpfact_flower.runtime.keeper`.

    Parameters
    ----------
    home : Path
        Folder for its Flower home.
    simulation : bool
        Whether with virtual clients (Ray), or else for real SuperNodes.
    certificates : Certificates, optional
        Speak TLS with these; without them, plain HTTP.
    options : sequence of str
        More options of `flower-superlink`.
    """
    home = home.absolute()
    private_folder(home)
    port, control = free_port(), free_port()
    address = f"127.0.0.1:{port}"
    connection: dict[str, object] = {"address": address}
    if certificates is None:
        connection["insecure"] = True
    else:
        connection["root-certificates"] = str(certificates.authority.absolute())
    config = {"superlink": {"default": _CONNECTION, _CONNECTION: connection}}
    (home / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    command = [
        tool("flower-superlink"), *_tls(certificates), "--host", "127.0.0.1", "--port", str(port),
        "--control-api-address", f"127.0.0.1:{control}", "--database", str(home / "state.db"),
        "--isolation", "subprocess", "--disable-runtime-dependency-installation",
        *(["--simulation"] if simulation else []), *options,
    ]  # fmt: skip
    log = home / "superlink.log"
    with (
        log.open("ab") as file,
        kept(command, env=_environment(home), stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        _await_port(port, process, log)
        yield SuperLink(home, address, process)


@contextmanager
def local_supernode(
    superlink: SuperLink,
    config: Mapping[str, Scalar],
    log: Path,
    *,
    security: Sequence[str] = ("--insecure",),
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a SuperNode for one site of a SuperLink on this machine; stop it at the end.

    It runs whatever the SuperLink sends, as Flower's SuperNodes do: in a hospital a site is set up
    otherwise (docs/how-to/deploy.md).

    Parameters
    ----------
    superlink : SuperLink
    config : mapping
        The site's node config, with hyphenated keys: see `SiteSettings`.
    log : Path
        File that the SuperNode's log is written to.
    security : sequence of str
        Options of `flower-supernode` that say how it connects.
    """
    text = " ".join(
        f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}"
        for key, value in config.items()
    )
    command = [
        tool("flower-supernode"), *security, "--superlink", superlink.address,
        "--port", str(free_port()), "--node-config", text,
    ]  # fmt: skip
    with (
        log.open("wb") as file,
        kept(command, env=superlink.environment, stdout=file, stderr=file) as process,
    ):
        yield process


def _tls(certificates: Certificates | None) -> list[str]:
    if certificates is None:
        return ["--insecure"]
    return [
        "--ssl-ca-certfile", str(certificates.authority.absolute()),
        "--ssl-certfile", str(certificates.certificate.absolute()),
        "--ssl-keyfile", str(certificates.key.absolute()),
    ]  # fmt: skip


def _environment(home: Path) -> dict[str, str]:
    return {**quiet_environment(), "FLWR_HOME": str(home)}


def free_port() -> int:
    """A loopback port that nobody is listening on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RunFailedError(f"flower-superlink ended with {process.returncode}; see {log}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RunFailedError(f"flower-superlink did not listen within {_START_SECONDS} s; see {log}")
