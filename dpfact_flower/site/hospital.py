"""A hospital's settings, data and folder, and metrics for the hospital's own monitoring."""

import time
import tomllib
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dpfact_flower.data.site_data import SiteSource, open_site
from dpfact_flower.errors import SettingsError
from dpfact_flower.privacy import Release, Share, account
from dpfact_flower.privacy.ledger import LEDGER, Ledger, LedgerRow
from dpfact_flower.settings import SiteSettings, refuse_unknown
from dpfact_flower.site.lockout import check_no_note, failed_attempts
from dpfact_flower.site.store import SiteStore, has_jobs

ANSWERING = ".answering"
"""File in the state folder that exists while the site answers a message."""
MACHINE_CODE = ".machine-code"
"""Name of numba's cache folder inside the state folder."""


@dataclass(frozen=True, eq=False)
class Hospital:
    """A site's data, settings and folder.

    If `simulation` is true, noise may be seeded, and writes do not wait for the disk. `beside`
    names other sites that have different patients and may use the same `state-dir`.
    """

    source: SiteSource
    settings: SiteSettings
    simulation: bool
    beside: Collection[str] = ()

    @property
    def name(self) -> str:
        """The site's public name, which is part of every reply."""
        return self.settings.site or self.source.name

    @property
    def root(self) -> Path:
        """The `state-dir`."""
        return Path(self.settings.state_dir).expanduser()

    @property
    def folder(self) -> Path:
        """The site's folder, which contains the ledger and the jobs' folders."""
        return self.root / self.name

    def ledger(self, *, create: bool = False) -> Ledger:
        """Open the site's ledger."""
        return Ledger(self.folder, create=create, durable=not self.simulation)

    def store(self, job: str, fingerprint: str = "") -> SiteStore:
        """Return the store of a job's files. `fingerprint` identifies the patients' data."""
        return SiteStore(self.folder, job, fingerprint, durable=not self.simulation)


def read_site_settings(path: Path) -> SiteSettings:
    """Read a site's settings from a TOML file with the keys of a node config."""
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path} is not readable as TOML: {error}") from None
    refuse_unknown(config, SiteSettings)
    settings = SiteSettings.from_config(config)
    for key, value in (("data-path", settings.data_path), ("state-dir", settings.state_dir)):
        if not Path(value).is_absolute():
            raise SettingsError(f"{path}: {key} must be set, to an absolute path")
    return settings


def check_choices(settings: SiteSettings) -> None:
    """Check the settings that each hospital must choose for itself."""
    for key in ("state-dir", "allow-privacy"):
        if not settings.to_config()[key]:
            raise SettingsError(f"{key}: must be set in the site's node config")
    if not Path(settings.state_dir).expanduser().is_absolute():
        raise SettingsError(
            f"state-dir: must be an absolute path, or the record of releases would depend on where "
            f"the process was started; got {settings.state_dir!r}"
        )
    modes = set(settings.allow_privacy.split(","))
    noisy = modes != {"none"}
    if noisy != (settings.max_epsilon > 0):
        raise SettingsError(
            "max-epsilon: must be above 0 where allow-privacy names a mode with noise, and 0 where "
            f"it is 'none', which no epsilon bounds; got {settings.max_epsilon:g} with "
            f"{settings.allow_privacy!r}"
        )
    if noisy and "none" in modes:
        raise SettingsError("allow-privacy: 'none' with a noisy mode would void max-epsilon")


def check_data_site(name: str, settings: SiteSettings) -> None:
    """Refuse another site's data, because the charges would be recorded in the wrong ledger."""
    key = "data-site" if settings.data_site else "site"
    expected = settings.data_site or settings.site
    if expected and name != expected:
        raise SettingsError(
            f"data-path: the file belongs to site {name!r}, but {key} is {expected!r}; name the "
            f"right file, or set data-site = {name!r} if these are this site's patients"
        )


def site_folder(settings: SiteSettings) -> Path:
    """Return the folder of the site's ledger and jobs."""
    name = settings.site or open_site(settings.data_path).name
    return Path(settings.state_dir).expanduser() / name


@contextmanager
def marked_as_answering(state: Path) -> Iterator[None]:
    """Mark the site as busy, so that `answering_seconds` can measure how long the site is busy."""
    mark = state / ANSWERING
    with suppress(OSError):
        mark.touch()
    try:
        yield
    finally:
        with suppress(OSError):
            mark.unlink()


def answering_seconds(state: Path) -> float:
    """Return how long the site has been answering its current message, in seconds, or 0 if idle."""
    try:
        return max(time.time() - (state / ANSWERING).stat().st_mtime, 0.0)
    except FileNotFoundError:
        return 0.0


def totals_of(rows: Iterable[LedgerRow | Release | Share], delta: float) -> tuple[float, float]:
    """Return the releases' total epsilon, and their total epsilon if all other sites collude."""
    events = [event for row in rows for event in row.events]
    if not events:
        return 0.0, 0.0
    total = account(events, delta)
    return total.headline.epsilon, (total.alone or total.headline).epsilon


def site_metrics(settings: SiteSettings) -> dict[str, float]:
    """Return figures that are only for a site's own monitoring, and must not leave the site.

    `epsilon_spent` is the total epsilon of all jobs at delta `budget-delta`. `epsilon_alone_spent`
    is the total epsilon if all other sites collude. `last_charge` is in seconds since 1970, or 0.
    `releases` counts the ledger's rows. `failed_attempts` counts consecutive rounds that read
    patients and failed. `epsilon_alone_left` needs `max-epsilon-alone`. A ledger that is lost, or
    that lacks rounds, is an error.
    """
    folder = site_folder(settings)
    check_no_note(folder)
    rows: tuple[LedgerRow, ...] = ()
    if (folder / LEDGER).exists() or has_jobs(folder):
        with Ledger(folder, create=False) as ledger:
            rows = ledger.rows()
    charged = [row for row in rows if row.events]
    spent, alone = totals_of(rows, settings.budget_delta)
    last = datetime.fromisoformat(charged[-1].recorded).timestamp() if charged else 0.0
    may_spend = not any(row.unprotected for row in rows)  # no epsilon covers releases without noise
    figures = {
        "epsilon_spent": spent,
        "epsilon_left": max(settings.max_epsilon - spent, 0.0) * may_spend,
        "epsilon_alone_spent": alone,
        "last_charge": last,
        "releases": len(rows),
        "failed_attempts": failed_attempts(folder),
        "answering_seconds": answering_seconds(folder.parent),
    }
    if most := settings.max_epsilon_alone:
        figures["epsilon_alone_left"] = max(most - alone, 0.0) * may_spend
    return figures
