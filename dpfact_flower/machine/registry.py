"""Registries for extensions by name: rules, solvers, accountants."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from dpfact_flower.errors import SettingsError, shown

_Thing = TypeVar("_Thing")


class Registry(Generic[_Thing]):
    """Objects by their names in a config.

    `find` searches this package's own objects, `known`, whose names are reserved; then the objects
    that this process registered; then the entry points in `group` of installed packages. A package
    is imported only when one of its names is needed.
    """

    def __init__(self, what: str, group: str, **known: _Thing) -> None:
        self._what, self._group, self._own = what, group, known
        self._more: dict[str, _Thing] = {}

    def register(self, name: str, thing: _Thing) -> _Thing:
        """Register an object for this process; replaces an earlier one of that name."""
        if name in self._own:
            raise SettingsError(
                f"{self._what}: {shown(name)} is dpfact-flower's own; choose another"
            )
        self._more[name] = thing
        return thing

    def find(self, name: str) -> _Thing:
        """The object of that name; raises a SettingsError that lists the names if there is none."""
        for things in (self._own, self._more):
            if name in things:
                return things[name]
        for entry in entry_points(group=self._group, name=name):
            thing: _Thing = entry.load()
            return self.register(name, thing)
        raise SettingsError(
            f"{self._what}: there is no {shown(name)}; there are {', '.join(self.names())} "
            f"(others: register them, or install a package with an entry point {self._group!r})"
        )

    def names(self) -> list[str]:
        """Names that `find` knows, this package's own first."""
        return [*self._own, *sorted((self._installed | self._more.keys()) - self._own.keys())]

    @cached_property
    def _installed(self) -> frozenset[str]:
        """Cached: the search takes 10 ms or more, and every charge uses all accountants."""
        return frozenset(entry_points(group=self._group).names)
