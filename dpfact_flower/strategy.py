"""`DPFact`, a Flower Strategy with a quorum, deadlines and checkpoints."""

from collections.abc import Callable, Iterable, Sequence
from logging import INFO
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpfact_flower.collect import RetryingGrid, RoundPolicy
from dpfact_flower.connected import ConnectedSites
from dpfact_flower.dispatcher import AsyncDispatcher
from dpfact_flower.errors import SettingsError
from dpfact_flower.secure_rounds import SecureRounds
from dpfact_flower.server.coordinator import Coordinator, CoordinatorOptions
from dpfact_flower.server.on_arrival import OnArrival


class TrainOnlyStrategy(Strategy):
    """A strategy without evaluation rounds."""

    def configure_evaluate(self, *_: object, **__: object) -> Iterable[Message]:
        """Return no messages."""
        return []

    def aggregate_evaluate(self, *_: object, **__: object) -> MetricRecord | None:
        """Return no metrics."""
        return None


class DPFact(TrainOnlyStrategy):
    """DPFact's server, as a strategy for Flower's Message API.

    Parameters
    ----------
    feature_shape
        Number of codes in each feature mode.
    solver, privacy, run
        The run's settings. If omitted, all settings have their default values.
    vocabulary
        The server's code lists, or their `joint_digest`. Sites with other lists refuse the run.
    run_dir
        Folder for `checkpoint.npz` and `history.jsonl`. If omitted, nothing is written.
    resume
        Whether to continue from the checkpoint in `run_dir`, under the same job name. By default,
        an unfinished run in `run_dir` is an error, and a finished run is replaced.
    durable
        Whether to run the preflight and protect checkpoints from power failures (default: true).

    Examples
    --------
    In a ServerApp::

        strategy = DPFact((202, 316), vocabulary=lists, privacy=PrivacySettings(patients=40_000))
        result = strategy.start(grid)
    """

    def __init__(self, feature_shape: Sequence[int], **options: Unpack[CoordinatorOptions]) -> None:
        arriving = getattr(options.get("run"), "aggregation", "sync") == "async"
        kind = OnArrival if arriving else Coordinator
        self.coordinator = kind(feature_shape, **options)
        self._finished_before = self.coordinator.finished_rounds
        self._sites = ConnectedSites(self.coordinator)
        secure = self.coordinator.secure
        self._secure = SecureRounds(self.coordinator, self._sites) if secure else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the remaining rounds (see `flwr.serverapp.strategy.Strategy.start`).

        By default, the run settings determine the number of rounds and the timeout. `num_rounds`
        counts finished rounds too, but a resumed run's `Result` starts again at round 1. Raise a
        `QuorumError` if too few sites connect or reply.
        """
        coordinator, planned = self.coordinator, self.coordinator.rounds
        self._finished_before = coordinator.finished_rounds
        rounds, least = planned if num_rounds is None else num_rounds, self._finished_before or 1
        if not least <= rounds <= planned:
            valid = f"from {least} to {planned} here"
            raise SettingsError(f"num_rounds: counts finished rounds too, {valid}, got {rounds}")
        if initial_arrays or train_config or evaluate_config:
            unused = "initial_arrays, train_config, evaluate_config"
            raise SettingsError(f"{unused}: not used; give settings to DPFact")
        self._sites.timeout = coordinator.run.round_timeout if timeout is None else timeout
        in_step = coordinator.rounds_in_step if isinstance(coordinator, OnArrival) else rounds
        result = super().start(
            self._sites.use(grid), self.arrays,
            max(min(rounds, in_step) - self._finished_before, 0),
            timeout=self._sites.timeout, evaluate_fn=evaluate_fn,
        )  # fmt: skip
        if isinstance(coordinator, OnArrival):
            self._sites.leave_out_again()
            coordinator.run_until(rounds)
            dispatcher = AsyncDispatcher(coordinator, self._sites)
            if self._finished_before and not coordinator.is_over:
                dispatcher.resume()
            while not coordinator.is_over:
                if dispatcher.step() and evaluate_fn:
                    number = coordinator.finished_rounds - self._finished_before
                    if (metrics := evaluate_fn(number, self.arrays)) is not None:
                        result.evaluate_metrics_serverapp[number] = metrics
        coordinator.check_learned()
        result.arrays = self.arrays
        return result

    @property
    def arrays(self) -> ArrayRecord:
        """The current global feature factors."""
        return ArrayRecord(list(self.coordinator.factors))

    def summary(self) -> None:
        """Log the run's settings."""
        coordinator, run = self.coordinator, self.coordinator.run
        codes = "x".join(map(str, coordinator.feature_shape))
        rank, mode = coordinator.solver.rank, coordinator.privacy.privacy
        log(INFO, "\t%s codes, %d phenotypes, privacy %r", codes, rank, mode)
        log(INFO, "\t%d of %d rounds", coordinator.finished_rounds, coordinator.rounds)
        log(INFO, "\tmin-sites %d, %g s a round, job %s", run.min_sites, run.round_timeout, run.job)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one request for each connected site. Requests expire when the round times out."""
        coordinator, sites = self.coordinator, self._sites
        number = self._finished_before + server_round
        if not isinstance(grid, RetryingGrid):  # `start` was not called
            sites.use(grid)
        nodes = sites.wait(first=server_round == 1)
        request = coordinator.request(number)
        if server_round == 1:
            sites.leave_out_unready(nodes, request)
            nodes = [node for node in nodes if node not in sites.left_out]
        sites.begin(coordinator.seconds_for(number))
        requests = dict.fromkeys(nodes, request)
        if self._secure is not None:
            requests = self._secure.requests(number, nodes)
        coordinator.begin()
        policy = RoundPolicy(
            charged=bool(coordinator.rule.planned_events(number)),
            required=coordinator.rule.needs_quorum(number),
            quorum=coordinator.run.min_sites,
            grace=sites.timeout if sites.seconds < sites.timeout else 0.0,
        )
        return sites.messages(requests, nodes, policy)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, update the global factors and log failures.

        The arrays are None if the factors are unchanged. No metric is computed from patients' data.
        """
        sites, number = self._sites, self._finished_before + server_round
        received, sums, charged = sites.by_node(replies), None, set[str]()
        times = sorted(sites.grid.seconds.values())  # `finish` sends further requests
        if self._secure is not None and self._secure.current:
            usable, failures, sums = self._secure.finish(number, received)
            charged = self._secure.current.charged
        else:
            usable, failures = sites.usable(received, self.coordinator.rule.reply_shapes(number))
        quorum, (bytes_down, bytes_up) = self.coordinator.run.min_sites, sites.traffic
        record = self.coordinator.close_round(
            number, usable, failures, bytes_down=bytes_down, bytes_up=bytes_up,
            seconds=sites.elapsed,
            quorum_seconds=times[quorum - 1] if len(times) >= quorum else 0.0, sums=sums,
            charged=charged,
        )  # fmt: skip
        log(
            INFO, "round %d of %d: %s answered in %.0f s", number, self.coordinator.rounds,
            ", ".join(record.sites) or "no site", record.seconds,
        )  # fmt: skip
        metrics = MetricRecord({
            "sites": len(record.sites), "failures": len(record.failures),
            "bytes-down": record.bytes_down, "bytes-up": record.bytes_up,
        })  # fmt: skip
        return (self.arrays if record.updated else None), metrics
