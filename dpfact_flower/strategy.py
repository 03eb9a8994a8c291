"""`DPFact`, a Flower Strategy with a quorum, deadlines and checkpoints."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from logging import INFO
from typing import Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpfact_flower import collect
from dpfact_flower.dispatcher import AsyncDispatcher
from dpfact_flower.errors import MessageError, SettingsError
from dpfact_flower.secure_rounds import SecureRounds
from dpfact_flower.server.coordinator import Coordinator, CoordinatorOptions
from dpfact_flower.server.history import Failure
from dpfact_flower.server.on_arrival import OnArrival
from dpfact_flower.server.readiness import SiteNames, called, judge, read_readiness, write_readiness
from dpfact_flower.wire import records
from dpfact_flower.wire.protocol import RoundRequest, SiteReply

_POLL_SECONDS = 0.2
_BUSY_SECONDS = 180.0
"""Time in seconds that sites may need to recover after the server is killed. Flower ends the killed
run within a minute. An executor that waits for parts of a message gives up two minutes later."""


class TrainOnlyStrategy(Strategy):
    """A strategy without evaluation rounds. Each site evaluates its own results."""

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
        The run's settings. By default, the defaults of their classes.
    vocabulary
        The server's code lists, or their `joint_digest`. Sites with other lists refuse the run.
    run_dir
        Folder for `checkpoint.npz` and `history.jsonl`. If omitted, nothing is written.
    resume
        Whether to continue from the checkpoint in `run_dir`, under the same job name. By default,
        an unfinished run in this folder is an error, and a finished run is replaced.
    durable
        Whether checkpoints survive a power failure (default). Simulations do not need this.

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
        self._sent: list[Message] = []
        self._left_out: frozenset[int] = frozenset()
        self._began = 0.0
        self._timeout = self._seconds = self.coordinator.run.round_timeout
        self._grid: collect.RetryingGrid  # of the current round
        self._names = SiteNames()
        secure = self.coordinator.secure is not None
        self._secure = SecureRounds(self.coordinator, self._names, self._ask) if secure else None
        self._came: list[Message] = []

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

        By default, the run settings determine the number of rounds and the timeout. In a resumed
        run, Flower's `Result` numbers the remaining rounds from 1. Raise a `QuorumError` if too few
        sites connect or reply.
        """
        coordinator, planned = self.coordinator, self.coordinator.rounds
        if num_rounds is not None and num_rounds > planned:
            raise SettingsError(f"num_rounds: at most the run's {planned}, got {num_rounds}")
        if initial_arrays or train_config or evaluate_config:
            unused = "initial_arrays, train_config, evaluate_config"
            raise SettingsError(f"{unused}: not used; give settings to DPFact")
        self._finished_before = coordinator.finished_rounds
        self._timeout = coordinator.run.round_timeout if timeout is None else timeout
        rounds = planned if num_rounds is None else num_rounds
        in_step = coordinator.rounds_in_step if isinstance(coordinator, OnArrival) else rounds
        grid = collect.RetryingGrid(grid, self._sent.append)
        self._names.registered = grid.registered
        result = super().start(
            grid, self.arrays, max(min(rounds, in_step) - self._finished_before, 0),
            timeout=self._timeout, evaluate_fn=evaluate_fn,
        )  # fmt: skip
        if isinstance(coordinator, OnArrival):
            folder, leave_out = coordinator.run_dir, coordinator.run.preflight == "leave-out"
            if folder is not None and coordinator.resumed and leave_out:
                self._left_out |= {site.node for site in read_readiness(folder) if site.fault}
            dispatcher = AsyncDispatcher(
                grid, coordinator, names=self._names, left_out=self._left_out, read=self._read,
                timeout=self._timeout, wait=lambda first: self._wait_for_sites(grid, first=first),
            )  # fmt: skip
            if self._finished_before and coordinator.finished_rounds < rounds:
                dispatcher.resume()
            while coordinator.finished_rounds < rounds:
                if dispatcher.step() and evaluate_fn:
                    evaluate_fn(coordinator.finished_rounds, self.arrays)
        coordinator.check_learned()
        result.arrays = self.arrays
        return result

    @property
    def arrays(self) -> ArrayRecord:
        """The current global feature factors."""
        return ArrayRecord(list(self.coordinator.factors))

    def summary(self) -> None:
        """Log the run's settings."""
        run = self.coordinator.run
        log(
            INFO, "\t%s; quorum: %d site(s), %g s a round; job: %s", self.coordinator,
            run.min_sites, run.round_timeout, run.job,
        )  # fmt: skip

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return one request for each connected site. Requests expire when the round times out."""
        coordinator, number = self.coordinator, self._finished_before + server_round
        if not isinstance(grid, collect.RetryingGrid):  # `start` was not called
            grid = collect.RetryingGrid(grid, self._sent.append)
        self._grid = grid
        nodes = self._wait_for_sites(grid, first=server_round == 1)
        request = coordinator.request(number)
        if server_round == 1:
            self._left_out |= self._not_ready(nodes, request)
        nodes = [node for node in nodes if node not in self._left_out]
        self._began = time.perf_counter()
        self._seconds = min(self._timeout, coordinator.seconds_for(number))
        self._sent.clear()
        self._came = []
        requests = dict.fromkeys(nodes, request)
        if self._secure is not None:
            requests = self._secure.requests(number, nodes)
        coordinator.begin()
        grid.policy = collect.RoundPolicy(
            charged=bool(coordinator.rule.planned_events(number)),
            required=coordinator.rule.needs_quorum(number),
            left_out=self._others(nodes, requests),
            quorum=coordinator.run.min_sites,
            grace=self._timeout if self._seconds < self._timeout else 0.0,
        )
        messages = self._messages(requests)
        self._sent += messages
        return messages

    def _others(self, nodes: Iterable[int], asked: Collection[int]) -> frozenset[int]:
        """Return nodes to leave out. Do not add unnamed nodes, which may be lost sites."""
        return self._left_out | {n for n in nodes if self._names.of(n) and n not in asked}

    def _messages(self, requests: Mapping[int, RoundRequest]) -> list[Message]:
        """Make a message for each node. Nodes with the same request share the packed content."""
        contents = {id(each): records.ask(*each.to_wire()) for each in requests.values()}
        return [
            Message(
                contents[id(request)], node, MessageType.TRAIN, ttl=self._seconds,
                group_id=str(request.round),
            )
            for node, request in requests.items()
        ]  # fmt: skip

    def _ask(self, requests: Mapping[int, RoundRequest], charged: bool) -> Mapping[int, Message]:
        """Send a secure sum's additional requests in a round. Return the replies by node."""
        others = self._others(self._grid.get_node_ids(), requests)
        self._grid.policy = collect.RoundPolicy(charged=charged, left_out=others)
        messages = self._messages(requests)
        self._sent += messages
        came = self._by_node(self._grid.send_and_receive(messages, timeout=self._seconds))
        self._came += came.values()
        return came

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check every reply, update the global factors and log failures.

        The arrays are None if the quorum was missed. No metric is computed from patients' data.
        """
        number, came = self._finished_before + server_round, self._by_node(replies)
        times = sorted(self._grid.seconds.values())  # `finish` sends further requests
        self._came += came.values()
        sums: Sequence[SiteReply] | None = None
        if self._secure is not None and self._secure.current:
            usable, failures, sums = self._secure.finish(number, came)
        else:
            usable, failures = self._usable(number, came)
        quorum = self.coordinator.run.min_sites
        record = self.coordinator.close_round(
            number,
            usable,
            failures,
            bytes_down=records.serialised_bytes(*self._sent),
            bytes_up=sum(map(records.serialised_bytes, self._came)),
            seconds=time.perf_counter() - self._began,
            quorum_seconds=times[quorum - 1] if len(times) >= quorum else 0.0,
            sums=sums,
        )
        log(
            INFO, "round %d of %d: %s answered in %.0f s", number, self.coordinator.rounds,
            ", ".join(record.sites) or "no site", record.seconds,
        )  # fmt: skip
        metrics = MetricRecord({
            "sites": len(record.sites), "failures": len(record.failures),
            "bytes-down": record.bytes_down, "bytes-up": record.bytes_up,
        })  # fmt: skip
        return (self.arrays if record.updated else None), metrics

    def _usable(
        self, number: int, came: Mapping[int, Message]
    ) -> tuple[list[SiteReply], list[Failure]]:
        lost = {n: self._names.of(n) for n, reply in came.items() if collect.is_lost(reply)}
        nodes = dict.fromkeys(message.metadata.dst_node_id for message in self._sent)
        shapes = self.coordinator.rule.reply_shapes(number)
        usable: list[SiteReply] = []
        failed: dict[int, str] = {}
        for node, reply in came.items():
            outcome = self._read(reply, node, shapes, nodes.keys() - lost.keys())
            if isinstance(outcome, SiteReply):
                usable.append(outcome)
            else:
                failed[node] = outcome
        failed |= {n: f"no reply within {self._seconds:g} s" for n in nodes if n not in came}
        back = {reply.site for reply in usable}  # a site may return with a new node number
        return usable, [
            Failure(called(node, self._names.of(node)), reason)
            for node, reason in failed.items()
            if lost.get(node) not in back
        ]

    def _by_node(self, replies: Iterable[Message]) -> dict[int, Message]:
        """Return this round's replies, keyed by the node that got the request."""
        # An error about a lost node comes from the SuperLink and has the SuperLink's node ID, so a
        # reply's own node ID is not used.
        node_of = {sent.metadata.message_id: sent.metadata.dst_node_id for sent in self._sent}
        came: dict[int, Message] = {}
        for reply in replies:
            if (number := reply.metadata.reply_to_message_id) in node_of:
                came[node_of[number]] = reply
        return came

    def _read(
        self,
        reply: Message,
        node: int,
        shapes: Sequence[tuple[int, ...]],
        connected: Collection[int],
    ) -> SiteReply | str:
        """Return the checked reply, or the reason why the reply cannot be used."""
        if reply.has_error():
            return collect.format_error(reply.error)
        try:
            payload = records.read_reply(reply)
            outcome = SiteReply.from_wire(payload.arrays, payload.config, shapes)
        except MessageError as error:
            return str(error)
        return self._names.refusal(node, outcome.site, connected) or outcome

    def _not_ready(self, nodes: list[int], request: RoundRequest) -> frozenset[int]:
        """Ask nodes whether they would accept `request`. Return the nodes to leave out."""
        coordinator, run = self.coordinator, self.coordinator.run
        judged = run.preflight != "off" and coordinator.durable
        if not judged and self._secure is None:
            return frozenset()
        patience = min(self._timeout, run.wait_timeout)
        if coordinator.resumed:
            patience = max(patience, _BUSY_SECONDS)
            log(INFO, "asking whether the sites are ready, for at most %g s: a site may need "
                "three minutes to answer after a run was killed",
                patience)  # fmt: skip
        answers = self._grid.ask_ready(nodes, request, timeout=self._timeout, patience=patience)
        sites = self._names.checked(answers, warn=judged)
        if not judged:  # secure sums need only the names
            return frozenset()
        if coordinator.run_dir is not None:
            write_readiness(coordinator.run_dir, sites)
        return judge(sites, quorum=run.min_sites, leave_out=run.preflight == "leave-out")

    def _wait_for_sites(self, grid: Grid, *, first: bool) -> list[int]:
        """Wait for the quorum or, if `first`, for all expected sites. Return the sites' nodes."""
        run = self.coordinator.run
        expected = run.expected_sites if first else run.min_sites
        deadline = time.monotonic() + run.wait_timeout
        while (
            len(nodes := set(grid.get_node_ids()) - self._left_out) < expected
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_SECONDS)
        self.coordinator.check_connected(len(nodes), first=first)
        return sorted(nodes)
