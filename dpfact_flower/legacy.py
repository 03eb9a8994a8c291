"""The DPFact strategy for Flower's legacy API (`flwr.server.strategy`, ServerAppComponents)."""

import math
import time
from collections.abc import Sequence
from io import BytesIO
from typing import Unpack

from flwr.common import EvaluateIns, FitIns, FitRes, Parameters, Scalar, ndarrays_to_parameters
from flwr.server import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from dpfact_flower.errors import DataError, MessageError, SettingsError
from dpfact_flower.machine.parsed import read_npy
from dpfact_flower.server.coordinator import Coordinator, CoordinatorOptions
from dpfact_flower.server.history import Failure
from dpfact_flower.wire.protocol import SiteReply


class DPFact(Strategy):
    """DPFact's server as a legacy Flower strategy, with the parameters of `dpfact_flower.DPFact`.

    In Flower's ``ServerConfig``, set ``num_rounds`` to ``coordinator.rounds`` or, in a resumed run,
    to the number of remaining rounds. Also set ``round_timeout``, because this class does not
    enforce a round's deadline. A round's recorded traffic includes only serialised arrays.
    """

    def __init__(self, feature_shape: Sequence[int], **options: Unpack[CoordinatorOptions]) -> None:
        self.coordinator = Coordinator(feature_shape, **options)
        run, secure = self.coordinator.run, self.coordinator.secure is not None
        used = {"aggregation": run.aggregation != "sync", "grace": run.grace, "secure-sums": secure}
        if settings := ", ".join(setting for setting, is_used in used.items() if is_used):
            raise SettingsError(
                f"{settings}: Flower's older strategies have one message for a round, and wait for "
                "all replies until ServerConfig's round_timeout; use dpfact_flower.DPFact"
            )
        self._finished_before = self.coordinator.finished_rounds
        self._asked = 0
        self._bytes_down = 0
        self._began = 0.0

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters:
        """Return the server's global factors without sending a request to any client."""
        return ndarrays_to_parameters(list(self.coordinator.factors))

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        """Return the round's request for every connected client."""
        run = self.coordinator.run
        expected = run.expected_sites if server_round == 1 else run.min_sites
        client_manager.wait_for(expected, timeout=math.ceil(run.wait_timeout))
        clients = [client for _, client in sorted(client_manager.all().items())]
        self.coordinator.check_connected(len(clients), first=server_round == 1)
        number = self._finished_before + server_round
        if not clients:  # in this case, Flower does not call `aggregate_fit`
            self.coordinator.close_round(number, [], [])
            return []
        self.coordinator.begin()
        factors, config = self.coordinator.request(number).to_wire()
        instruction = FitIns(ndarrays_to_parameters(list(factors)), dict(config))
        self._asked = len(clients)
        self._bytes_down = len(clients) * sum(map(len, instruction.parameters.tensors))
        self._began = time.perf_counter()
        return [(client, instruction) for client in clients]

    def aggregate_fit(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, FitRes]],
        failures: list[tuple[ClientProxy, FitRes] | BaseException],
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Update the global factors from the replies, or return None if too few are usable."""
        shapes = self.coordinator.rule.reply_shapes(self._finished_before + server_round)
        usable: list[SiteReply] = []
        reasons = (f if isinstance(f, BaseException) else f[1].status.message for f in failures)
        failed = [Failure("a client", str(reason)) for reason in reasons]
        for client, result in results:
            try:
                arrays = [read_npy(BytesIO(tensor)) for tensor in result.parameters.tensors]
                usable.append(SiteReply.from_wire(arrays, result.metrics, shapes))
            except (DataError, MessageError) as error:
                failed.append(Failure(f"client {client.cid}", str(error)))
        failed += [Failure("a client", "no reply")] * (self._asked - len(results) - len(failures))
        record = self.coordinator.close_round(
            self._finished_before + server_round,
            usable,
            failed,
            bytes_down=self._bytes_down,
            bytes_up=sum(len(t) for _, result in results for t in result.parameters.tensors),
            seconds=time.perf_counter() - self._began,
        )
        metrics: dict[str, Scalar] = {"sites": len(record.sites), "failures": len(failed)}
        if not record.updated:
            return None, metrics
        return ndarrays_to_parameters(list(self.coordinator.factors)), metrics

    def configure_evaluate(self, *_: object, **__: object) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Return no requests, because there are no evaluation rounds."""
        return []

    def aggregate_evaluate(
        self, *_: object, **__: object
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Return no loss and no metrics."""
        return None, {}

    def evaluate(self, *_: object, **__: object) -> tuple[float, dict[str, Scalar]] | None:
        """Return None, because the server has no data."""
        return None
