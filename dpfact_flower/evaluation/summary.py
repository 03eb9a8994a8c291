"""The result of a run as one typed value: what ``summary.json`` holds.

The file is one flat page of keys. Each key is a field here, in the class that says when it is
known: what the server knows of every run, what noise has cost, what a simulation could measure.
Where a class is unknown, the file has null for its first keys and leaves the others out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpfact_flower.errors import DataError
from dpfact_flower.machine.parsed import parse_as
from dpfact_flower.privacy.events import Neighbours, ReleaseEvent, Unit

UNINFORMATIVE = "the phenotypes explain nothing"
"""Why a figure is missing where it would describe noise."""


@dataclass(frozen=True)
class Spending:
    """What releases have cost: a `Guarantee`, as `Guarantee.to_dict` writes it.

    `epsilon` is by `accountant`; `epsilons` has every accountant's, and `rho` and `mu` are in zCDP
    and Gaussian DP. `claim` says who vouches for them, and stands wherever one is shown.
    `replacing` is the epsilon for replacing a patient's record, where `epsilon` is for adding or
    removing one. `alone` is that of secure sums should all other sites collude with the server.
    """

    epsilon: float
    delta: float
    accountant: str
    claim: str
    unit: Unit
    neighbours: Neighbours
    releases: int
    rho: float
    mu: float
    epsilons: dict[str, float]
    replacing: float | None
    alone: float | None


@dataclass(frozen=True)
class SiteSpending(Spending):
    """What one site has spent in the run, and on which releases.

    In the file each of these has its cost in zCDP too, as ``rho``.
    """

    ledger: tuple[ReleaseEvent, ...]


@dataclass(frozen=True)
class RunSpending(Spending):
    """The spending of the site that spent the most, and by name that of every site."""

    unit_in_words: str
    neighbours_in_words: str
    not_covered: tuple[str, ...]
    per_site: dict[str, SiteSpending]


@dataclass(frozen=True)
class Exchange:
    """What the server and its sites sent each other, all rounds together.

    Bytes are those of Flower's messages. `bytes_paper` and `bytes_trip` are what as many rounds
    send in the schemes of DPFact and of TRIP; 15 MB/s is the paper's assumed rate. `failures`
    counts replies that were asked for and not usable.
    """

    bytes_up: int
    bytes_down: int
    seconds: float
    bytes_paper: int
    bytes_trip: int
    transfer_seconds_at_15_MB_s: float  # noqa: N815 - the key in the file
    failures: int


@dataclass(frozen=True)
class RoundErrors:
    """Errors of the sites' own models after a round, pooled over all sites; as in `RMSE`."""

    round: int
    all_cells: float
    nonzeros: float | None
    authors: float
    fit: float


@dataclass(frozen=True)
class SiteFit:
    """A site's data, and the share of it that the site's own model explains."""

    site: str
    patients: int
    nonzeros: int
    fit: float


@dataclass(frozen=True)
class Errors:
    """Errors of the sites' own models over all sites' data.

    The first four are after the last round: the three measures of `RMSE`, and the share of the data
    explained. `solver_seconds` is the sum over all sites and rounds.
    """

    rmse: float
    fit: float
    rmse_nonzeros: float
    rmse_authors: float
    error_by_round: tuple[RoundErrors, ...]
    solver_seconds: float
    per_site_data: tuple[SiteFit, ...]


@dataclass(frozen=True)
class AUC:
    """Area under the ROC curve on test patients: mean and standard deviation over splits."""

    mean: float
    spread: float


@dataclass(frozen=True)
class GroupAUC:
    """The predictions for one group of patients: those of a site, or ``overall``.

    `memberships` predict from the patients' factor. The two baselines are `raw_codes`, which codes
    a patient has at all, and `volume`, the sum of a patient's counts. Without figures, `reason`
    says why. `patients` counts those with a label.
    """

    group: str
    patients: int
    memberships: AUC | None = None
    raw_codes: AUC | None = None
    volume: AUC | None = None
    reason: str | None = None


@dataclass(frozen=True)
class OutcomePrediction:
    """What `predict_outcome` found: one model over all labelled patients, and one at each site.

    `splits` counts repetitions, and `train` is the share of the patients that train.
    """

    overall: GroupAUC
    sites: tuple[GroupAUC, ...]
    splits: int
    train: float


@dataclass(frozen=True)
class Coherence:
    """How often phenotypes' leading codes occur together, as `coherence.coherence` measures it.

    `by_chance` is the mean of models whose codes' weights were dealt to phenotypes at random.
    """

    value: float
    by_chance: float


@dataclass(frozen=True)
class Measured:
    """What a simulation can measure, since all sites' data is on one machine.

    `fms` is the factor match score with the planted phenotypes, where these are known, and `auc`
    that of the first label's overall prediction by memberships; `predictions` are by label.
    `errors` is None if there is no round after which all sites measured them, or the run had
    another loss. The fits are the shares of the data that the shared factors explain with every
    patient refitted to them, and that the frequencies of codes explain: a single component that
    knows no phenotype. `coherence` is None where nothing was learned.
    """

    fms: float | None
    auc: float | None
    predictions: dict[str, OutcomePrediction]
    sites_without_a_round: tuple[str, ...]
    errors: Errors | None
    fit_shared: float
    fit_frequencies: float
    coherence: Coherence | None

    @property
    def prediction(self) -> OutcomePrediction | None:
        """Of the first label, where there is one."""
        return next(iter(self.predictions.values()), None)

    @property
    def is_uninformative(self) -> bool:
        """Whether the shared factors explain no more than the frequencies of codes."""
        return self.fit_shared <= self.fit_frequencies


@dataclass(frozen=True)
class Summary:
    """The result of a run; its name is the cohort's, or in a deployment the job's.

    `sites` counts those whose releases were used, and `rounds` those that updated the model. A row
    of the data is one `row_unit`, as far as the server knows: ``patient``, or ``discharge``.
    `false_discovery` has by phenotype the chance that other patients lack it, where the server can
    tell. `claim` says what protects the patients. Mode "none" has no `spent`, a deployment no
    `measured`.
    """

    name: str
    sites: int
    rounds: int
    rank: int
    solver: str
    scale: str
    privacy: str
    row_unit: str
    claim: str
    spent: RunSpending | None
    exchange: Exchange
    measured: Measured | None
    false_discovery: tuple[float, ...] = ()

    @property
    def errors(self) -> Errors | None:
        """Errors, where they were measured."""
        return self.measured.errors if self.measured else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of ``summary.json``."""
        content = asdict(self)
        for site, own in self.spent.per_site.items() if self.spent else ():
            for line, event in zip(
                content["spent"]["per_site"][site]["ledger"], own.ledger, strict=True
            ):
                line["rho"] = event.rho
        nothing = {
            "epsilon": None,
            "delta": None,
            "accountant": None,
            "claim": content.pop("claim"),
        }
        spent, exchange = content.pop("spent") or nothing, content.pop("exchange")
        measured = content.pop("measured") or {}
        errors = measured.pop("errors", None) or {}
        unknown = dict.fromkeys(("rmse", "fit", "fms", "auc"))
        return {**content, **spent, **unknown, **exchange} | errors | measured

    @classmethod
    def from_dict(cls, content: object) -> Summary:
        """Read what `to_dict` gave; unknown keys are left alone."""
        if not isinstance(content, Mapping):
            raise DataError("must be an object")
        errors = content if _has_any(Errors, content) else None
        measured = errors or _has_any(Measured, content)
        parts = {
            "spent": None if content.get("privacy") == "none" else content,
            "exchange": content,
            "measured": {**content, "errors": errors} if measured else None,
        }
        return parse_as(cls, {**content, **parts}, unnamed=(*parts, "errors"))


def _has_any(part: type[Errors | Measured], content: Mapping[str, Any]) -> bool:
    """Whether anything in a part is known."""
    return any(content.get(field.name) is not None for field in fields(part))
