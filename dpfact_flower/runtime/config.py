"""Read a run's config and data, in a simulation or a deployment."""

from collections.abc import Mapping
from logging import INFO
from pathlib import Path
from typing import NamedTuple

from flwr.common import log

from dpfact_flower.data.code_names import named
from dpfact_flower.data.site_data import COHORT, site_files
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import SettingsError
from dpfact_flower.machine.files import private_folder
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    Scalar,
    SolverSettings,
    refuse_unknown,
)
from dpfact_flower.solver.solvers import solvers


class RunConfig(NamedTuple):
    """A checked run config."""

    app: AppSettings
    run: RunSettings
    solver: SolverSettings
    privacy: PrivacySettings

    @classmethod
    def read(cls, config: Mapping[str, Scalar]) -> "RunConfig":
        """Check a run config, in which any key may be missing."""
        parts = (AppSettings, RunSettings, SolverSettings, PrivacySettings)
        refuse_unknown(config, *parts)
        checked = cls._make(part.from_config(config) for part in parts)
        sent = checked.privacy.sent(checked.solver)
        solvers.find(sent.solver).check(sent)
        return checked

    def write(self) -> dict[str, Scalar]:
        """Return every key with its value, in the form that `read` accepts."""
        return {key: value for part in self for key, value in part.to_config().items()}


def prepare_data(app: AppSettings) -> list[Path]:
    """Return the paths of simulated sites' data, or [] in a deployment. Generate data if needed."""
    if not app.data:
        return []
    if app.synthetic_preset and not (app.cohort_folder / COHORT).exists():
        chosen = preset(app.synthetic_preset)
        log(INFO, "making synthetic data (%s) in %s", app.synthetic_preset, app.cohort_folder)
        private_folder(app.cohort_folder)  # as private as the sites' own files
        synthetic(chosen).save(app.cohort_folder)
    return site_files(app.cohort_folder)


def load_vocabularies(app: AppSettings) -> tuple[Vocabulary, ...]:
    """Load the public code lists named in a deployed run's config."""
    paths = [path.strip() for path in app.vocabulary.split(",") if path.strip()]
    if not paths:
        raise SettingsError(
            "vocabulary: a deployment needs the public code lists, one .json per feature mode; "
            "a simulation needs data"
        )
    return tuple(named(Vocabulary.load(Path(path).expanduser())) for path in paths)
