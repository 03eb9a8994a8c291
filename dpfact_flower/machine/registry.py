"""Things that others may bring, by name: rules, solvers, accountants."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from dpfact_flower.errors import SettingsError, shown

_Thing = TypeVar("_Thing")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,._-]{0,63}")


class Registry(Generic[_Thing]):
    """What a name in a config stands for.

    A name is looked for among this package's own, then among those that this process registered,
    then among the entry points of installed packages, of which none is imported before it is asked
    for by name.

    Parameters
    ----------
    what : str
        What the things are, for errors.
    group : str
        Entry-point group in which an installed package may name more of them.
    **known
        This package's own; their names cannot be taken.
    """

    def __init__(self, what: str, group: str, **known: _Thing) -> None:
        self._what, self._group = what, group
        self._own = known
        self._more: dict[str, _Thing] = {}

    def register(self, name: str, thing: _Thing) -> _Thing:
        """Add a thing for this process; under a name registered before, it replaces the old one.

        Raises
        ------
        SettingsError
            If the name is this package's own, or not a valid name.
        """
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"{self._what}: a name is up to 64 letters, digits, spaces and ,._- that begin "
                f"with a letter or digit; got {shown(name)}"
            )
        if name in self._own:
            raise SettingsError(
                f"{self._what}: {shown(name)} is dpfact-flower's own; choose another"
            )
        self._more[name] = thing
        return thing

    def find(self, name: str) -> _Thing:
        """The thing of that name.

        Raises
        ------
        SettingsError
            If there is none; names those that exist.
        """
        for things in (self._own, self._more):
            if name in things:
                return things[name]
        for entry in entry_points(group=self._group, name=name):
            found: _Thing = entry.load()
            return self.register(name, found)
        raise SettingsError(
            f"{self._what}: there is no {shown(name)}; there are {', '.join(self.names())} "
            f"(others: register them, or install a package with an entry point {self._group!r})"
        )

    def names(self) -> list[str]:
        """Names that `find` knows, this package's own first."""
        installed = _installed(self._group, tuple(sys.path))
        return [*self._own, *sorted((installed | self._more.keys()) - self._own.keys())]


@lru_cache(maxsize=16)  # a simulated site asks with every message; looking takes 10 ms and more
def _installed(group: str, path: tuple[str, ...]) -> frozenset[str]:
    """Names of a group's entry points, of the packages that are found where Python looks."""
    del path
    return frozenset(entry.name for entry in entry_points(group=group))
