"""`DPFactPhenotyper`: a federated run as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, check_non_negative, validate_data

from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.tables import columns_of
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError
from dpfact_flower.evaluation.model import GlobalModel, Memberships, pandas
from dpfact_flower.machine.logs import flower_quiet
from dpfact_flower.notebook.federated import (
    ONE_MODE,
    as_cohort,
    federate,
    holds_sites,
    is_matrix,
    is_site,
    numbered,
    rows_of,
)
from dpfact_flower.notebook.run import Run
from dpfact_flower.settings import Scalar
from dpfact_flower.tensor.sparse import as_tensor

if TYPE_CHECKING:
    from pandas import DataFrame


class DPFactPhenotyper(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # not typed
    """A scikit-learn estimator for phenotypes that sites learn together.

    `fit` performs a whole federated run in this process, with the noise that the privacy mode
    requires. `transform` fits old or new patients to the phenotypes. No privacy guarantee covers
    the resulting scores, so only the site that holds the patients may see their scores.

    Parameters
    ----------
    rank : int
    privacy : {"patient", "none", "paper"}
        "patient" gives each patient a proven guarantee. "none" gives no protection.
    epsilon, delta : float
        Privacy parameters of one `fit`.
    rounds : int
        Number of federated rounds. Patient mode ignores this setting and plans the number itself.
    random_state : int, RandomState instance or None
        Public seed. Noise has no seed, so two fits with noise always differ.
    vocabularies, window_days
        See `dpfact_flower.notebook.federated.as_cohort`.
    state_dir, max_epsilon
        See `dpfact_flower.federate`. Without `state_dir`, **a ledger lasts for one fit**: each fit
        spends `epsilon` again on the same patients, and no ledger records the total.
        Cross-validation with k folds needs k fits.
    settings : mapping, optional
        Any other settings of a run, with underscores; see ``dpfact settings``. In patient mode,
        ``patients`` should be a public estimate. Without an estimate, the plan uses the exact
        number of patients, and treats this number as public.

    Attributes
    ----------
    model_ : GlobalModel
        The phenotypes, with their codes.
    vocabularies_ : tuple of Vocabulary
        The code lists that `fit` used. In patient mode the model may have only some of these codes.
    components_ : ndarray of float32, shape (rank, codes)
        The phenotypes as rows, with all feature modes side by side; see `codes_`.
    codes_ : ndarray of str, shape (codes,)
        Names of the columns of `components_`: ``mode=code``, or only the code if there is one mode.
    run_ : Run
        The run, with its `guarantee`, ledger and history.
    n_features_in_ : int
        Number of columns, if the patients were given as a matrix.
    feature_names_in_ : ndarray of str
        Names of the columns, if the matrix had any.

    Notes
    -----
    Sites and cohorts can be indexed by patient, so both can be cross-validated directly. `y` and
    sample weights are not used.

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
        """Run DPFact on the sites.

        Parameters
        ----------
        X : sites, in any of the forms of `dpfact_flower.notebook.federated.as_cohort`
            A matrix with a row per patient is one site.
        """
        self.run_: Run = federate(
            sites=self._cohort(X, reset=True),
            measure=False,
            state_dir=self.state_dir,
            max_epsilon=self.max_epsilon,
            **self._run_settings(),
        )
        self.model_: GlobalModel = self.run_.model
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:
        """Return every patient's score for each phenotype, shape (patients, rank).

        Patients are in the order of X, one site after the other. If X has events, `memberships`
        shows the order of the patients.
        """
        return np.concatenate([site.scores for site in self._memberships(X)])

    def memberships(self, X: Any) -> DataFrame:
        """Return the result of `transform` as a DataFrame, indexed by the patients' identifiers."""
        return pandas().concat([site.to_frame() for site in self._memberships(X)])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the column names of the result of `transform`, such as ``phenotype_3``."""
        check_is_fitted(self)
        return np.array(self.model_.headings, dtype=object)

    @property
    def components_(self) -> NDArray[np.float32]:
        """The phenotypes as rows."""
        check_is_fitted(self)
        return np.concatenate(self.model_.factors).T

    @property
    def codes_(self) -> NDArray[Any]:
        """Code names for the columns of `components_`."""
        check_is_fitted(self)
        lists = self.model_.vocabularies
        named = [(v.name if len(lists) > 1 else "", code) for v in lists for code in v.codes]
        return np.array([f"{mode}={code}" if mode else code for mode, code in named], dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = []
        tags.non_deterministic = self.privacy != "none"
        return tags

    def _run_settings(self) -> dict[str, Any]:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31 - 1)
        own = {
            "rank": self.rank, "privacy": self.privacy, "epsilon": self.epsilon,
            "delta": self.delta, "rounds": self.rounds, "seed": seed,
        }  # fmt: skip
        return {**own, **(self.settings or {})}

    def _memberships(self, X: Any) -> list[Memberships]:
        check_is_fitted(self)
        return [self.model_.memberships(site) for site in self._cohort(X, reset=False).sites]

    def _cohort(self, X: Any, *, reset: bool) -> Cohort:
        """Return the sites of X. Matrices are validated as in scikit-learn."""
        lists: Sequence[Vocabulary] | None = self.vocabularies if reset else self.vocabularies_
        if is_matrix(X) or not (is_site(X) or holds_sites(X)):
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
        rows = rows_of(X) if columns_of(X) else None
        try:
            checked = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=np.float64,
                accept_large_sparse=False, ensure_min_features=2 if reset else 1,
            )  # fmt: skip
        except ValueError as error:
            if "could not convert" not in str(error):
                raise
            raise DataError(  # scikit-learn's message quotes text that may be a patient's
                "X: could not convert text to numbers. If the rows are events, read them with "
                "read_events"
            ) from None
        check_non_negative(checked, f"{type(self).__name__}.fit")
        names = getattr(self, "feature_names_in_", None)
        known = None if names is None else [Vocabulary(ONE_MODE, tuple(names))]
        tensor = as_tensor(checked)
        return SiteData(
            "site-1", tensor, tuple(lists or known or numbered(tensor.feature_shape)),
            patients=rows if rows and len(set(rows)) == len(rows) else None,
        )  # fmt: skip
