"""An app that sends every node one message, and records the replies."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all nodes once."""
    while len(nodes := list(grid.get_node_ids())) < int(str(context.run_config["nodes"])):
        time.sleep(0.2)
    ask = RecordDict({"config": ConfigRecord({"hello": "there"})})
    messages = [Message(ask, dst_node_id=node, message_type="train") for node in nodes]
    loot = {}
    for reply in grid.send_and_receive(messages):
        if reply.has_error():
            loot[str(reply.metadata.src_node_id)] = reply.error.reason
        else:
            loot[str(reply.metadata.src_node_id)] = reply.content["loot"]["stolen"].hex()
    Path(str(context.run_config["out"])).write_text(json.dumps(loot))
