"""The processes of this machine, as Linux shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_INTERPRETED = 3
"""A script's name is among the first words of its command line, after the interpreter."""


@dataclass(frozen=True)
class Process:
    """A process that is running.

    Attributes
    ----------
    pid, uid : int
    words : sequence of str
        Its command line.
    environment : mapping or None
        None where this user may not see it.
    folder : Path or None
        The one it works in; likewise.
    """

    pid: int
    uid: int
    words: Sequence[str]
    environment: Mapping[str, str] | None
    folder: Path | None

    def runs(self, *names: str) -> bool:
        """Whether it is one of these commands, by name."""
        return any(Path(word).name in names for word in self.words[:_INTERPRETED])

    def option(self, name: str) -> str | None:
        """Value of an option on its command line; None where it has none."""
        for number, word in enumerate(self.words):
            if word == name:
                return self.words[number + 1] if number + 1 < len(self.words) else None
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return None

    def path(self, name: str) -> Path | None:
        """Value of an option that is a path, as this process would name it."""
        text = self.option(name)
        if text is None:
            return None
        return (self.folder or Path()).joinpath(Path(text).expanduser()).resolve()


def processes() -> list[Process]:
    """Every process, but those that end meanwhile or only just begin.

    Within ``exec`` a process has no command line yet.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone
            words = (folder / "cmdline").read_text(errors="replace").split("\0")[:-1]
            if words:
                place = _readable(folder)
                found.append(Process(int(folder.name), folder.stat().st_uid, words, *place))
    return found


def _readable(folder: Path) -> tuple[dict[str, str] | None, Path | None]:
    try:
        lines = (folder / "environ").read_text(errors="replace").split("\0")
        place = (folder / "cwd").readlink()
    except PermissionError:
        return None, None
    return {key: value for key, _, value in (line.partition("=") for line in lines)}, place
