"""TRIP (Kim et al., KDD 2017): federated factorisation by consensus ADMM, on Flower.

A site's round, from the consensus ``F^`` of every feature mode::

    H_t <- H_t + omega (F_t - F^)                                   the multipliers
    A_t <- M_A G_A^-1                                               least squares
    F_t <- (M_F + omega F^ - H_t) (G_F + omega I)^-1                one feature mode after the other

and the server's: ``F^ <- mean over sites of F_t + H_t / omega``. M is the MTTKRP of the site's
tensor, G the Hadamard product of the other modes' Gram matrices. Nothing is constrained and nothing
is private. A site sends F_t AND H_t: twice what DPFact's sites send.

It need not. After the server's step the multipliers of all sites add up to zero, so that from the
second round on the server's mean is that of F_t alone; with `multipliers=False` they stay at
home, and the numbers are the same but for rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dpfact_flower import records
from dpfact_flower.coordinator import RoundRecord
from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.grid import InProcessGrid
from dpfact_flower.settings import SolverSettings
from dpfact_flower.solver.mttkrp import mttkrp
from dpfact_flower.solver.objective import gram, hadamard
from dpfact_flower.tensor import Factors, SparseTensor
from simulation.baselines import Snapshot, site_tensors, start

_STATE = "trip"
_RTOL = 1e-6
"""Eigenvalues of a Gram matrix, relative to the largest, that float32 sums can't tell from 0."""


@dataclass(frozen=True, eq=False)
class TripState:
    """What a site keeps between rounds: its feature factors and their multipliers."""

    features: Factors
    multipliers: Factors

    @classmethod
    def initial(cls, consensus: Factors) -> TripState:
        """Before round 1: the consensus, and no disagreement."""
        return cls(consensus, tuple(np.zeros_like(factor) for factor in consensus))


def site_round(
    tensor: SparseTensor, state: TripState, consensus: Factors, omega: float
) -> TripState:
    """One round at a site, as above.

    Parameters
    ----------
    tensor : SparseTensor
    state : TripState
    consensus : tuple of (I_n, R) ndarrays of float32
        The server's factors, one a feature mode.
    omega : float
        Penalty of ADMM, above 0; the same at every site.
    """
    multipliers = tuple(
        H + np.float32(omega) * (F - mean)
        for H, F, mean in zip(state.multipliers, state.features, consensus, strict=True)
    )
    work = [least_squares_patients(tensor, state.features), *state.features]
    grams = [gram(factor) for factor in work]
    rank = work[0].shape[1]
    for n in range(1, tensor.ndim):
        pull = omega * consensus[n - 1].astype(np.float64) - multipliers[n - 1]
        q = hadamard(grams[:n] + grams[n + 1 :]) + omega * np.eye(rank)
        work[n] = _solved(mttkrp(tensor, work, n) + pull, q)
        grams[n] = gram(work[n])
    return TripState(tuple(work[1:]), multipliers)


def least_squares_patients(tensor: SparseTensor, features: Factors) -> NDArray[np.float32]:
    """``A = M_A G_A^-1``; of several solutions the shortest."""
    rank = features[0].shape[1]
    nothing = np.zeros((tensor.n_patients, rank), np.float32)
    product = mttkrp(tensor, [nothing, *features], 0)
    return _solved(product, hadamard([gram(factor) for factor in features]))


def _solved(target: NDArray[Any], system: NDArray[np.float64]) -> NDArray[np.float32]:
    """``target system^-1`` for a symmetric system, which may be singular."""
    inverse = scipy.linalg.pinvh(system, rtol=_RTOL)
    return np.asarray(target @ inverse, np.float32)


def consensus_of(
    features: Sequence[Factors], multipliers: Sequence[Factors], omega: float
) -> Factors:
    """The server's step: the mean over sites of ``F_t + H_t / omega``, in float64."""
    return tuple(
        np.mean(
            [
                own[mode].astype(np.float64) + dual[mode].astype(np.float64) / omega
                for own, dual in zip(features, multipliers, strict=True)
            ],
            axis=0,
        ).astype(np.float32)
        for mode in range(len(features[0]))
    )


class TripClient(NumPyClient):
    """A site of TRIP.

    Parameters
    ----------
    tensor : SparseTensor
    context : Context
        Flower's, of this run: the site's state lives in it.
    observe : callable, optional
        Told how the site stands after each round and how long it took; for measuring at the site.
    """

    def __init__(
        self,
        tensor: SparseTensor,
        context: Context,
        observe: Callable[[TripState, float], None] | None = None,
    ) -> None:
        self._tensor, self._context, self._observe = tensor, context, observe

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Consensus in; feature factors out, and their multipliers."""
        consensus = tuple(parameters)
        began = time.perf_counter()
        with threadpool_limits(1, user_api="blas"):
            state = site_round(self._tensor, self._load(consensus), consensus, config["omega"])
        seconds = time.perf_counter() - began
        self._context.state[_STATE] = ArrayRecord([*state.features, *state.multipliers])
        if self._observe is not None:
            self._observe(state, seconds)
        sent = [*state.features, *(state.multipliers if config["multipliers"] else ())]
        return sent, 1, {}

    def _load(self, consensus: Factors) -> TripState:
        if _STATE not in self._context.state:
            return TripState.initial(consensus)
        kept = self._context.state[_STATE]
        assert isinstance(kept, ArrayRecord)
        arrays = kept.to_numpy_ndarrays()
        half = len(arrays) // 2
        return TripState(tuple(arrays[:half]), tuple(arrays[half:]))


def trip_app(client_fn: Callable[[Context], TripClient]) -> ClientApp:
    """The ClientApp of TRIP's sites."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        payload = records.read(message)
        arrays, examples, config = client_fn(context).fit(payload.arrays, payload.config)
        content = records.answer(arrays, examples, config, legacy=payload.legacy)
        return Message(content, reply_to=message)

    return app


class Trip(Strategy):
    """TRIP's server for Flower's Message API.

    ADMM needs every site in every round: a round in which one fails ends the run.

    Parameters
    ----------
    consensus : tuple of ndarray of float32
        Where to start, one factor a feature mode.
    omega : float
        Penalty of ADMM, above 0.
    multipliers : bool
        Whether sites send them, as published.

    Attributes
    ----------
    records : list of RoundRecord
        Bytes and seconds of each round, counted as DPFact's are.
    """

    def __init__(self, consensus: Factors, omega: float, *, multipliers: bool = True) -> None:
        if not omega > 0:
            raise SettingsError(f"omega: must be above 0; got {omega!r}")
        self.consensus, self.omega, self.multipliers = consensus, float(omega), multipliers
        self.records: list[RoundRecord] = []
        self._sent: list[Message] = []
        self._began = 0.0

    @property
    def arrays(self) -> ArrayRecord:
        """The consensus now."""
        return ArrayRecord(list(self.consensus))

    def run(self, grid: Grid, rounds: int) -> Result:
        """Run `rounds` rounds."""
        return self.start(grid, self.arrays, num_rounds=rounds)

    def summary(self) -> None:
        """Nothing to log."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the consensus to every site."""
        content = records.ask(
            self.consensus, {"omega": self.omega, "multipliers": self.multipliers}
        )
        self._began = time.perf_counter()
        self._sent = [
            Message(content=content, dst_node_id=node, message_type=MessageType.TRAIN)
            for node in grid.get_node_ids()
        ]
        return self._sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average what the sites sent.

        Raises
        ------
        QuorumError
            If a site failed.
        """
        got = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        failed = [reply for reply in got if reply.has_error()]
        if failed or len(got) < len(self._sent):
            why = f": {failed[0].error.reason}" if failed else ""
            raise QuorumError(
                f"TRIP needs all {len(self._sent)} sites in round {server_round}{why}"
            )
        arrays = [tuple(records.read(reply).arrays) for reply in got]
        modes = len(self.consensus)
        features = [own[:modes] for own in arrays]
        none = tuple(np.zeros_like(factor) for factor in self.consensus)
        duals = [own[modes:] or none for own in arrays]
        self.consensus = consensus_of(features, duals, self.omega)
        record = RoundRecord(
            server_round, tuple(str(reply.metadata.src_node_id) for reply in got), (), True,
            bytes_down=sum(map(records.serialised_bytes, self._sent)),
            bytes_up=sum(map(records.serialised_bytes, got)),
            seconds=time.perf_counter() - self._began,
        )  # fmt: skip
        self.records.append(record)
        return self.arrays, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None


def trip(
    cohort: Cohort,
    solver: SolverSettings,
    *,
    rounds: int,
    seed: int,
    share: float = 0.3,
    multipliers: bool = True,
    meter: list[RoundRecord] | None = None,
) -> Iterator[Snapshot]:
    """Run TRIP's server and sites on Flower's messages, in this process.

    Parameters
    ----------
    cohort : Cohort
    solver : SolverSettings
        `rank` and `scale` alone are used.
    rounds : int
    seed : int
        The public seed of DPFact's start.
    share : float
        The penalty omega is ``share * ||X||^2 / (T R)``: that share of what a phenotype has of a
        site's data, on average over the T sites. The problem is not convex, and ADMM converges
        only where the penalty is large enough; 0.3 was the best of .05, .3, 1 and 3 on the
        synthetic EHR, and real data may need 1 for the sites to agree.
    multipliers : bool
        Whether sites send their multipliers, as published.
    meter : list, optional
        Each round's record is appended to it.

    Yields
    ------
    Snapshot
        After each round; a site's patients are the least squares solution on its own features.
    """
    tensors = site_tensors(cohort, solver)
    consensus = start(cohort, solver, seed)[0][1:]
    squares = sum(tensor.norm_squared() for tensor in tensors)
    omega = share * squares / (len(tensors) * solver.rank)
    states: dict[int, TripState] = {}
    seconds = 0.0

    def client_for(context: Context) -> TripClient:
        site = int(context.node_config["partition-id"])

        def observe(state: TripState, took: float) -> None:
            nonlocal seconds
            states[site] = state
            seconds += took

        return TripClient(tensors[site], context, observe)

    total = len(tensors)
    nodes = [{"partition-id": site, "num-partitions": total} for site in range(total)]
    grid = InProcessGrid(trip_app(client_for), nodes)
    strategy = Trip(consensus, omega, multipliers=multipliers)
    for number in range(1, rounds + 1):
        sent = strategy.configure_train(number, strategy.arrays, ConfigRecord(), grid)
        strategy.aggregate_train(number, grid.send_and_receive(sent))
        if meter is not None:
            meter.append(strategy.records[-1])
        models: list[Factors] = [
            (least_squares_patients(tensor, states[site].features), *states[site].features)
            for site, tensor in enumerate(tensors)
        ]
        yield Snapshot.of(number, models, strategy.consensus, tensors, seconds)
