"""The hospital's own file of settings: what a SuperNode's node config would say."""

from __future__ import annotations

import tomllib
from pathlib import Path

from dpfact_flower.errors import SettingsError
from dpfact_flower.settings import Scalar, SiteSettings, refuse_unknown


def read_node_config(path: Path) -> dict[str, Scalar]:
    """Settings of a site from a TOML file with the keys of a node config.

    Raises
    ------
    SettingsError
        If the file cannot be read, or holds anything but settings of a site that are complete.
    """
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise SettingsError(f"{path} is not readable as TOML") from None
    refuse_unknown(config, SiteSettings)
    settings = SiteSettings.from_config(config)
    for key in ("data-path", "state-dir"):
        if not Path(str(settings.to_config()[key])).is_absolute():
            raise SettingsError(f"{path}: {key} must be set, to an absolute path")
    return config
