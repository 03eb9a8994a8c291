"""The result of a run as one typed value: what ``summary.json`` holds and everybody reads.

The file is one flat page of keys. Each is a field here, of the class that says when it is known:
what the server knows of every run, what noise has cost, what a simulation could measure. In the
file, where something is not known its first keys are null and the others are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dpfact_flower.data.site_data import DIED
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.typed import lacks, typed
from dpfact_flower.privacy.events import Neighbours, Unit


@dataclass(frozen=True)
class SpentRelease:
    """A line of a site's ledger: the fields of `ReleaseEvent`, and what the event costs in zCDP."""

    name: str
    sensitivity: float
    sigma: float
    count: int
    unit: Unit
    neighbours: Neighbours
    claim: str
    seeded: bool
    rho: float


@dataclass(frozen=True)
class Spending:
    """What releases have cost: a `Guarantee`, as `Guarantee.to_dict` writes it.

    Attributes
    ----------
    epsilon : float
        By `accountant`, at `delta`.
    delta : float
    accountant : str
    claim : str
        Who vouches for every epsilon; appears wherever one is shown.
    unit, neighbours : str
        As in `ReleaseEvent`.
    releases : int
    rho, mu : float
        In zCDP and in Gaussian DP.
    epsilons : dict of str to float
        By name of the accountant, `accountant` first.
    replacing : float or None
        Epsilon by `accountant` for replacing a patient's record, where `epsilon` is for adding or
        removing one.
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
    replacing: float | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class SiteSpending(Spending):
    """What one site has spent in the run, and on which releases."""

    ledger: tuple[SpentRelease, ...]


@dataclass(frozen=True)
class RunSpending(Spending):
    """What a run cost the patients of the site that spent the most, and every site's own spending.

    Attributes
    ----------
    unit_in_words, neighbours_in_words : str
    not_covered : tuple of str
        Sentences.
    per_site : dict of str to SiteSpending
        By the site's name.
    """

    unit_in_words: str
    neighbours_in_words: str
    not_covered: tuple[str, ...]
    per_site: dict[str, SiteSpending]


@dataclass(frozen=True)
class Exchange:
    """What went between the server and its sites, all rounds together.

    Attributes
    ----------
    bytes_up, bytes_down : int
        Messages as Flower serialises them.
    seconds : float
        Of the rounds.
    bytes_paper, bytes_trip : int
        What as many rounds would send, both ways together, in the schemes of DPFact and of TRIP.
    transfer_seconds_at_15_MB_s : float
        At the paper's assumed rate.
    failures : int
        Replies that were asked for and not usable.
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
    """A site's data, and how much of it the site's own model explains."""

    site: str
    patients: int
    nonzeros: int
    fit: float


@dataclass(frozen=True)
class Errors:
    """Errors of the sites' own models over all sites' data.

    Attributes
    ----------
    rmse, rmse_nonzeros, rmse_authors, fit : float
        After the last round: the three measures of `RMSE`, and the share of the data explained.
    error_by_round : tuple of RoundErrors
    solver_seconds : float
        Of all sites in all rounds.
    per_site_data : tuple of SiteFit
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
    """The predictions for one group of patients.

    Attributes
    ----------
    group : str
        A site's name, or ``overall``.
    patients : int
        Patients with a label.
    memberships : AUC or None
        From the patients' factor.
    raw_codes : AUC or None
        Baseline: from which codes a patient has at all.
    volume : AUC or None
        Baseline: from the sum of a patient's counts alone.
    reason : str or None
        Why there are no figures, where there are none.
    """

    group: str
    patients: int
    memberships: AUC | None = None
    raw_codes: AUC | None = None
    volume: AUC | None = None
    reason: str | None = None


@dataclass(frozen=True)
class OutcomePrediction:
    """Outcome of `predict_outcome`; holds no patient's values.

    Attributes
    ----------
    overall : GroupAUC
        One model over the patients of all sites that have labels.
    sites : tuple of GroupAUC
        A model of its own for each site, trained and tested there.
    splits : int
        Repetitions.
    train : float
        Share of the patients that train.
    """

    overall: GroupAUC
    sites: tuple[GroupAUC, ...]
    splits: int
    train: float


@dataclass(frozen=True)
class Measured:
    """What a simulation can measure, since all sites' data is on one machine.

    Attributes
    ----------
    fms : float or None
        Factor match score with the planted phenotypes, where these are known.
    auc : float or None
        Mean AUC of all sites' patients by their memberships, of the first label where there is one.
    predictions : dict of str to OutcomePrediction
        By name of the label: such AUCs with their baselines.
    sites_without_a_round : tuple of str
        Names of the sites that finished none; nothing was measured there.
    errors : Errors or None
        None if there is no round after which all sites measured them.
    fit_shared, fit_frequencies : float or None
        Share of the data that the shared factors explain with every patient refitted to them, and
        that the frequencies of codes do: a single component that knows no phenotype. None in what
        older versions wrote.
    """

    fms: float | None
    auc: float | None
    predictions: dict[str, OutcomePrediction]
    sites_without_a_round: tuple[str, ...]
    errors: Errors | None
    fit_shared: float | None = None
    fit_frequencies: float | None = None

    @property
    def prediction(self) -> OutcomePrediction | None:
        """Of the first label, where there is one."""
        return next(iter(self.predictions.values()), None)

    @property
    def explains_nothing(self) -> bool:
        """Whether the shared factors explain no more than the frequencies of codes."""
        if self.fit_shared is None or self.fit_frequencies is None:
            return False
        return self.fit_shared <= self.fit_frequencies


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes
    ----------
    name : str
        Of the cohort, or in a deployment of the job.
    sites : int
        Sites whose releases were used.
    rounds : int
        Rounds in which the model was updated.
    rank : int
        Number of phenotypes.
    solver, scale, privacy : str
        As in the settings.
    row_unit : str
        What the sites' rows are, as far as the server knows: ``patient``, or ``discharge``.
    claim : str
        What protects the patients, in words; that of `spent` where noise was added.
    spent : RunSpending or None
        None in mode "none".
    exchange : Exchange
    measured : Measured or None
        None in a deployment.
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

    @property
    def errors(self) -> Errors | None:
        """Errors, where they were measured."""
        return self.measured.errors if self.measured else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, in the order of ``summary.json``."""
        content = asdict(self)
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
        """Read what `to_dict` gave; keys that it does not know are left alone.

        Raises
        ------
        DataError
            Naming the keys that are missing, or whose values are not what they must be.
        """
        if not isinstance(content, Mapping):
            raise DataError("must be an object")
        if content.get("prediction") is not None:  # earlier versions knew of one outcome
            content = {"predictions": {DIED: content["prediction"]}, **content}
        errors = content if _has_any(Errors, content) else None
        measured = errors or _has_any(Measured, content)
        spent = content.get("privacy") != "none"
        if spent:
            content = {"replacing": None, **content}  # earlier runs have none
        parts = {
            "spent": content if spent else None,
            "exchange": content,
            "measured": {**content, "errors": errors} if measured else None,
        }
        summary = typed(cls, {**content, **parts}, unnamed=(*parts, "errors"))
        known = summary.to_dict()
        missing = [key for key in known if key not in content and key not in _LATER]
        if missing:
            raise DataError(lacks(missing))
        for key, value in known.items():
            if value is None and content.get(key) is not None:
                raise DataError(f"{key} must be null, as nothing that belongs to it is there")
        return summary


_LATER = ("fit_shared", "fit_frequencies")
"""Keys that older versions did not write."""


def _has_any(part: type[Errors | Measured], content: Mapping[str, Any]) -> bool:
    """Whether anything in a part is known."""
    return any(content.get(field.name) is not None for field in fields(part))
