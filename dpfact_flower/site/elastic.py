"""In modes "none" and "paper", factorise a site's data and release the feature factors."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, MessageError, shown
from dpfact_flower.estimation.codes import paired_codes
from dpfact_flower.privacy import Noise, Release, ReleaseEvent, release_unprotected
from dpfact_flower.privacy.noise import SIGMA
from dpfact_flower.privacy.paper import paper_events, paper_rho, perturb
from dpfact_flower.privacy.patient.statistics import code_counts, cooccurrence
from dpfact_flower.site.local_fit import local_settings, scaled, solved
from dpfact_flower.site.round import JobState, RoundOutcome, RoundWork, check_modes, stream
from dpfact_flower.site.store import SiteState
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.solver.mttkrp import inner_product
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.tensor.cp import norm_squared
from dpfact_flower.wire.protocol import RoundRequest

_FINEST = SIGMA * 2.0**-30
"""Sigma for a grid spacing of 2^-30, which is finer than float32 and does not overflow int64."""


class ElasticRound(RoundWork):
    """A site's work in a round of mode "none" or "paper"."""

    def __init__(
        self, vocabularies: Sequence[Vocabulary], request: RoundRequest, *, site: str,
        simulation: bool,
    ) -> None:  # fmt: skip
        if request.privacy.privacy == "patient":
            raise MessageError("request: the rule 'elastic' has no mode 'patient'")
        sizes = [len(vocabulary) for vocabulary in vocabularies]
        selected = tuple(map(len, request.selection))
        if selected and selected != paired_codes(sizes):
            raise MessageError(
                f"request: a start needs {paired_codes(sizes) or 'all'} codes of each mode, "
                f"got a selection of {shown(selected)}"
            )
        check_modes(request, sizes)
        self._modes = [vocabulary.name for vocabulary in vocabularies]
        self._request, self._site = request, site
        self._noise = Noise.from_settings(
            request.privacy, stream=stream(request, site), simulation=simulation
        )
        self.charged_rounds = request.rounds - request.round + 1

    def cost(self) -> tuple[ReleaseEvent, ...]:
        """Return the cost of all remaining rounds: one event per factor, or () in mode "none"."""
        request, modes = self._request, self._modes
        if request.privacy.privacy == "none":
            return ()
        sizes = {mode: anchor.size for mode, anchor in zip(modes, request.anchors, strict=True)}
        rho = self.charged_rounds * paper_rho(request.privacy, request.rounds, len(modes))
        return paper_events(
            request.solver, rho, sizes, round_number=request.round, seeded=self._noise.seeded
        )

    def run(self, data: SiteData, kept: JobState) -> RoundOutcome:
        """Factorise data and release the feature factors, as in Algorithm 1 of the DPFact paper."""
        request, tensor = self._request, data.tensor
        if not tensor.nnz:
            raise DataError("the site's tensor has no non-zeros: nothing can be learned from it")
        if request.privacy.privacy == "none" and not request.anchors:
            return RoundOutcome(_unprotected_start(tensor, request))
        tensor = scaled(tensor, request.solver)
        rng = np.random.default_rng(stream(request, self._site))
        began = time.perf_counter()
        start = initial_state(tensor, request, rng, kept.state)
        solver = local_settings(request, start.factors)
        state, measures = solved(tensor, start, request, solver, rng, began)
        return RoundOutcome(self._release(state.factors[1:]), state, measures)

    def _release(self, features: Factors) -> Release:
        request = self._request
        if request.privacy.privacy == "none":
            return release_unprotected(features)
        return perturb(
            features, request.solver, paper_rho(request.privacy, request.rounds, len(features)),
            self._noise, round_number=request.round, modes=self._modes,
        )  # fmt: skip


def initial_state(
    tensor: SparseTensor, request: RoundRequest, rng: np.random.Generator,
    kept: SiteState | None = None,
) -> SiteState:  # fmt: skip
    """Return a round's initial factors. `kept` is the site's state after an earlier round.

    With a relative elastic weight, a site starts from the global factors, because its own factors
    could overfit. With the DPFact paper's elastic weight, the site starts from its own factors.

    If `kept` is None, a new patient factor is made. With the paper's weight, a random factor is
    scaled to give the model the norm of the data. With a relative weight, a random factor is scaled
    to minimise the error in round 1, and the factor is fitted to the data in later rounds.
    """
    relative = request.solver.is_relative
    if kept is not None:
        return replace(kept, factors=(kept.factors[0], *request.anchors)) if relative else kept
    if relative and request.round > 1:
        fitted = fitted_patients(tensor, request.anchors, nonnegative=request.solver.nonnegative)
        return SiteState(0, (fitted, *request.anchors), request.solver.eta)
    patients = rng.random((tensor.n_patients, request.solver.rank), dtype=np.float32) + 1e-3
    factors = (patients, *request.anchors)
    norm = max(norm_squared(factors), float(np.finfo(np.float32).tiny))
    if relative:
        scale = inner_product(tensor, factors) / norm
    else:
        scale = math.sqrt(tensor.norm_squared() / norm)
    patients *= np.float32(scale)
    return SiteState(0, factors, request.solver.eta)


def _unprotected_start(tensor: SparseTensor, request: RoundRequest) -> Release:
    """Release co-occurrences WITHOUT noise. For long code lists, release code counts in round 1."""
    if request.selection:
        tensor = tensor.select_features(request.selection)
    counts_first = not request.selection and paired_codes(tensor.feature_shape)
    statistic_of = code_counts if counts_first else cooccurrence
    statistic = statistic_of(tensor, sigma=_FINEST)
    return release_unprotected([statistic.total * statistic.grid])
