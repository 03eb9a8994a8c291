"""The server's rule for patient mode: fit initial factors, then refine one factor per round.

This module only post-processes the sites' releases, and therefore has no privacy cost.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.errors import SettingsError
from dpfact_flower.estimation.certainty import (
    distinct_number,
    false_discovery,
    fitted_to_halves,
    typical_counts,
)
from dpfact_flower.estimation.codes import kept_codes
from dpfact_flower.estimation.outlook import outlook_of
from dpfact_flower.estimation.refine import Average, averaged, first_columns, refine_factor
from dpfact_flower.estimation.start import start_factors, usage_of
from dpfact_flower.estimation.surrogate_fit import fit_settings, fitted_to_surrogates
from dpfact_flower.machine.memory import give_back
from dpfact_flower.privacy import ReleaseEvent
from dpfact_flower.privacy.guarantee import delta_warning
from dpfact_flower.privacy.patient.plan import PatientPlan, plan_patient
from dpfact_flower.privacy.patient.releases import PlannedRelease
from dpfact_flower.server.rule import ServerRule, initial_factors, numbered, unnumbered
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.solver.losses import losses
from dpfact_flower.tensor import Array, Factors, Selection
from dpfact_flower.wire.protocol import SiteReply

_logger = logging.getLogger(__name__)
_REFINE_PULL = 0.05
"""Fraction of `relative_elastic` applied in refinements: pooled data needs a weaker pull."""
_ENOUGH = 0.8
"""`auto_rank` lowers the rank if less than this fraction of the phenotypes seems to be real."""
_HALVES = 1
"""Extra seed, so that fits to `halves` do not reuse the start's random numbers."""


class PatientRule(ServerRule):
    """The server's update rule for patient mode."""

    name = "patient"
    plan: PatientPlan

    def __init__(
        self,
        feature_shape: Sequence[int],
        solver: SolverSettings,
        privacy: PrivacySettings,
        run: RunSettings,
    ) -> None:
        if privacy.privacy != "patient":
            raise SettingsError(f"rule 'patient' is for privacy 'patient', not {privacy.privacy!r}")
        if run.auto_rank and len(feature_shape) == 1:
            raise SettingsError(
                "auto-rank: needs the probability of each phenotype, which is unknown with a "
                "single feature mode; set auto-rank to false"
            )
        self._is_squared = losses.find(solver.loss).is_squared
        if not self._is_squared and (run.auto_rank or len(feature_shape) == 1):
            raise SettingsError(
                f"loss: {solver.loss!r} needs surrogate patients of two modes, and gives no "
                "probability to choose a rank: set loss to 'squared', or auto-rank to false"
            )
        self.plan = plan_patient(
            privacy, sizes=feature_shape, rank=solver.rank, sites=run.expected_sites
        )
        self.rounds = self.plan.rounds
        self.privacy = self.plan.settings
        self.selection: Selection = ()
        shape = privacy.codes_kept or feature_shape
        self.factors: Factors = initial_factors(shape, solver.rank, run.seed)
        self._all_codes = tuple(int(size) for size in feature_shape)
        self._solver = solver
        self._run = run
        self.started = False
        self._totals: tuple[Array, ...] = ()
        """Totals of the start, one per group of sites in secure sums, kept to compute `usages`."""
        self._halves: Factors = ()
        """Models fitted to `halves` of the start's releases, to judge which phenotypes are real."""
        self._cells = 0.0
        self._averages: dict[int, Average] = {}
        """Each mode's average release, kept if the plan averages refinements over rounds."""

    def anchors(self, round_number: int) -> Factors:
        """Return the global factors, or an empty tuple if no factors have been computed yet.

        If `auto_rank` lowered the rank, columns of zeros are appended up to the requested rank.
        """
        if not self.started:
            return ()
        return tuple(np.pad(factor, ((0, 0), (0, self._dropped))) for factor in self.factors)

    @property
    def _dropped(self) -> int:
        """Number of columns by which `auto_rank` lowered the rank."""
        return int(self._solver.rank - self.factors[0].shape[1])

    def usages(self, round_number: int) -> NDArray[np.float64] | None:
        """Return `RoundRequest.usages` if a refinement needs it for the ridge penalty, or None."""
        planned = self.plan.release_of(round_number)
        if not self._totals or planned is None or planned.kind != "refine":
            return None
        sigma = self.plan.start.seen_sigma
        usages = np.array([usage_of(total, self.factors, sigma) for total in self._totals])
        return np.pad(usages, ((0, 0), (0, 0), (0, self._dropped)))

    def reply_shapes(self, round_number: int) -> list[tuple[int, ...]]:
        """Return the shapes of the arrays in a reply: one vector, or nothing in the last round."""
        planned = self.plan.release_of(round_number)
        return [(planned.count,)] if planned else []

    def planned_events(self, round_number: int) -> tuple[ReleaseEvent, ...]:
        """Return the privacy event of the round's planned release, or () in the last round."""
        modes = [f"mode {mode}" for mode, _ in enumerate(self.factors, start=1)]
        planned = self.plan.release_of(round_number)
        return (planned.event(modes, seeded=self.privacy.noise_seed >= 0),) if planned else ()

    def check_sites(self, sites: int) -> None:
        """Log a forecast for the run. Warn if the forecast is not good or if delta is too large."""
        outlook = outlook_of(replace(self.plan, facts=self.plan.facts._replace(sites=sites)))
        level = logging.INFO if outlook.verdict == "good" else logging.WARNING
        _logger.log(level, "plan: %s", outlook.sentence)
        if warning := delta_warning(self.privacy.delta, self.privacy.patients // max(sites, 1)):
            _logger.warning("plan: %s", warning)

    def needs_quorum(self, round_number: int) -> bool:
        """Return whether the run must stop if the given round misses the quorum."""
        planned = self.plan.release_of(round_number)
        return planned is not None and planned.kind != "refine"

    def update(self, round_number: int, replies: Sequence[SiteReply]) -> None:
        """Update the model from the sites' releases in the given round."""
        planned = self.plan.release_of(round_number)
        if planned is None:
            return
        released = [array for (array,) in (reply.arrays for reply in replies)]
        if planned.kind == "codes":
            self.selection = kept_codes(released, self._all_codes, self.privacy.codes_kept)
        elif planned.kind == "start":
            self._start(planned, released)
        else:
            self._refine(planned, [reply.site for reply in replies], released)

    def _start(self, planned: PlannedRelease, released: Sequence[Array]) -> None:
        """Fit initial factors. With `auto_rank`, lower the rank until most phenotypes seem real."""
        give_back()  # the memory that simulated sites and unpacked replies used
        rank, sigma = self._solver.rank, planned.seen_sigma
        self._totals = tuple(released) if planned.sharing and self._solver.relative_l21 else ()
        self._fit_start(released, rank, sigma)
        if not self._run.auto_rank:
            return
        if not self._halves:
            _logger.warning("auto-rank: the start is too noisy to judge; keeping all %d", rank)
            return
        before, share = (self.factors, self._halves), 0.0
        while True:
            real = distinct_number(self.factors, self._halves, self._cells)
            if real <= share * rank:
                self.factors, self._halves = before
                kept = self.factors[0].shape[1]
                _logger.info("auto-rank: %d of %d are no better; back to %d", real, rank, kept)
                return
            enough = real >= _ENOUGH * rank
            fewer = max(real, math.ceil(rank / 2))  # if few are real, the count is unreliable
            then = f"all {rank} are kept" if enough else f"fitting {fewer}"
            _logger.info("auto-rank: %d of %d phenotypes seem to be real; %s", real, rank, then)
            if enough:
                return
            before, share, rank = (self.factors, self._halves), real / rank, fewer
            self._fit_start(released, rank, sigma)

    def _fit_start(self, released: Sequence[Array], rank: int, sigma: float) -> None:
        sizes = [len(factor) for factor in self.factors]
        rng = np.random.default_rng([self._run.seed, rank, *sizes])
        start = start_factors(released, sizes, rank, sigma, rng)
        settings, self.started = fit_settings(self._solver), True
        self.factors = fitted_to_surrogates(start, released, sigma, rng, settings)
        counts = typical_counts(released, sizes) if self._is_squared else []
        if not counts:  # fits to halves need squared errors and typical counts
            return
        rng = np.random.default_rng([self._run.seed, rank, *sizes, _HALVES])
        self._halves = fitted_to_halves(released, counts, sizes, rank, sigma, rng)
        self._cells = math.prod(counts)

    @property
    def false_discovery(self) -> tuple[float, ...]:
        """Each phenotype's estimated probability of being a false discovery, or () if unknown."""
        return false_discovery(self.factors, self._halves, self._cells) if self._halves else ()

    def _refine(
        self, planned: PlannedRelease, sites: Sequence[str], released: Sequence[Array]
    ) -> None:
        assert planned.mode is not None
        newest = Average(tuple(sites), np.asarray(released, np.float32), planned.seen_sigma)
        average = averaged(self._averages.get(planned.mode), newest, self.plan.memory)
        if self.plan.memory:
            self._averages[planned.mode] = average
        values: Array = average.values
        if self._dropped:
            size, kept = self.factors[planned.mode].shape
            values = first_columns(values, size, self._solver.rank, kept)
        self.factors = refine_factor(
            list(values), self.factors, planned.mode, sigma=average.sigma,
            shrink=self._run.shrink, tau=self._solver.tau,
            pull=_REFINE_PULL * self._solver.relative_elastic,
        )  # fmt: skip

    def state(self) -> dict[str, Array]:
        """Return the arrays for a checkpoint."""
        return {
            **numbered("factor", self.factors),
            **numbered("kept", self.selection),
            **numbered("total", self._totals),
            **numbered("half", self._halves),
            "cells": np.array(self._cells),
            "started": np.array(self.started),
            **{
                f"average_{mode}_{field}": np.array(value)
                for mode, average in self._averages.items()
                for field, value in average._asdict().items()
            },
        }

    def restore(self, arrays: Mapping[str, Array]) -> None:
        """Restore the rule's state from arrays that `state` returned."""
        self.selection = unnumbered(arrays, "kept")
        self._totals = unnumbered(arrays, "total")
        self._halves = unnumbered(arrays, "half")
        self._cells = float(arrays["cells"])
        self.factors, self.started = unnumbered(arrays, "factor"), bool(arrays["started"])
        self._averages = {
            mode: Average(
                tuple(arrays[f"average_{mode}_sites"].tolist()),
                arrays[f"average_{mode}_values"],
                float(arrays[f"average_{mode}_sigma"]),
            )
            for mode in range(len(self.factors))
            if f"average_{mode}_sites" in arrays
        }
