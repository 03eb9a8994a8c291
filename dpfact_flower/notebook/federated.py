"""Run DPFact in this process, with `federate` or the scikit-learn estimator `DPFactPhenotyper`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from dpfact_flower.client_app import simulated_settings
from dpfact_flower.data.clinical_events import Options
from dpfact_flower.data.readers import frames
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.tables import columns_of
from dpfact_flower.data.vocabulary import Vocabulary, joint_digest
from dpfact_flower.errors import DataError, PrivacyRefusedError, QuorumError, SettingsError
from dpfact_flower.evaluation.model import SITE, GlobalModel, Memberships
from dpfact_flower.evaluation.page import library
from dpfact_flower.machine.files import private_scratch
from dpfact_flower.machine.logs import flower_quiet
from dpfact_flower.notebook.run import Run
from dpfact_flower.runtime import serve as runtime
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.settings import Scalar, SiteSettings
from dpfact_flower.tensor.sparse import SparseTensor, as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame


def federate(
    config: Mapping[str, Scalar] | None = None,
    *,
    sites: Any = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    window_days: int | None = 30,
    out: str | Path | None = None,
    state_dir: str | Path | None = None,
    max_epsilon: float = 0.0,
    measure: bool = True,
    verbose: bool = False,
    **settings: Scalar,
) -> Run:
    """Run DPFact with all sites in this process, in parallel threads.

    The results are the same as those of `flwr run`. Neither Ray nor a network is needed.

    Parameters
    ----------
    config : mapping, optional
        A run config with hyphenated keys, as in a run's ``config.toml`` (see ``dpfact settings``).
        The config must set `data` and `out`. Give either `config` or `sites`, not both.
    sites : optional
        The sites' data, in any form that `as_cohort` accepts.
    vocabularies, window_days
        See `as_cohort`. If `sites` already has code lists, pass these lists or None.
    out : path, optional
        Folder for the run's files. By default, a run on `sites` stays in memory (see `Run.save`).
    state_dir : path, optional
        Folder for each site's ledger and own model. Without `state_dir`, the ledgers of `sites` are
        deleted after the run and cannot limit later runs. If `sites` and `state_dir` are given, a
        run with noise needs `max_epsilon`, and patient mode needs `patients`.
    max_epsilon : float
        Limit on each site's epsilon over all runs with this `state_dir`. A run that would exceed
        the limit is refused before any patient's data is read. 0 means no limit.
    measure : bool
        Whether to measure the result (fit, prediction of outcomes, usage by site).
    verbose : bool
        Whether to show Flower's log.
    **settings
        Any run settings, spelled with underscores, such as ``rank=12, epsilon=4.0``.
    """
    if not isinstance(config, Mapping | None):
        raise SettingsError(
            "federate: pass data by name: federate(sites=read_events(frame)) for events, or "
            "federate(sites=frame) for a row per patient"
        )
    given = {**(config or {}), **{key.replace("_", "-"): value for key, value in settings.items()}}
    if (sites is None) == (config is None and "data" not in given):
        raise SettingsError("federate: give either sites or a run config with data")
    if sites is None and (vocabularies or window_days != 30 or max_epsilon or not measure):
        raise SettingsError("vocabularies, window_days, max_epsilon, measure: need sites=")
    with flower_quiet(not verbose):
        if sites is None:
            places = {"out": out, "state-dir": state_dir}
            given |= {key: str(place) for key, place in places.items() if place is not None}
            return Run.read(runtime.federate_config(given))
        state_dir = state_dir or str(given.pop("state-dir", "")) or None
        cohort = as_cohort(sites, vocabularies=vocabularies, window_days=window_days)
        if vocabularies and joint_digest(vocabularies) != joint_digest(cohort.vocabularies):
            raise SettingsError("vocabularies: differ from the sites' own; read their data again")
        if not any(site.tensor.nnz for site in cohort.sites):
            raise DataError("sites: none has a value above 0, so there is nothing to learn from")
        with private_scratch() as folder:
            given |= {
                "data": "",
                "out": str(out or Path(folder, "run")),
                "state-dir": str(state_dir or Path(folder, "sites")),
            }
            checked = RunConfig.read(given)
            site_settings = _own_settings(checked, max_epsilon) if state_dir else None
            if max_epsilon and site_settings is None:
                raise SettingsError(
                    "max_epsilon: needs state_dir, the folder in which spending is recorded"
                )
            try:
                place = runtime.federate_cohort(
                    cohort, checked, own=site_settings, measured=measure, report=bool(out)
                )
            except QuorumError as error:
                code = f"{PrivacyRefusedError.code}: "
                _, refused, reason = "; ".join(error.reasons).partition(code)
                if site_settings is None or not refused:
                    raise
                raise PrivacyRefusedError(
                    f"{reason}; see dpfact ledger show {site_settings.state_dir} --site NAME"
                ) from None
            run = Run.read(place)
    return run if out else replace(run, folder=None)


def _own_settings(config: RunConfig, max_epsilon: float) -> SiteSettings:
    """Return site settings that allow only `config`'s privacy mode and at most `max_epsilon`."""
    privacy = config.privacy
    if privacy.privacy == "patient" and not privacy.patients:
        raise SettingsError(
            "patients: with a state_dir, give a public estimate of the number of patients at all "
            "sites; their exact number would be released without noise"
        )
    if privacy.privacy != "none" and not max_epsilon:
        raise SettingsError(
            "max_epsilon: with a state_dir, give the epsilon that each site may spend over all runs"
        )
    return replace(
        simulated_settings(config.app.sites_folder),
        allow_privacy=privacy.privacy,
        max_epsilon=max_epsilon,
        budget_delta=privacy.delta,
        max_rank=max(config.solver.rank, SiteSettings().max_rank),  # each site reserves its space
    )


_COHORT_NAME = "sites"
ONE_MODE = "codes"  # the single feature mode of a matrix


def as_cohort(
    given: Any,
    *,
    vocabularies: Sequence[Vocabulary] | None = None,
    window_days: int | None = 30,
    keep_empty: bool = False,
) -> Cohort:
    """Return a cohort of the given sites.

    Parameters
    ----------
    given : Cohort, one site, sequence of sites, or mapping of name to site
        A site is a `SiteData`, a `SparseTensor`, a scipy.sparse matrix, a pyttb.sptensor, a
        sparse.COO or an array, with patients as the first mode. A site can also be a DataFrame with
        a row per patient and a column per code, or a DataFrame of events (see `frames`). Events are
        split into sites if they have a column ``site``. Unnamed sites are called ``site-1``, etc.
    vocabularies : sequence of Vocabulary, optional
        Public code lists, one per feature mode. By default, a tensor's codes are called ``x0``,
        ``x1`` and so on, and code lists for events are made from the data. A run's result reveals
        code lists made from the data, and epsilon does not cover these lists.
    window_days : int or None
        For events only; see `frames.read_events`.
    keep_empty : bool
        For events only: whether to keep patients without any entry in the tensor.
    """
    vocabularies = Options(vocabularies=vocabularies).vocabularies
    if isinstance(given, Cohort):
        return given
    named = _named(given)
    if all(frames.holds_events(site) for site in named.values()):
        options: dict[str, Any] = {
            "vocabularies": vocabularies, "window_days": window_days, "keep_empty": keep_empty,
        }  # fmt: skip
        if len(named) > 1:
            return frames.read_sites(named, _COHORT_NAME, **options)
        ((name, frame),) = named.items()
        return frames.read_events(frame, name, **options)
    sites = [_site(name, site, vocabularies) for name, site in named.items()]
    return Cohort(_COHORT_NAME, tuple(sites))


def _is_site(given: Any) -> bool:
    return not isinstance(given, Cohort) and len(getattr(given, "shape", ())) > 1


def _holds_sites(given: Any) -> bool:
    return isinstance(given, (Cohort, Mapping)) or (
        isinstance(given, (list, tuple)) and len(given) > 0 and all(map(_is_site, given))
    )


def _rows_of(given: Any) -> tuple[str, ...] | None:
    """Return a DataFrame's index, or None for other objects. Refuse columns of events."""
    if odd := {name.lower() for name in columns_of(given)} & {"patient", "site", "time"}:
        raise DataError(
            f"sites: all columns are codes, not {min(odd)}; in pandas, use set_index, or delete it"
        )
    return tuple(map(str, given.index)) if hasattr(given, "index") else None


def _named(given: Any) -> dict[str, Any]:
    pairs: list[tuple[str, Any]] = []
    if isinstance(given, Mapping):
        pairs = [(str(name), site) for name, site in given.items()]
    elif _is_site(given) or _holds_sites(given):
        for number, site in enumerate([given] if _is_site(given) else given, start=1):
            name = site.name if isinstance(site, SiteData) else f"site-{number}"
            pairs.append((name, site))
    named: dict[str, Any] = {}
    for name, site in pairs:
        if name in named:
            raise DataError(f"sites: two are called {name}; give each site its own name")
        named[name] = site
    if not named or not all(map(_is_site, named.values())):
        raise DataError(
            "sites: need a Cohort, a site, a list of sites or a mapping of names to sites; a site "
            "is a SiteData, a SparseTensor, a sparse matrix or tensor, an array or a DataFrame"
        )
    return named


def _site(name: str, given: Any, vocabularies: Sequence[Vocabulary] | None) -> SiteData:
    if isinstance(given, SiteData):
        return replace(given, name=name)
    if frames.holds_events(given):
        raise DataError(
            f"site {name}: is a DataFrame of events, but other sites are not; make a SiteData of "
            "each site, all with the same vocabularies"
        )
    if codes := columns_of(given):  # a frame with a row per patient
        rows, columns = _rows_of(given), Vocabulary(ONE_MODE, tuple(codes))
        lists = vocabularies or (columns,)
        if lists[0].codes != columns.codes:
            raise DataError(f"site {name}: columns must be the vocabulary's codes, in its order")
        table = given.fetchnumpy() if hasattr(given, "fetchnumpy") else given  # DuckDB masks NULL
        # The columns of pandas and DuckDB may differ in type.
        parts = [column for _, column in table.items()] if hasattr(table, "items") else [table]
        try:
            tensor = as_tensor(np.ma.column_stack([*map(np.asanyarray, parts)]))
        except (DataError, TypeError) as error:  # NumPy cannot stack numbers and dates
            why = error if isinstance(error, DataError) else "need numbers in every column"
            raise DataError(
                f"site {name}: {why}. If the rows are events, read them with read_events"
            ) from None
        return SiteData(name, tensor, tuple(lists), patients=rows)
    tensor = as_tensor(given)
    names = [ONE_MODE] if tensor.ndim == 2 else [f"mode-{n}" for n in range(1, tensor.ndim)]
    numbered = [
        Vocabulary(mode, _numbered(size))
        for mode, size in zip(names, tensor.feature_shape, strict=True)
    ]
    return SiteData(name, tensor, tuple(vocabularies or numbered))


def _numbered(size: int) -> tuple[str, ...]:
    return tuple(f"x{code}" for code in range(size))


class DPFactPhenotyper(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # not typed
    """A scikit-learn estimator that learns phenotypes jointly across sites.

    `fit` performs a whole federated run in this process, with the noise that the privacy mode
    requires. `transform` computes the scores of training or new patients. No privacy guarantee
    covers the scores, so they must stay at the patients' site. Sites and cohorts can be indexed by
    patient, so cross-validation can split them. `y` and sample weights are not used.

    Parameters
    ----------
    rank : int
    privacy : {"patient", "none", "paper"}
        "patient" gives each patient a proven guarantee. "none" gives no protection.
    epsilon, delta : float
        Privacy parameters of one `fit`.
    rounds : int
        Number of federated rounds. In patient mode, the plan determines the number of rounds.
    random_state : int, RandomState instance or None
        Public seed, which does not seed the noise.
    vocabularies, window_days
        See `dpfact_flower.notebook.federated.as_cohort`.
    state_dir, max_epsilon
        See `dpfact_flower.federate`. If `state_dir` is None, **ledgers last for one fit**: each fit
        spends `epsilon` again on the same patients, and no ledger records the total.
        Cross-validation with k folds needs k fits, and each fit spends `epsilon`.
    settings : mapping, optional
        Any other run settings, spelled with underscores; see ``dpfact settings``. In patient mode,
        ``patients`` should be a public estimate of the number of patients at all sites. By default,
        the noise is planned for the exact number of patients, as if the number were public.

    Attributes
    ----------
    model_ : GlobalModel
        The phenotypes, with their codes.
    vocabularies_ : tuple of Vocabulary
        The code lists that `fit` used. In patient mode, the model may lack some of these codes.
    run_ : Run
        The run, with its `guarantee`, ledger and history.
    n_features_in_, feature_names_in_
        As in scikit-learn, if the patients were given as a matrix.

    Examples
    --------
    >>> from dpfact_flower import DPFactPhenotyper
    >>> X = [[3, 2, 0, 0], [4, 3, 0, 0], [0, 0, 2, 5], [0, 0, 1, 3]]
    >>> found = DPFactPhenotyper(rank=2, privacy="none").fit(X)
    >>> found.transform(X).shape
    (4, 2)
    """

    def __init__(
        self,
        rank: int = 12,
        *,
        privacy: str = "patient",
        epsilon: float = 4.0,
        delta: float = 1e-5,
        rounds: int = 40,
        random_state: int | np.random.RandomState | None = 0,
        vocabularies: Sequence[Vocabulary] | None = None,
        window_days: int | None = 30,
        state_dir: str | Path | None = None,
        max_epsilon: float = 0.0,
        settings: Mapping[str, Scalar] | None = None,
    ) -> None:
        self.rank = rank
        self.privacy = privacy
        self.epsilon = epsilon
        self.delta = delta
        self.rounds = rounds
        self.random_state = random_state
        self.vocabularies = vocabularies
        self.window_days = window_days
        self.state_dir = state_dir
        self.max_epsilon = max_epsilon
        self.settings = settings

    def fit(self, X: Any, y: Any = None) -> Self:
        """Run DPFact on the sites in `X`, which may have any form that `as_cohort` accepts."""
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        own: dict[str, Any] = {
            "rank": self.rank, "privacy": self.privacy, "epsilon": self.epsilon,
            "delta": self.delta, "rounds": self.rounds, "seed": seed,
            "vocabularies": self.vocabularies, "window_days": self.window_days,
            "state_dir": self.state_dir, "max_epsilon": self.max_epsilon, "measure": False,
        }  # fmt: skip
        others: Mapping[str, Any] = self.settings or {}
        if twice := {*own, "sites"} & {key.replace("-", "_") for key in others}:
            raise SettingsError(f"settings: cannot hold {min(twice)}; use parameters instead")
        self.run_: Run = federate(sites=self._cohort(X, reset=True), **own, **others)
        self.model_: GlobalModel = self.run_.model
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return every patient's score for each phenotype, shape (patients, rank).

        Patients are in the order of `X`, site by site. If `X` contains events, the index of
        ``memberships(X)`` names the patients, and ``set_output(transform="pandas")`` fails.
        """
        return np.concatenate([site.scores for site in self._memberships(X).values()])

    def memberships(self, X: Any) -> DataFrame:
        """Return the result of `transform` as a DataFrame, indexed by patient.

        If there are several sites, the index also has a level ``site``.
        """
        by_site = {name: site.to_frame() for name, site in self._memberships(X).items()}
        table = library("pandas").concat(by_site, names=[SITE])
        return table if len(by_site) > 1 else table.droplevel(SITE)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the column names of the result of `transform`, such as ``phenotype_3``."""
        check_is_fitted(self)
        return np.array(self.model_.headings, dtype=object)

    @property
    def components_(self) -> NDArray[np.float32]:
        """The phenotypes as rows, shape (rank, codes), with the codes of all modes as columns."""
        check_is_fitted(self)
        return np.concatenate(self.model_.factors).T

    @property
    def codes_(self) -> NDArray[Any]:
        """Names of the columns of `components_` (``mode=code``, or ``code`` for a single mode)."""
        check_is_fitted(self)
        lists = self.model_.vocabularies
        names = [f"{v.name}={code}" if len(lists) > 1 else code for v in lists for code in v.codes]
        return np.array(names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = self.privacy != "none"
        return tags

    def _memberships(self, X: Any) -> dict[str, Memberships]:
        check_is_fitted(self)
        sites = self._cohort(X, reset=False).sites
        return {site.name: self.model_.memberships(site) for site in sites}

    def _cohort(self, X: Any, *, reset: bool) -> Cohort:
        """Return a cohort of the sites in `X`. If `X` is a matrix, use scikit-learn's checks."""
        given = self.vocabularies if reset else self.vocabularies_
        lists = Options(vocabularies=given).vocabularies
        is_table = len(getattr(X, "shape", ())) == 2 and not hasattr(X, "subs")
        is_ours = isinstance(X, (Cohort, SiteData, SparseTensor)) or frames.holds_events(X)
        if (is_table and not is_ours) or not (_is_site(X) or _holds_sites(X)):
            X = self._site_of_matrix(X, lists, reset=reset)
        elif reset:
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
        with flower_quiet():  # readers still warn about data that they leave out
            cohort = as_cohort(
                X, vocabularies=lists, window_days=self.window_days, keep_empty=not reset
            )
        if reset:
            self.vocabularies_: Sequence[Vocabulary] = cohort.vocabularies
        return cohort

    def _site_of_matrix(
        self, X: Any, lists: Sequence[Vocabulary] | None, *, reset: bool
    ) -> SiteData:
        rows = _rows_of(X) if columns_of(X) else None
        try:
            checked = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=np.float64,
                ensure_min_features=2 if reset else 1,
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            if "could not" not in str(error):
                raise
            raise DataError(  # scikit-learn's message quotes text, perhaps from a patient
                "X: need numbers in every column. If rows are events, read them with read_events"
            ) from None
        check_non_negative(checked, type(self).__name__)
        to_sites = not hasattr(self, "n_features_in_")  # scikit-learn knows no names after this fit
        names = columns_of(X) if to_sites else getattr(self, "feature_names_in_", ())
        known = [Vocabulary(ONE_MODE, tuple(names))] if len(names) else None
        if known and lists and lists[0].codes not in (known[0].codes, _numbered(len(names))):
            raise DataError("X: columns must be the vocabulary's codes, in its order")
        site = _site("site-1", checked, lists or known)
        return replace(site, patients=rows if rows and len(set(rows)) == len(rows) else None)
