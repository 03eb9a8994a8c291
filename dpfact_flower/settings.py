"""Every setting: its type, default, allowed range and one line of help, in one place.

A settings class is a frozen dataclass whose fields carry their own range. It is built once, where
settings enter (Flower's run config and node config, a message, the command line), by `from_config`,
and passed on as an object; no bare dictionary travels inside. In configs and on the command line a
field is spelled with hyphens, as Flower does: ``round_timeout`` is ``round-timeout``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args, get_origin, get_type_hints

from dpfact_flower.errors import SettingsError

Scalar = bool | int | float | str
_INFINITY = math.inf


def setting(
    default: Scalar,
    help: str,  # noqa: A002 - the word argparse and typer use
    *,
    low: float = -_INFINITY,
    high: float = _INFINITY,
    open_low: bool = False,
    pattern: str = "",
) -> Any:
    """Declare one field: its default, its help, and the range or pattern of allowed values."""
    return dataclasses.field(
        default=default,
        metadata={
            "help": help, "low": low, "high": high, "open_low": open_low, "pattern": pattern
        },
    )  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Base of all settings classes: checks types and ranges on construction."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = _checked(field, hints[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        self._check_together()

    def _check_together(self) -> None:
        """Refuse combinations that cannot work; each class says which."""

    @classmethod
    def names(cls) -> list[str]:
        """Config keys of this class, with hyphens."""
        return [_key(field.name) for field in dataclasses.fields(cls)]

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Build from a config with hyphenated keys; keys of other classes are left alone.

        Raises
        ------
        SettingsError
            Naming the key, its value and what is allowed.
        """
        known = set(cls.names())
        return cls(**{k.replace("-", "_"): cast(Any, v) for k, v in config.items() if k in known})

    def to_config(self) -> dict[str, Scalar]:
        """Scalars under hyphenated keys, as `from_config` reads them."""
        return {_key(f.name): getattr(self, f.name) for f in dataclasses.fields(self)}


@dataclass(frozen=True)
class SolverSettings(Settings):
    """What a site computes on its own data; symbols as in the paper."""

    rank: int = setting(50, "number of phenotypes R", low=1, high=1000)
    solver: Literal["psgd", "exact"] = setting(
        "exact", "psgd: the paper's permutation SGD; exact: block updates over all cells"
    )
    tau: int = setting(2, "local passes over the data per round", low=1, high=10_000)
    eta: float = setting(
        1e-2, "largest step size of psgd, and of the server's elastic pull",
        low=0, high=1, open_low=True,
    )  # fmt: skip
    gamma: float = setting(5.0, "elastic weight: how strongly local and global pull", low=0)
    mu: float = setting(0.0, "l2,1 weight: how readily a site switches a phenotype off", low=0)
    nonnegative: bool = setting(True, "keep every factor non-negative, so weights can be read")
    update: Literal["joint", "sequential"] = setting(
        "joint", "psgd: one residual an entry, or a fresh one for each factor"
    )
    zeros: Literal["none", "stratified"] = setting(
        "stratified", "psgd: visit the non-zeros alone, or sampled zero cells too"
    )
    zero_ratio: float = setting(
        1.0, "psgd, stratified: sampled zero cells per non-zero", low=0, high=100, open_low=True
    )
    clip: float = setting(
        0.0, "psgd: bound L on the norm of an entry's gradient per factor; 0 is no bound", low=0
    )

    def _check_together(self) -> None:
        if self.solver == "psgd" and self.eta * self.gamma >= 1:
            raise SettingsError(
                f"eta * gamma must be below 1 for the elastic step to be stable; "
                f"got {self.eta:g} * {self.gamma:g} = {self.eta * self.gamma:g}"
            )
        if self.clip > 0 and self.solver != "psgd":
            raise SettingsError(f"clip bounds psgd's gradients; solver is {self.solver!r}")


def _key(name: str) -> str:
    return name.replace("_", "-")


def _checked(field: dataclasses.Field[Any], hint: Any, value: Any) -> Scalar:
    name, meta = _key(field.name), field.metadata
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise SettingsError(
                f"{name}: must be one of {', '.join(get_args(hint))}; got {value!r}"
            )
        return cast(Scalar, value)
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint:
        raise SettingsError(f"{name}: need {hint.__name__}, got {value!r}")
    if hint is str:
        if meta["pattern"] and not re.fullmatch(meta["pattern"], value):
            raise SettingsError(f"{name}: {value!r} does not match {meta['pattern']}")
        return cast(Scalar, value)
    low, high = meta["low"], meta["high"]
    below = value <= low if meta["open_low"] else value < low
    if hint is not bool and (not math.isfinite(value) or below or value > high):
        bracket = "(" if meta["open_low"] else "["
        raise SettingsError(f"{name}: must lie in {bracket}{low:g}, {high:g}]; got {value!r}")
    return cast(Scalar, value)
