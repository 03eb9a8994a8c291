"""Define a Flower Grid whose nodes all run in this process, without Ray."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.threads import in_order, one_blas_thread
from dpfact_flower.wire.records import error_reply

_SERVER_NODE_ID = _RUN_ID = 1


class InProcessGrid(Grid):
    """A Grid with one node per node config. The nodes run `client_app` in parallel threads."""

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: Sequence[Mapping[str, bool | int | float | str]],
        run_config: Mapping[str, bool | int | float | str] | None = None,
    ) -> None:
        if not node_configs:
            raise SettingsError("node_configs: need at least one node")
        folders = [config["state-dir"] for config in node_configs if config.get("state-dir")]
        if shared := [folder for folder in folders if folders.count(folder) > 1]:
            raise SettingsError(f"state-dir: nodes share {shared[0]!r}; give each its own folder")
        # Flower refuses to make a Message unless this process has a node id.
        TaskIdentity.task_id = TaskIdentity.run_id = _RUN_ID
        TaskIdentity.node_id = _SERVER_NODE_ID
        self._app = client_app
        self._contexts = {
            node: Context(_RUN_ID, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in enumerate(node_configs, start=_SERVER_NODE_ID + 1)
        }
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """Do nothing, because there is only one run."""

    @property
    def run(self) -> Run:
        """A record of the run, which contains only the run's id."""
        return Run.create_empty(_RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message, as Flower's deprecated `Grid.create_message` does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes."""
        return list(self._contexts)

    def get_nodes(self) -> list[NodeInfo]:
        """Return the nodes. Each node's name is the value of `site` in the node's config."""
        sites = {node: str(own.node_config.get("site", "")) for node, own in self._contexts.items()}
        return [NodeInfo(node_id=node, name=sites.get(node, "")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Deliver messages and keep the replies. A ClientApp's exception becomes an error reply."""
        numbered = {f"message-{next(self._ids)}": message for message in messages}
        for message_id, message in numbered.items():
            message.metadata.__dict__["_message_id"] = message_id
        with one_blas_thread:
            replies = in_order(self._deliver, numbered.values())
            self._replies.update(zip(numbered, replies, strict=True))
        return list(numbered)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to the given messages, except replies that were already returned."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push the messages, then pull the replies. The timeout has no effect."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            return error_reply(message, str(error))
