"""Run TRIP on Flower: a client, a strategy, and a run of both in this process.

The strategy uses DPFact's messages, byte counts and grid. ADMM needs every site in every round.
There is no quorum, late sites are not tolerated, and runs cannot resume.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dpfact_flower.data.site_data import Cohort
from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.server.history import RoundRecord
from dpfact_flower.settings import SolverSettings
from dpfact_flower.strategy import TrainOnlyStrategy
from dpfact_flower.tensor import Factors, SparseTensor
from dpfact_flower.wire import records
from simulation.baselines import Snapshot, site_tensors, start
from simulation.baselines.trip import (
    TripState,
    consensus_of,
    least_squares_patients,
    site_round,
)

_STATE = "trip"


class TripClient(NumPyClient):
    """A TRIP site, whose state is in the run's Flower context.

    After each round, `observe` is called with the site's state and the seconds that the round took.
    """

    def __init__(
        self, tensor: SparseTensor, context: Context, observe: Callable[[TripState, float], None]
    ) -> None:
        self._tensor, self._context, self._observe = tensor, context, observe

    def fit(
        self, parameters: list[NDArray[Any]], config: Mapping[str, Any]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Any]]:
        """Take the consensus, and return the feature factors and their multipliers."""
        consensus = tuple(parameters)
        began = time.perf_counter()
        with threadpool_limits(1, user_api="blas"):
            state = site_round(self._tensor, self._load(consensus), consensus, config["omega"])
        seconds = time.perf_counter() - began
        self._context.state[_STATE] = ArrayRecord([*state.features, *state.multipliers])
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
    """Return the ClientApp for TRIP's sites."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = records.read_request(message)
        content = records.answer(*client_fn(context).fit(asked.arrays, asked.config))
        return Message(content, reply_to=message)

    return app


class Trip(TrainOnlyStrategy):
    """TRIP's server for Flower's Message API.

    If a site fails in a round, the run ends, because ADMM needs every site. `consensus` holds the
    initial factors, one per feature mode, and `omega` is the ADMM penalty. `multipliers` says
    whether sites send their multipliers, as in the published method. `records` has the bytes and
    seconds of each round, counted as for DPFact.
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
        """The current consensus."""
        return ArrayRecord(list(self.consensus))

    def summary(self) -> None:
        """Log nothing."""

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
        """Average the sites' replies. Raise a `QuorumError` if a site failed."""
        got = self._all_of(server_round, replies)
        modes = len(self.consensus)
        arrays = [tuple(records.read_reply(reply).arrays) for reply in got]
        none = TripState.initial(self.consensus).multipliers
        self.consensus = consensus_of(
            [own[:modes] for own in arrays], [own[modes:] or none for own in arrays], self.omega
        )
        record = RoundRecord(
            server_round, tuple(str(reply.metadata.src_node_id) for reply in got), (), True,
            bytes_down=sum(map(records.serialised_bytes, self._sent)),
            bytes_up=sum(map(records.serialised_bytes, got)),
            seconds=time.perf_counter() - self._began,
        )  # fmt: skip
        self.records.append(record)
        return self.arrays, None

    def _all_of(self, server_round: int, replies: Iterable[Message]) -> list[Message]:
        """Return the replies by node. Every site must have replied without an error."""
        got = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
        failed = [reply for reply in got if reply.has_error()]
        if failed or len(got) < len(self._sent):
            why = f": {failed[0].error.reason}" if failed else ""
            raise QuorumError(
                f"TRIP needs all {len(self._sent)} sites in round {server_round}{why}"
            )
        return got


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
    """Run TRIP's server and sites on Flower's messages, and yield a snapshot after each round.

    A site's patient factor is the least-squares solution, given the site's own feature factors. Of
    the solver's settings, only `rank` and `scale` are used. `seed` is the public seed of DPFact's
    initial factors. `multipliers` says whether sites send their multipliers, as in the published
    method. Each round's record is appended to `meter`.

    The penalty omega is ``share * ||X||^2 / (T R)``: `share` times the average squared norm of the
    data per site and phenotype. The problem is not convex, and ADMM converges only if the penalty
    is large enough. On the synthetic EHR, 0.3 was the best of .05, .3, 1 and 3. On real data, the
    sites may need a share of 1 to agree.
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
