"""A whole run at the server: settings in, run folder out. The same code in every runtime.

`serve` is what the ServerApp calls, in simulation and in deployment; `federate` calls it on a Grid
in this process. In simulation the sites' data and state lie on the same machine, so the run is
evaluated too; in a deployment the server has neither, and the summary says only what it can know.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from logging import INFO, WARNING
from pathlib import Path
from typing import NamedTuple

from flwr.common.logger import log
from flwr.serverapp import Grid

from dpfact_flower.coordinator import Coordinator
from dpfact_flower.data.site_data import COHORT, Cohort
from dpfact_flower.data.synthetic import preset, synthetic
from dpfact_flower.data.vocabulary import Vocabulary, joint_digest
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.summary import summarise
from dpfact_flower.run_folder import (
    MODEL,
    PHENOTYPES,
    REPORT,
    SUMMARY,
    write_config,
    write_json,
    write_model,
)
from dpfact_flower.settings import (
    AppSettings,
    PrivacySettings,
    RunSettings,
    Scalar,
    SolverSettings,
    refuse_unknown,
)
from dpfact_flower.strategy import DPFact


class RunConfig(NamedTuple):
    """A whole run config, checked."""

    app: AppSettings
    run: RunSettings
    solver: SolverSettings
    privacy: PrivacySettings

    @classmethod
    def read(cls, config: Mapping[str, Scalar]) -> RunConfig:
        """Check a run config; missing keys keep their defaults.

        Raises
        ------
        SettingsError
            Naming a key that is unknown, mistyped, out of range or impossible with another.
        """
        refuse_unknown(config, AppSettings, RunSettings, SolverSettings, PrivacySettings)
        checked = cls(
            AppSettings.from_config(config),
            RunSettings.from_config(config),
            SolverSettings.from_config(config),
            PrivacySettings.from_config(config),
        )
        checked.privacy.check_solver(checked.solver)
        return checked

    def write(self) -> dict[str, Scalar]:
        """Every key with its value, as `read` takes it."""
        return {key: value for part in self for key, value in part.to_config().items()}


def serve(grid: Grid, config: Mapping[str, Scalar]) -> Path:
    """Run DPFact on a Grid and write the run folder.

    Parameters
    ----------
    grid : Grid
        Flower's, or an `InProcessGrid`.
    config : mapping
        Hyphenated keys of the settings classes; what is missing keeps its default.

    Returns
    -------
    Path
        The run folder.

    Raises
    ------
    SettingsError, DataError, StateError
        Before anything is sent.
    QuorumError
        If no round met the quorum.
    """
    app, run, solver, privacy = RunConfig.read(config)
    cohort = prepare_data(app)
    if cohort is not None:
        _check_virtual_clients(grid, cohort)
        run = replace(run, sites=len(cohort.sites))
        if privacy.privacy == "patient" and not privacy.patients:  # known here, as data is at hand
            privacy = replace(privacy, patients=sum(s.tensor.n_patients for s in cohort.sites))
    vocabularies = cohort.vocabularies if cohort else _load_vocabularies(app)
    strategy = DPFact(
        [len(vocabulary) for vocabulary in vocabularies],
        solver=solver,
        privacy=privacy,
        run=run,
        vocabulary=joint_digest(vocabularies),
        run_dir=app.run_folder,
        resume=app.resume,
        durable=cohort is None,
    )
    strategy.start(grid)
    # As it was asked: a job name that was made up is not repeated, since sites know it as done.
    asked = RunConfig(replace(app, resume=False), run, solver, privacy)
    _write(strategy.coordinator, asked, vocabularies, cohort)
    return app.run_folder


def _write(
    coordinator: Coordinator,
    config: RunConfig,
    vocabularies: Sequence[Vocabulary],
    cohort: Cohort | None,
) -> None:
    """Write what a finished run leaves behind into its folder."""
    folder = config.app.run_folder
    for stale in (SUMMARY, PHENOTYPES, MODEL, REPORT):  # of a finished run that this one replaces
        (folder / stale).unlink(missing_ok=True)
    if coordinator.selection:
        vocabularies = tuple(map(Vocabulary.select, vocabularies, coordinator.selection))
    write_model(folder, coordinator.factors, vocabularies)
    write_config(folder, config.write(), _versions())
    if cohort is not None:
        log(INFO, "measuring what was learned: errors, prediction of death, phenotypes")
    summary, phenotypes = summarise(coordinator, vocabularies, cohort, config.app.sites_folder)
    write_json(folder / SUMMARY, summary)
    write_json(folder / PHENOTYPES, phenotypes)
    _report(folder)


def _report(folder: Path) -> None:
    """Write report.html, where what it is drawn with is installed."""
    try:
        log(INFO, "report: %s", write_report(folder))
    except (MissingDependencyError, DataError) as error:  # the run itself is finished and kept
        log(WARNING, "run folder: %s; no report: %s", folder, error)


def prepare_data(app: AppSettings) -> Cohort | None:
    """Load the simulation's data, making it first where it is synthetic; None in a deployment.

    Raises
    ------
    DataError
        If the folder is missing or invalid.
    """
    if not app.data:
        return None
    if app.synthetic_preset and not (app.cohort_folder / COHORT).exists():
        chosen = preset(app.synthetic_preset)
        log(INFO, "making synthetic data (%s) in %s", app.synthetic_preset, app.cohort_folder)
        app.cohort_folder.mkdir(parents=True, exist_ok=True)
        synthetic(chosen).save(app.cohort_folder)
    return Cohort.load(app.cohort_folder)


def _check_virtual_clients(grid: Grid, cohort: Cohort) -> None:
    nodes, sites = len(list(grid.get_node_ids())), len(cohort.sites)
    if nodes != sites:
        raise SettingsError(
            f"the data has {sites} sites, the simulation {nodes} virtual clients: "
            f'use --federation-config "num-supernodes={sites}"'
        )


def _load_vocabularies(app: AppSettings) -> tuple[Vocabulary, ...]:
    paths = [path.strip() for path in app.vocabulary.split(",") if path.strip()]
    if not paths:
        raise SettingsError(
            "vocabulary: a deployment needs the public code lists, one .json a feature mode; "
            "a simulation needs data"
        )
    return tuple(Vocabulary.load(Path(path).expanduser()) for path in paths)


def _versions() -> dict[str, str]:
    packages = ("dpfact-flower", "flwr", "numpy", "scipy", "scikit-learn", "numba")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
