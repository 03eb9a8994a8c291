"""Find extensions, such as rules, solvers and accountants, by name."""

from functools import cached_property
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from dpfact_flower.errors import SettingsError, naming, shown

_Thing = TypeVar("_Thing")


class Registry(Generic[_Thing]):
    """A registry that finds objects by the names in a config.

    `find` first searches the package's own objects (`known`), whose names are reserved. `find` then
    searches the objects that this process registered, and the installed entry points in `group`.
    """

    def __init__(self, what: str, group: str, **known: _Thing) -> None:
        self._what, self._group, self._own = what, group, known
        self._more: dict[str, _Thing] = {}

    def register(self, name: str, thing: _Thing) -> _Thing:
        """Register an object for this process, replacing any earlier object with the same name."""
        if name in self._own:
            raise SettingsError(f"{self._what}: {shown(name)} is dpfact-flower's own")
        self._more[name] = thing
        return thing

    def find(self, name: str) -> _Thing:
        """Return the object called `name`."""
        known = self._own | self._more
        if name in known:
            return known[name]
        for entry in entry_points(group=self._group, name=name):
            package = entry.dist and entry.dist.name
            with naming(f"{self._what} {name}: {package} fails to load {entry.value}", Exception):
                return self.register(name, entry.load())
        raise SettingsError(
            f"{self._what}: there is no {shown(name)}; there are {', '.join(self.names())} "
            f"(others: register them, or install a package with an entry point {self._group!r})"
        )

    def names(self) -> list[str]:
        """Return the names that `find` can find, starting with this package's own names."""
        return [*self._own, *sorted((self._installed | self._more.keys()) - self._own.keys())]

    @cached_property
    def _installed(self) -> frozenset[str]:
        """Names of the installed entry points, cached because each simulated site looks them up."""
        return frozenset(entry_points(group=self._group).names)
