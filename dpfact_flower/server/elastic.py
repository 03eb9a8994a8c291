"""Implement the DPFact paper's elastic averaging, for the modes "none" and "paper"."""

from collections.abc import Mapping, Sequence

import numpy as np

from dpfact_flower.errors import SettingsError
from dpfact_flower.estimation.codes import kept_codes, paired_codes
from dpfact_flower.estimation.start import start_factors, usage_of
from dpfact_flower.estimation.surrogate_fit import fitted_to_surrogates
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.paper import paper_events, paper_rho
from dpfact_flower.server.rule import ServerRule, initial_factors, numbered, unnumbered
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.solver.solvers import solvers
from dpfact_flower.tensor import Array, Factors, Floats, Selection
from dpfact_flower.tensor.triangle import strict_size
from dpfact_flower.wire.protocol import SiteReply

_TINY = 1e-12
_ROUNDING = 1e-9
"""Tolerance for rounding errors in the product of the step and the number of sites."""
_LEAST = 1e-6
"""A code that was not selected for the start gets this entry in factor columns, whose norm is 1."""


class ElasticRule(ServerRule):
    """The server's rule for the DPFact paper's elastic averaging.

    The initial factors are drawn at random from the public seed. A run in mode "none" may instead
    start from co-occurrences (see `starts_from_cooccurrences`). With long code lists, such a start
    takes two rounds: one for code counts, and one for co-occurrences of the most frequent codes. In
    later rounds, a site's co-occurrences also determine the weight of the site's factors. A
    subclass that overrides `update` always starts from random factors.
    """

    name = "elastic"

    def __init__(
        self,
        feature_shape: Sequence[int],
        solver: SolverSettings,
        privacy: PrivacySettings,
        run: RunSettings,
    ) -> None:
        if privacy.privacy == "patient":
            raise SettingsError(
                "rule 'elastic': does not support privacy 'patient', which has its own rule"
            )
        self.rounds, self.privacy = run.rounds, privacy
        self.selection: Selection = ()
        self._sizes = [int(size) for size in feature_shape]
        self._paired = paired_codes(self._sizes)
        self.factors: Factors = initial_factors(feature_shape, solver.rank, run.seed)
        self.started = not starts_from_cooccurrences(feature_shape, privacy, run)
        if type(self).update is not ElasticRule.update:  # such a rule needs factors in every round
            if run.start == "cooccurrence":
                raise SettingsError("start: a rule with its own update method needs start 'random'")
            if run.aggregation == "async" and type(self).arrive is ElasticRule.arrive:
                raise SettingsError("aggregation: a rule with its own update method needs 'sync'")
            self.started = True
        self._usage: dict[str, Floats] = {}
        self._solver, self._run = solver, run

    def anchors(self, round_number: int) -> Factors:
        """Return the global factors, or an empty tuple if no factors have been computed yet."""
        return self.factors if self.started else ()

    def reply_shapes(self, round_number: int) -> list[tuple[int, ...]]:
        """Return the expected shapes of the arrays in a site's reply."""
        if self.started:
            return [factor.shape for factor in self.factors]
        if self._counts_codes:
            return [(sum(self._sizes),)]
        return [(strict_size(sum(self._paired or self._sizes)),)]

    def planned_events(self, round_number: int) -> tuple[ReleaseEvent, ...]:
        """Return one privacy event per factor in mode "paper", or an empty tuple in mode "none"."""
        if self.privacy.privacy == "none":
            return ()
        sizes = {f"mode {mode}": f.size for mode, f in enumerate(self.factors, start=1)}
        rho, seeded = paper_rho(self.privacy, self.rounds, len(sizes)), self.privacy.noise_seed >= 0
        return paper_events(self._solver, rho, sizes, round_number=round_number, seeded=seeded)

    def check_sites(self, sites: int) -> None:
        """Raise a `SettingsError` if the elastic step is unstable for `sites` sites."""
        elastic_step(self._solver, self._run.elastic_step, sites)

    def needs_quorum(self, round_number: int) -> bool:
        """Return whether a round computes the initial factors, on which all later rounds depend."""
        return not self.started and round_number <= start_rounds(self._sizes)

    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Compute initial factors from the replies, or pull the factors towards the sites' mean."""
        if self.started:
            self._pull(replies)
        elif self._counts_codes:
            counts = [array for (array,) in (reply.arrays for reply in replies)]
            self.selection = kept_codes(counts, self._sizes, self._paired)
        else:
            self._begin(replies)

    def arrive(
        self, round_number: int, replies: Sequence[SiteReply], shares: Sequence[float]
    ) -> None:
        """In asynchronous runs, pull the factors towards the sites' mean, weighted by `shares`."""
        self._pull(replies, shares)

    def state(self) -> dict[str, Array]:
        """Return the arrays for a checkpoint."""
        return {
            **numbered("factor", self.factors),
            **numbered("kept", self.selection),
            "started": np.array(self.started),
            "usage_sites": np.array(list(self._usage), np.str_),
            "usage": np.array(list(self._usage.values())),
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore the rule's state from arrays that `state` returned."""
        self.factors = unnumbered(arrays, "factor")
        self.selection = unnumbered(arrays, "kept")
        self.started = bool(arrays["started"])
        self._usage = dict(zip(arrays["usage_sites"].tolist(), arrays["usage"], strict=True))

    def _pull(self, replies: Sequence[SiteReply], shares: Sequence[float] = ()) -> None:
        """Pull the global factors towards the mean of the sites' factors, weighted by `shares`.

        In an asynchronous round, the calls for all replies together move the factors as far as one
        call would. Each call covers the same fraction of the remaining distance.
        """
        arrays = [reply.arrays for reply in replies]
        stale = any(share != 1 for share in shares)
        relative = self._solver.is_relative and self._run.elastic_step == 0
        if relative and (self._usage or stale):
            weights = self._weights([reply.site for reply in replies])
            if stale:
                weights *= np.array(shares)[:, np.newaxis]
                weights /= weights.sum(axis=0)
            modes = zip(*arrays, strict=True)
            means = (sum(f * w for f, w in zip(each, weights, strict=True)) for each in modes)
            self.factors = tuple(mean.astype(np.float32) for mean in means)
            return
        # Limit the step to a stable value, because sites may have joined after the first round.
        step = min(elastic_step(self._solver, self._run.elastic_step, 1), 1 / len(replies))
        if len(shares) > 1:
            remaining = 1 - step * len(replies)
            remaining = remaining if remaining > _ROUNDING else 0.0  # T * (1 / T) need not be 1
            step = (1 - remaining ** (1 / len(replies))) / len(replies)
        self.factors = elastic_average(self.factors, arrays, step, shares)

    @property
    def _counts_codes(self) -> bool:
        return bool(self._paired) and not self.selection

    def _begin(self, replies: Sequence[SiteReply]) -> None:
        sizes = self._paired or self._sizes
        rng = np.random.default_rng([self._run.seed, self._solver.rank, *sizes])
        released = [array for (array,) in (reply.arrays for reply in replies)]
        start = start_factors(released, sizes, self._solver.rank, 0.0, rng)
        factors = fitted_to_surrogates(start, released, 0.0, rng)
        usage = [usage_of(pairs, factors, 0.0)[0] for pairs in released]
        self.factors, self.selection = self._of_all_codes(factors), ()
        self.started = True
        self._usage = dict(zip((reply.site for reply in replies), usage, strict=True))

    def _of_all_codes(self, factors: Factors) -> Factors:
        """Return factors for all codes, with tiny entries for codes that were not selected."""
        if not self.selection:
            return factors
        wide = []
        for factor, positions, size in zip(factors, self.selection, self._sizes, strict=True):
            whole = np.full((size, self._solver.rank), _LEAST, np.float32)
            whole[positions] = factor
            wide.append(whole)
        return tuple(wide)

    def _weights(self, sites: Sequence[str]) -> Floats:
        """Return the sites' weights for each phenotype, as an array of shape (sites, phenotypes).

        Before normalisation, a weight is the curvature of the site's error plus a constant. The
        constant is the elastic pull times the site's mean curvature over phenotypes. The site's
        solver divides a phenotype's gradient by the same weight. The weighted mean of the sites'
        factors therefore follows the sum of the sites' gradients to a minimum of the pooled error.
        """
        if not self._usage:
            return np.full((len(sites), self._solver.rank), 1 / len(sites))
        unknown = np.mean(list(self._usage.values()), axis=0)  # for sites that joined later
        usage = np.array([self._usage.get(site, unknown) for site in sites])
        applied = self._solver.relative_elastic * solvers.find(self._solver.solver).pull
        pull = max(applied, _TINY)
        weights = usage + pull * usage.mean(axis=1, keepdims=True) + _TINY
        return np.asarray(weights / weights.sum(axis=0))


def starts_from_cooccurrences(
    feature_shape: Sequence[int], privacy: PrivacySettings, run: RunSettings
) -> bool:
    """Return whether a run computes its initial factors from co-occurrences."""
    taken = start_rounds(feature_shape)
    if run.start == "cooccurrence":
        if privacy.privacy == "paper":
            raise SettingsError("start: privacy 'paper' does not cover pairs; set start = random")
        if run.rounds <= taken:
            raise SettingsError(f"start: cooccurrence needs {taken + 1} or more rounds here")
        return True
    return run.start == "auto" and privacy.privacy == "none" and run.rounds > taken


def start_rounds(feature_shape: Sequence[int]) -> int:
    """Return how many rounds a co-occurrence start takes: 2 with long code lists, otherwise 1."""
    return 2 if paired_codes(feature_shape) else 1


def elastic_step(settings: SolverSettings, step: float, sites: int) -> float:
    """Return the size of the elastic step towards each of `sites` sites.

    If `step` is not 0, return `step`. If `step` is 0 and the solver uses eta and gamma, return
    eta * gamma, as in the DPFact paper. Otherwise, return 1 / sites, so that the new global factors
    are the sites' mean. Refuse a step that is 0 or unstable.
    """
    if step == 0 and (settings.is_relative or not solvers.find(settings.solver).steps):
        return 1 / sites
    chosen = step or settings.eta * settings.gamma
    if chosen == 0:
        raise SettingsError(
            "gamma = 0 and elastic-step = 0: the global factors would never move; set elastic-step"
        )
    if chosen * sites > 1 + _ROUNDING:
        raise SettingsError(
            "elastic-step * sites (elastic-step defaults to eta * gamma) must be at most 1 for "
            f"the server's pull to be stable; got {chosen:g} * {sites} = {chosen * sites:g}"
        )
    return chosen


def elastic_average(
    anchors: Factors, replies: Sequence[Factors], step: float, shares: Sequence[float] = ()
) -> Factors:
    """Return `anchors` plus `step` times the sum of the replies' differences from `anchors`.

    If `step` is eta * gamma, the result is the DPFact paper's update. Replies must be sorted by
    site, because the order affects floating-point sums. `shares` are the sites' relative weights.
    """
    moved = []
    counts = np.array(shares) * len(replies) / sum(shares) if shares else np.ones(len(replies))
    for mode, anchor in enumerate(anchors):
        pull = np.zeros(anchor.shape)
        for reply, count in zip(replies, counts, strict=True):
            pull += count * np.subtract(reply[mode], anchor, dtype=np.float64)
        moved.append((anchor + step * pull).astype(np.float32))
    return tuple(moved)
