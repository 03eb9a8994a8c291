"""All settings, each with its type, default, allowed range and one line of help.

Settings come from Flower's run config or node config, from a message, or from the command line.
`from_config` builds a settings object from any source. Configs and the command line use hyphens, as
Flower does: the field ``round_timeout`` has the key ``round-timeout``.
"""

import dataclasses
import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, get_args

from dpfact_flower.errors import DataError, SettingsError, shown

Scalar = bool | int | float | str
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern for names of jobs, sites and vocabularies, which appear in files, messages and logs."""
LARGEST = 2**63 - 1
"""Largest whole number allowed in messages and ledgers."""
MOST_REFINEMENTS = 100
"""Maximum number of refinement rounds in a patient-mode run."""
MOST_SLOTS = 4
"""Maximum number of slots in a secure sum. A site always reserves disk space for this many."""
_LOSS = "squared"
_STEP = 0.3
_PAPER_STEP = 0.01
_PAPER_GAMMA = 5.0
"""The DPFact paper's elastic weight, which was chosen from the values {2, 5, 8, 10}."""
_NEEDED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def setting(
    default: Scalar,
    help: str,  # noqa: A002 - the word that argparse and typer use
    allowed: str = "",
) -> Any:
    """Declare a setting. `allowed` is a range, such as "(0, 1]", or a pattern for text."""
    return dataclasses.field(default=default, metadata={"help": help, "allowed": allowed})


@dataclass(frozen=True)
class Settings:
    """Base class of all settings, which checks types and ranges on construction."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field, getattr(self, field.name)))
        self._check_together()

    def _check_together(self) -> None:
        """Refuse invalid combinations of values. Subclasses override this method."""

    @classmethod
    def names(cls) -> list[str]:
        """Return this class's config keys, with hyphens."""
        return [_key(field.name) for field in dataclasses.fields(cls)]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Build settings from a config with hyphenated keys. Other classes' keys are ignored."""
        return cls(**{key.replace("-", "_"): config[key] for key in cls.names() if key in config})

    def to_config(self) -> dict[str, Scalar]:
        """Return a config with hyphenated keys, which `from_config` can read."""
        return {_key(name): value for name, value in vars(self).items()}


@dataclass(frozen=True)
class SolverSettings(Settings):
    """Settings for a site's solver. Some settings are named after symbols of the DPFact paper."""

    rank: int = setting(12, "number of phenotypes R", "[1, 1000]")
    solver: str = setting(
        "exact", "psgd: the paper's SGD; exact: block updates over all cells; or your own", NAME
    )
    loss: str = setting(
        _LOSS, "squared; poisson or bernoulli with psgd and scale = counts, or in mode patient "
        "with refine-rounds = 0; or your own", NAME,
    )  # fmt: skip
    scale: Literal["counts", "patient"] = setting(
        "patient", "counts: fit unscaled counts; patient: scale each patient's counts to norm 1"
    )
    tau: int = setting(1, "local passes over the data per round", "[1, 10000]")
    eta: float = setting(
        _STEP, "largest step size of psgd and of the server's elastic updates; in paper mode, the "
        "paper's 0.01 unless gamma is given", "[1e-08, 1]",
    )  # fmt: skip
    gamma: float = setting(
        -1.0, "elastic weight as in the paper; below 0: relative (see relative-elastic), or in "
        "paper mode the paper's 5", "[-1, inf)",
    )  # fmt: skip
    relative_elastic: float = setting(
        1.0, "elastic weight relative to the curvature of a site's error, if gamma is below 0; "
        "psgd applies 0.3 of it", "[0, inf)",
    )  # fmt: skip
    mu: float = setting(0.0, "l2,1 weight; if larger, sites drop more phenotypes", "[0, inf)")
    relative_l21: float = setting(
        0.1, "not psgd: l2,1 weight relative to a site's average column; 0: use mu", "[0, inf)"
    )
    mu_from_round: int = setting(
        0, "modes none, paper: round from which mu and relative-l21 apply; 0: after half of the "
        "rounds", "[0, inf)",
    )  # fmt: skip
    nonnegative: bool = setting(True, "keep factors non-negative, so weights are interpretable")
    zeros: Literal["none", "stratified"] = setting(
        "stratified", "psgd: visit non-zero cells only (none), or also sampled zero cells"
    )
    zero_ratio: float = setting(2.0, "psgd, stratified: sampled zero cells per non-zero", "(0, 20]")
    clip: float = setting(
        0.0, "psgd: limit L on the norm of a cell's gradient for each factor; 0: none", "[0, inf)"
    )

    @property
    def is_relative(self) -> bool:
        """Whether the elastic weight is a multiple of the curvature of the site's error."""
        return self.gamma < 0

    def _check_together(self) -> None:
        if self.clip and not 1e-6 <= self.clip <= 1e6:  # clipped gradients must fit into float32
            raise SettingsError(f"clip: must be 0 or lie in [1e-06, 1e+06]; got {self.clip!r}")


@dataclass(frozen=True)
class PrivacySettings(Settings):
    """A run's privacy settings. Each site enforces these settings."""

    privacy: Literal["patient", "paper", "none"] = setting(
        "patient", "patient: proven for each patient; paper: DPFact's noise, with no valid proof; "
        "none: no protection",
    )  # fmt: skip
    epsilon: float = setting(
        4.0, "total epsilon of all rounds, per patient (in paper mode: per entry)", "(0, 1e+06]"
    )
    delta: float = setting(1e-5, "delta at which every epsilon is stated", "(0, 1)")
    rho: float = setting(
        0.0, "paper: zCDP cost of one factor in one round; 0: planned from epsilon", "[0, 100]"
    )
    noise_seed: int = setting(
        -1, "-1: noise from the operating system; other: simulation only, not private",
        "[-1, 4611686018427387904]",
    )  # fmt: skip
    patients: int = setting(
        0, "patient: publicly estimated total number of patients; 0: unknown", "[0, 1000000000]"
    )
    start_share: float = setting(
        0.0, "patient: share of the budget for the start; 0: planned", "[0, 1]"
    )
    refine_rounds: int = setting(
        -1, "patient: refinement rounds, each over all modes; -1: planned",
        f"[-1, {MOST_REFINEMENTS}]",
    )  # fmt: skip
    bound: float = setting(
        0.0, "patient: norm (at least 0.001) to which a patient's contribution to a refinement is "
        "clipped; 0: planned", "[0, 1]",
    )  # fmt: skip
    codes: str = setting(
        "", "patient: number of codes to keep in each mode (such as 202x316), by charged noisy "
        "counts; empty: all", r"\d{1,9}(x\d{1,9})*",
    )  # fmt: skip
    codes_share: float = setting(0.05, "patient: share of the budget for code counts", "(0, 0.5]")
    secure_sums: bool = setting(
        False, "patient: the server learns sums over sites, and the sites share the noise"
    )
    secure_sites: int = setting(
        0, "secure sums: number of sites that take part; 0: the value of `sites`", "[0, 1000]"
    )
    secure_colluding: int = setting(
        -1, "secure sums: how many sites may collude with the server; -1: a tenth", "[-1, 1000]"
    )
    secure_dropouts: int = setting(
        -1, "secure sums: how many sites may be lost in a round; -1: a tenth", "[-1, 1000]"
    )
    secure_slots: int = setting(
        0, "secure sums: number of site groups with separate sums; 0: planned", f"[0, {MOST_SLOTS}]"
    )

    def check_solver(self, solver: SolverSettings) -> None:
        """Refuse solver settings for which this privacy mode cannot bound the sensitivity."""
        if self.privacy == "paper" and solver.clip == 0:
            raise SettingsError(
                "privacy 'paper' takes its sensitivity from psgd's clipped gradients: set solver "
                f"to 'psgd' and clip above 0; got {solver.solver!r} and 0"
            )
        if self.privacy == "patient" and solver.loss != _LOSS and self.refine_rounds != 0:
            raise SettingsError(
                "loss: privacy 'patient' refines by least squares: set refine-rounds to 0, or "
                f"loss to {_LOSS!r}; got {self.refine_rounds} and {solver.loss!r}"
            )
        if self.privacy == "patient" and not (solver.scale == "patient" and solver.nonnegative):
            raise SettingsError(
                "privacy 'patient' bounds patients of norm 1 in a non-negative model: set scale to "
                f"'patient' and nonnegative to true; got {solver.scale!r} and {solver.nonnegative}"
            )

    def resolved(self, solver: SolverSettings) -> SolverSettings:
        """Return the solver's settings, adapted to this privacy mode.

        Paper mode uses the DPFact paper's elastic weight and default step size. The paper's privacy
        claim does not cover a relative elastic weight, which depends on patients' data.
        """
        if self.privacy == "paper" and solver.is_relative:
            eta = _PAPER_STEP if solver.eta == _STEP else solver.eta
            return dataclasses.replace(solver, gamma=_PAPER_GAMMA, eta=eta)
        return solver

    def sent(self, solver: SolverSettings) -> SolverSettings:
        """Check and return the solver settings to send to sites. Patient mode resets `loss`."""
        self.check_solver(solver)
        solver = self.resolved(solver)
        return dataclasses.replace(solver, loss=_LOSS) if self.privacy == "patient" else solver

    @property
    def default_rule(self) -> str:
        """Name of the privacy mode's default rule."""
        return "patient" if self.privacy == "patient" else "elastic"

    @property
    def codes_kept(self) -> tuple[int, ...]:
        """Number of codes to keep in each mode, or an empty tuple if all codes are kept."""
        return tuple(int(size) for size in self.codes.split("x")) if self.codes else ()

    def _check_together(self) -> None:
        for name, modes in (
            ("rho", ["paper"]),
            ("noise_seed", ["paper", "patient"]),
            ("codes", ["patient"]),
            ("secure_sums", ["patient"]),
        ):
            value = getattr(self, name)
            if value != getattr(PrivacySettings, name) and self.privacy not in modes:
                raise SettingsError(
                    f"{_key(name)}: has no meaning with privacy {self.privacy!r}; "
                    f"got {shown(value)}"
                )
        if 0 < self.bound < 1e-3:
            raise SettingsError(
                f"bound: must be 0, which plans it, or lie in [0.001, 1]; got {self.bound:g}"
            )
        if 0 in self.codes_kept:
            raise SettingsError(f"codes: keep at least one in each mode; got {shown(self.codes)}")


@dataclass(frozen=True)
class RunSettings(Settings):
    """The server's settings for a federated run."""

    rounds: int = setting(40, "federated rounds; patient mode plans its own number", "[1, 100000]")
    seed: int = setting(0, "public seed for the start and the order of updates", "[0, 2147483648]")
    job: str = setting("", "name under which sites keep their state (default: random)", NAME)
    sites: int = setting(0, "number of sites to wait for before round 1; 0: the quorum", "[0, inf)")
    min_sites: int = setting(1, "quorum: replies needed in a round to change the model", "[1, inf)")
    round_timeout: float = setting(
        600.0, "seconds that a site has to reply; also the message's time to live", "(0, 604800]"
    )
    wait_timeout: float = setting(300.0, "seconds to wait for the quorum to connect", "(0, 86400]")
    grace: float = setting(
        0.0, "sync: seconds that a round waits beyond the longest time that the quorum has needed; "
        "0: until round-timeout", "[0, 604800]",
    )  # fmt: skip
    aggregation: Literal["sync", "async"] = setting(
        "sync", "sync: rounds wait for the sites that were asked; async, in modes none and paper: "
        "each reply is used when it arrives",
    )  # fmt: skip
    preflight: Literal["stop", "leave-out", "off"] = setting(
        "stop", "ask sites before any charge whether they would answer; stop: begin only if all "
        "would; leave-out: run without the others",
    )  # fmt: skip
    rule: str = setting(
        "", "elastic, patient, or a registered rule; empty: the privacy mode's default", NAME
    )
    start: Literal["auto", "cooccurrence", "random"] = setting(
        "auto", "cooccurrence: from counts of code pairs (mode none: WITHOUT noise); random: "
        "public seed; auto: cooccurrence if possible",
    )  # fmt: skip
    elastic_step: float = setting(
        0.0, "server's elastic step per site; 0: eta * gamma for psgd with a given gamma, else the "
        "sites' mean", "[0, 1]",
    )  # fmt: skip
    shrink: float = setting(
        1.0, "patient: soft threshold for refined factors, in noise standard deviations", "[0, 10]"
    )
    auto_rank: bool = setting(
        False, "patient: use only as many of the rank phenotypes as the start shows to be distinct "
        "and probably real",
    )  # fmt: skip

    @property
    def expected_sites(self) -> int:
        """Number of sites to wait for before round 1."""
        return max(self.sites, self.min_sites)

    def _check_together(self) -> None:
        if 0 < self.sites < self.min_sites:
            raise SettingsError(
                f"min-sites: a quorum of {self.min_sites} cannot be met by sites = {self.sites}"
            )
        if self.grace and self.aggregation != "sync":
            raise SettingsError(
                f"grace: has no meaning with aggregation {self.aggregation!r}, which waits for no "
                f"site; got {self.grace:g}"
            )


@dataclass(frozen=True)
class AppSettings(Settings):
    """Settings of the Flower App: where a run reads its data and writes its results."""

    data: str = setting(
        "synthetic:demo", "simulation: a folder from `dpfact data`, or synthetic:PRESET; else empty"
    )
    vocabulary: str = setting(
        "", "deployment: the public code lists, one .json per feature mode, separated by commas"
    )
    out: str = setting("runs/latest", "the run's folder: model, history, summary, report")
    state_dir: str = setting("", "simulation: the sites' private folder (default: OUT.sites)")
    resume: bool = setting(False, "continue the unfinished run in OUT")

    @property
    def run_folder(self) -> Path:
        """Absolute path of the run's folder."""
        return Path(self.out).expanduser().resolve()

    @property
    def sites_folder(self) -> Path:
        """Folder, outside the run's folder, for the sites' own files in a simulation."""
        if self.state_dir:
            return Path(self.state_dir).expanduser().resolve()
        return self.run_folder.with_name(f"{self.run_folder.name}.sites")

    @property
    def cohort_folder(self) -> Path:
        """Folder with the data of a simulation's sites, real or synthetic."""
        if self.synthetic_preset:
            return self.sites_folder / f"data-{self.synthetic_preset}"
        return Path(self.data).expanduser().resolve()

    @property
    def synthetic_preset(self) -> str:
        """Name of the preset for synthetic data, or "" if the data is not synthetic."""
        kind, colon, preset = self.data.partition(":")
        return (preset or "demo") if kind + colon == "synthetic:" else ""

    def _check_together(self) -> None:
        if not self.out or not self.run_folder.name:
            raise SettingsError(f"out: need a folder for the run's results, got {shown(self.out)}")
        if self.sites_folder.is_relative_to(self.run_folder):
            raise SettingsError("state-dir: must not lie in the run's folder (out)")
        if self.vocabulary and self.data:
            raise SettingsError(
                f"vocabulary: is for a deployment, where data is empty; data is {shown(self.data)}"
            )


@dataclass(frozen=True)
class SiteSettings(Settings):
    """A hospital's own settings (the node config)."""

    site: str = setting("", "this site's public name (default: the name in its data file)", NAME)
    data_path: str = setting("", "the site's .npz file, written by `dpfact data`")
    data_site: str = setting("", "the site's name in the data file, if different from `site`", NAME)
    state_dir: str = setting(
        "", "absolute path of the folder for patient factors and the ledger; must be set"
    )
    allow_privacy: str = setting(
        "", "privacy modes this site allows, separated by commas; must be set", r"[a-z]+(,[a-z]+)*"
    )
    max_epsilon: float = setting(
        0.0, "largest epsilon (as claimed by the mode), over all jobs; must be above 0 if a "
        "mode with noise is allowed", "[0, inf)",
    )  # fmt: skip
    budget_delta: float = setting(
        1e-5, "delta for max-epsilon, regardless of the run's delta", "(0, 0.5]"
    )
    allow_rules: str = setting(
        "elastic,patient", "rules this site allows, separated by commas", rf"{NAME}(,{NAME})*"
    )
    max_rank: int = setting(200, "largest rank that this site accepts", "[1, inf)")
    max_tau: int = setting(50, "maximum local passes per round that this site accepts", "[1, inf)")
    max_rounds: int = setting(
        1000, "maximum number of noisy rounds that this site answers, over all jobs", "[1, inf)"
    )
    reply_after: float = setting(
        0.0, "seconds from a request to its reply, doubled if too short; 0: no delay", "[0, 86400]"
    )
    secure_key: str = setting(
        "", "secure sums: file with this site's signing key, written by `dpfact keys make`"
    )
    secure_peers: str = setting(
        "", "secure sums: file with all sites' names and public keys, one `NAME KEY` per line"
    )
    secure_min_sites: int = setting(3, "secure sums: minimum number of sites in a sum", "[3, inf)")
    secure_min_colluding: int = setting(
        0, "secure sums: colluding sites to withstand; 0: a tenth of secure-peers", "[0, inf)"
    )
    max_epsilon_alone: float = setting(
        0.0, "secure sums: largest epsilon, over all jobs, if all other sites collude; must be "
        "above 0 to take part", "[0, inf)",
    )  # fmt: skip

    def _check_together(self) -> None:
        modes = get_args(PrivacySettings.__annotations__["privacy"])
        for mode in filter(None, self.allow_privacy.split(",")):
            if mode not in modes:
                raise SettingsError(
                    f"allow-privacy: modes are {', '.join(modes)}; got {shown(self.allow_privacy)}"
                )


class Described(NamedTuple):
    """A setting's key, default, allowed values and help text."""

    key: str
    default: Scalar
    allowed: str
    help: str


def describe(kind: type[Settings]) -> list[Described]:
    """Describe every setting in a settings class."""
    rows = []
    for field in dataclasses.fields(kind):
        hint: Any = field.type
        allowed = " | ".join(get_args(hint)) or hint.__name__
        if hint in (int, float):
            allowed += f" in {field.metadata['allowed']}"
        text = field.metadata["help"]
        rows.append(Described(_key(field.name), cast(Scalar, field.default), allowed, text))
    return rows


def refuse_unknown(config: Mapping[str, object], *classes: type[Settings]) -> None:
    """Refuse unknown keys, because a typo would otherwise silently leave a default unchanged."""
    names = [name for settings in classes for name in settings.names()]
    for key in config:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names)}"
            raise SettingsError(f"{key}: no such setting{hint}")


def _key(name: str) -> str:
    return name.replace("_", "-")


def _checked(field: dataclasses.Field[Any], value: Any) -> Scalar:
    hint: Any = field.type
    name, allowed = _key(field.name), field.metadata["allowed"]
    if get_args(hint):
        if not isinstance(value, str) or value not in get_args(hint):
            raise SettingsError(
                f"{name}: must be one of {', '.join(get_args(hint))}; got {shown(value)}"
            )
        return value
    if not isinstance(value, bool):  # NumPy's scalars are allowed
        if hint is float and isinstance(value, Real):
            try:
                value = float(value) + 0.0  # -0.0 equals 0.0, but is written differently
            except OverflowError:
                value = math.inf  # outside every range
        elif hint is int and isinstance(value, Integral):
            value = int(value)
        elif hint is str and isinstance(value, Integral):
            value = str(value)  # such as codes=300
    if type(value) is not hint:
        raise SettingsError(f"{name}: need {_NEEDED[hint]}, got {shown(value)}")
    if hint is str and value and allowed and not re.fullmatch(allowed, value):
        raise SettingsError(f"{name}: {shown(value)} does not match {allowed}")
    if hint in (int, float) and not _is_in(allowed, value):
        raise SettingsError(f"{name}: must lie in {allowed}; got {shown(value)}")
    return cast(Scalar, value)


def _is_in(allowed: str, value: float) -> bool:
    """Return whether a number is finite, fits into 64 bits and lies within a range."""
    if not (abs(value) <= LARGEST if isinstance(value, int) else math.isfinite(value)):
        return False
    low, high = map(float, allowed[1:-1].split(", "))
    above = value > low if allowed[0] == "(" else value >= low
    below = value < high if allowed[-1] == ")" else value <= high
    return above and below


def check_name(what: str, name: object, *, quote: bool = True) -> None:
    """Refuse a name that cannot be used in a file name, a message or a log.

    If the name is from a site's file, set `quote` to false. A damaged file may contain patients'
    data in place of the name, and an error must not quote such data.
    """
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        got = shown(name) if isinstance(name, str) else type(name).__name__
        rule = "must be at most 64 of A-Z, a-z, 0-9, . _ and -, and begin with a letter or digit"
        raise DataError(f"{what}: {rule}" + f"; got {got}" * quote)
