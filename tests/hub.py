"""What Flower Hub would be sent of an app: `flwr app publish` itself, up to the network."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from flwr.cli.app_cmd import publish as command
from flwr.cli.auth_plugin.oidc_cli_plugin import OidcCliPlugin


class _LoggedIn(OidcCliPlugin):
    def __init__(self) -> None:
        self.access_token = "of nobody"

    def load_tokens(self) -> None:
        pass


def published(app: Path) -> dict[str, bytes]:
    """Files that would go up, by their path in the app's folder.

    Flower's own checks of names, description, licence, number, size and encoding run; what they
    refuse is raised.
    """
    sent = {}

    def post(files, token):
        sent.update({path: file.read() for _, (path, file, _) in files})
        return SimpleNamespace(ok=True)

    # The package's `publish` hides the module of that name.
    with mock.patch.dict(
        command.__globals__,
        {"_post_files": post, "load_cli_auth_plugin_from_connection": lambda *_: _LoggedIn()},
    ):
        command(app)
    return sent


def downloaded(app: Path, folder: Path) -> Path:
    """A folder such as `flwr new` unpacks: what was published of an app, and nothing else."""
    for path, content in published(app).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder
