"""Measure the likelihood of hidden cells under models of this package, pyttb and GenTen.

    python -m simulation.studies.likelihood runs/nhds runs/diabetes runs/mimic3 --rank 10
    python -m simulation.studies.likelihood data/nhds --rank 20 --epsilon 1 --patients 100000

A model learns from four fifths of the patients. If an epsilon is given, the model learns in patient
mode without refinement, and otherwise in mode none. For each other patient, a fifth of the cells is
hidden. The patient is fitted to the other cells, with the same likelihood for all models. The
result is the mean log-likelihood of hidden cells. A cell's likelihood is the model's value there,
divided by the sum of its values for that patient. The baseline is the frequency of each code.
"""

import argparse
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.settings import PrivacySettings, RunSettings, SolverSettings
from dpfact_flower.tensor import Factors, SparseTensor
from simulation.arguments import at_least, one_line_errors, read_epsilon
from simulation.baselines import pooled, stacked
from simulation.studies.shared_fit import load
from simulation.systems import run

_HIDDEN, _OTHERS = 0.2, 0.2
_REFITS = 100
_EVEN = 0.01
"""Share of the likelihood that is spread over all cells, so that no cell has the likelihood 0."""


def parts(cohort: Cohort, most: int, seed: int) -> tuple[Cohort, SparseTensor, SparseTensor]:
    """Return a training cohort, and the shown and hidden cells of the other patients."""
    rng, used, others = np.random.default_rng(seed), [], []
    for site in cohort.sites:
        size = site.tensor.n_patients
        order = rng.permutation(size)[: max(2, math.ceil(most * size / len(cohort)))]
        cut = max(1, round(_OTHERS * len(order)))
        others.append(site.tensor.select_patients(np.sort(order[:cut])))
        used.append(site[np.sort(order[cut:])])
    whole = stacked(others)
    hidden = rng.random(whole.nnz) < _HIDDEN
    shown, kept = (
        SparseTensor(whole.indices[which], whole.values[which], whole.shape)
        for which in (~hidden, hidden)
    )
    return replace(cohort, sites=tuple(used), truth=None), shown, kept


def held_out(features: Factors, shown: SparseTensor, hidden: SparseTensor) -> float:
    """Fit patients to their shown cells, and return the mean log-likelihood of a hidden cell."""
    wide = [factor.astype(np.float64) + 1e-12 for factor in features]
    wide = [factor / factor.sum(axis=0) for factor in wide]
    at_shown, at_hidden = (
        np.prod([f[t.indices[:, n]] for n, f in enumerate(wide, start=1)], axis=0)
        for t in (shown, hidden)
    )
    who, shares = shown.indices[:, 0], np.full((shown.n_patients, wide[0].shape[1]), 1.0)
    for _ in range(_REFITS):  # expectation maximisation
        among = shares[who] * at_shown
        among *= (shown.values / among.sum(axis=1))[:, None]
        counted = np.zeros_like(shares)
        np.add.at(counted, who, among)
        shares = counted + 1e-3
    shares /= shares.sum(axis=1, keepdims=True)
    chances = (1 - _EVEN) * (shares[hidden.indices[:, 0]] * at_hidden).sum(axis=1)
    chances += _EVEN / math.prod(hidden.feature_shape)
    return float(np.average(np.log(chances), weights=hidden.values))


def frequencies(cohort: Cohort) -> Factors:
    """Return a model with one phenotype: the frequency of each code."""
    whole = pooled(cohort)
    return tuple(
        np.bincount(whole.indices[:, n], whole.values, size)[:, None].astype(np.float32)
        for n, size in enumerate(whole.shape) if n > 0
    )  # fmt: skip


def federated(loss: str, rounds: int) -> Callable[[Cohort, int, int], Factors]:
    """Return a function that runs mode none with the given loss."""

    def learn(cohort: Cohort, rank: int, seed: int) -> Factors:
        scale: Any = "patient" if loss == "squared" else "counts"
        solver = SolverSettings(
            rank=rank, solver="psgd", loss=loss, scale=scale, tau=2, relative_l21=0.0
        )
        given = RunSettings(rounds=rounds, seed=seed)
        return run(cohort, solver, PrivacySettings(privacy="none"), given)

    return learn


def private(loss: str, epsilon: float) -> Callable[[Cohort, int, int], Factors]:
    """Return a function that runs patient mode without refinement. The server uses the loss."""

    def learn(cohort: Cohort, rank: int, seed: int) -> Factors:
        privacy = PrivacySettings(epsilon=epsilon, patients=len(cohort), refine_rounds=0)
        return run(cohort, SolverSettings(rank=rank, loss=loss), privacy, RunSettings(seed=seed))

    return learn


def _to_pyttb(cohort: Cohort, loss: str) -> Any:
    """Return all patients' tensor for pyttb and GenTen, with ones as values for `bernoulli`."""
    from pyttb.sptensor import sptensor  # noqa: PLC0415 - only for comparison

    whole = pooled(cohort)
    values = np.ones(whole.nnz) if loss == "bernoulli" else whole.values.astype(np.float64)
    return sptensor(whole.indices.astype(np.int64), values[:, None], whole.shape)


def gcp_sgd(loss: str, epochs: int) -> Callable[[Cohort, int, int], Factors]:
    """Return a function that fits pooled patients with GenTen's Adam on stratified samples."""

    def learn(cohort: Cohort, rank: int, seed: int) -> Factors:
        pygenten = importlib.import_module("pygenten")
        model, _, _ = pygenten.gcp_sgd(
            _to_pyttb(cohort, loss), type=loss, rank=rank, seed=seed + 1, maxiters=epochs,
            printitn=0,
        )  # fmt: skip
        return tuple(factor.astype(np.float32) for factor in model.factor_matrices[1:])

    return learn


def gcp_opt(loss: str, epochs: int) -> Callable[[Cohort, int, int], Factors]:
    """Return a function that fits pooled patients with pyttb's Adam on stratified samples."""

    def learn(cohort: Cohort, rank: int, seed: int) -> Factors:
        # pyttb is only for comparison.
        from pyttb.gcp.handles import Objectives  # noqa: PLC0415
        from pyttb.gcp.optimizers import Adam  # noqa: PLC0415
        from pyttb.gcp_opt import gcp_opt as fit  # noqa: PLC0415

        tensor = _to_pyttb(cohort, loss)
        objective = {"poisson": Objectives.POISSON, "bernoulli": Objectives.BERNOULLI_ODDS}[loss]
        np.random.seed(seed)  # noqa: NPY002 - pyttb draws from this
        model, _, _ = fit(
            tensor, rank, objective, Adam(max_iters=epochs), printitn=0, init="random"
        )
        return tuple(factor.astype(np.float32) for factor in model.factor_matrices[1:])

    return learn


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="+", help="PRESET, PRESET@SEED or a folder")
    parser.add_argument("--rank", type=at_least(1), default=10)
    parser.add_argument("--rounds", type=at_least(1), default=20)
    parser.add_argument(
        "--patients", type=at_least(10), default=5000, help="largest number of patients"
    )
    parser.add_argument(
        "--epsilon", type=read_epsilon, help="of patient mode, instead of mode none"
    )
    parser.add_argument("--epochs", type=at_least(1), default=50, help="epochs of gcp_opt")
    parser.add_argument("--seed", type=at_least(0), default=0)
    given = parser.parse_args(arguments)
    names = ("squared", "poisson", "bernoulli")
    ways = {f"federated, {loss}": federated(loss, given.rounds) for loss in names}
    ways |= {f"gcp_opt, {loss}": gcp_opt(loss, given.epochs) for loss in names[1:]}
    if importlib.util.find_spec("pygenten"):
        ways |= {f"GenTen, {loss}": gcp_sgd(loss, given.epochs) for loss in names[1:]}
    if given.epsilon:
        ways = {f"patient mode, {loss}": private(loss, given.epsilon) for loss in names}
    print("| data | factors | log-likelihood of a hidden cell |\n|---|---|---|")  # noqa: T201
    with one_line_errors(parser):
        for name in given.data:
            used, shown, hidden = parts(load(name), given.patients, given.seed)
            _print(name, "frequencies of codes", held_out(frequencies(used), shown, hidden))
            for way, learn in ways.items():
                _print(name, way, held_out(learn(used, given.rank, given.seed), shown, hidden))


def _print(data: str, way: str, found: float) -> None:
    print(f"| {data} | {way} | {found:.3f} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
