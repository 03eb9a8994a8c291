"""Define the content of ``summary.json``, which is the result of a run.

The file has the fields of `spent`, `exchange`, `measured` and `errors` as top-level keys. If one of
these parts is None, the file omits the part's fields, except for `epsilon`, `delta`, `accountant`,
`rmse`, `fit`, `fms` and `auc`, which are null instead. All other values that are None are null.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpfact_flower.errors import DataError
from dpfact_flower.machine.parsed import parse_as
from dpfact_flower.privacy.release import Neighbours, ReleaseEvent, Unit


@dataclass(frozen=True)
class Spending:
    """The privacy cost of releases, as returned by `Guarantee.to_dict`.

    `claim` says what is proven about epsilon. In patient mode, `epsilon` applies to adding or
    removing a patient, and `replacing` is the epsilon for replacing a patient's record. With secure
    sums, `alone` is the epsilon that remains valid if all other sites collude with the server.
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
    """One site's privacy cost and releases. The file also has each release's zCDP cost ``rho``."""

    ledger: tuple[ReleaseEvent, ...]


@dataclass(frozen=True)
class RunSpending(Spending):
    """The privacy cost of the site that spent the most. `per_site` lists the cost of every site."""

    unit_in_words: str
    neighbours_in_words: str
    not_covered: tuple[str, ...]
    per_site: dict[str, SiteSpending]


@dataclass(frozen=True)
class Exchange:
    """The traffic between the server and the sites over all rounds, in bytes of Flower messages.

    `bytes_paper` and `bytes_trip` estimate how many bytes two published methods, DPFact and TRIP,
    would send instead. `failures` counts the requests without a usable reply.
    """

    bytes_up: int
    bytes_down: int
    seconds: float
    bytes_paper: int
    bytes_trip: int
    failures: int


@dataclass(frozen=True)
class RoundErrors:
    """The fit of the sites' models after a round, and RMSEs over all cells and non-zero cells."""

    round: int
    all_cells: float
    nonzeros: float | None
    fit: float


@dataclass(frozen=True)
class SiteFit:
    """The size of a site's data, and the share of the data that the site's own model explains."""

    site: str
    patients: int
    nonzeros: int
    fit: float


@dataclass(frozen=True)
class Errors:
    """Errors of the sites' own models in each round with all sites, and in the last such round."""

    rmse: float
    fit: float
    rmse_nonzeros: float
    error_by_round: tuple[RoundErrors, ...]
    solver_seconds: float
    per_site_data: tuple[SiteFit, ...]


@dataclass(frozen=True)
class AUC:
    """Area under the ROC curve on test patients: the mean and standard deviation over splits."""

    mean: float
    spread: float


@dataclass(frozen=True)
class GroupAUC:
    """AUCs for labelled patients. `group` is a site's name, or ``overall`` for all sites.

    The predictors are phenotype scores (`memberships`), the set of codes (`raw_codes`) and the sum
    of counts (`volume`). `reason` says why AUCs are missing.
    """

    group: str
    patients: int
    memberships: AUC | None = None
    raw_codes: AUC | None = None
    volume: AUC | None = None
    reason: str | None = None


@dataclass(frozen=True)
class OutcomePrediction:
    """AUCs that `predict_outcome` returns. `train` is the share of patients used for training."""

    overall: GroupAUC
    sites: tuple[GroupAUC, ...]
    splits: int
    train: float


@dataclass(frozen=True)
class Coherence:
    """The mean coherence of the phenotypes and, for comparison, of models with shuffled weights."""

    value: float
    by_chance: float


@dataclass(frozen=True)
class Measured:
    """Measures of a simulation, computed from all sites' data.

    `fms` is the factor match score with the true phenotypes, if these are known. `auc` is the AUC
    of predicting the first label. `errors` is None if the loss is not the squared error, or if no
    round included all sites. `fit_shared` is the share of the data that the shared factors explain
    with refitted patient factors. `fit_frequencies` is the share of the data that code frequencies
    alone explain. `coherence` is None if the model is uninformative or has no pairs of codes.
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
    def is_uninformative(self) -> bool:
        """Whether the shared factors explain no more of the data than code frequencies alone."""
        return self.fit_shared <= self.fit_frequencies


@dataclass(frozen=True)
class Summary:
    """The result of a run. `name` is the name of the cohort or, in a deployment, of the job.

    `sites` counts the sites whose releases were used, and `rounds` counts the rounds that updated
    the model. `row_unit` names what a row of the tensor represents, such as ``patient``.
    `false_discovery` lists each phenotype's estimated probability of being a false discovery.
    `read_report` has the reader's counts (see `Cohort`), rounded. `spent` is None in a run without
    noise. `measured` is None in a deployment, and in a simulation that was not measured.
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
    read_report: tuple[tuple[str, str, int], ...] = ()

    @property
    def errors(self) -> Errors | None:
        """The errors of the sites' models, or None if the errors were not measured."""
        return self.measured.errors if self.measured else None

    @property
    def predictions(self) -> dict[str, OutcomePrediction]:
        """The outcome predictions for each label, or an empty mapping if nothing was measured."""
        return self.measured.predictions if self.measured else {}

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json`` as plain values."""
        content = asdict(self)
        for site, own in self.spent.per_site.items() if self.spent else ():
            lines = content["spent"]["per_site"][site]["ledger"]
            for line, event in zip(lines, own.ledger, strict=True):
                line["rho"] = event.rho
        nothing = dict.fromkeys(("epsilon", "delta", "accountant"))
        nothing["claim"] = content.pop("claim")
        spent, exchange = content.pop("spent") or nothing, content.pop("exchange")
        measured = content.pop("measured") or {}
        errors = measured.pop("errors", None) or {}
        unknown = dict.fromkeys(("rmse", "fit", "fms", "auc"))
        return {**content, **spent, **unknown, **exchange} | errors | measured

    @classmethod
    def from_dict(cls, content: object) -> "Summary":
        """Read the result of `to_dict`. Unknown keys are ignored."""
        if not isinstance(content, Mapping):
            raise DataError("must be an object")
        errors = content if "error_by_round" in content else None
        parts = {
            "spent": None if content.get("privacy") == "none" else content,
            "exchange": content,
            "measured": {**content, "errors": errors} if "fit_shared" in content else None,
        }
        return parse_as(cls, {**content, **parts}, unnamed=(*parts, "errors"))
