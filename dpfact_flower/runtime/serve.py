"""Run DPFact on a Flower Grid or within one process, and write the results to a run folder.

In a simulation, all sites' data are on one machine, so this module also evaluates the model. In a
deployment, the summary contains only what the server knows.
"""

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from logging import ERROR, INFO, WARNING
from logging.handlers import BufferingHandler
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.common import log
from flwr.serverapp import Grid

from dpfact_flower.client_app import DPFactClient, client_reply, simulated_settings
from dpfact_flower.data.site_data import Cohort, SiteData
from dpfact_flower.data.vocabulary import Vocabulary, joint_digest
from dpfact_flower.errors import DataError, MissingDependencyError, QuorumError, SettingsError
from dpfact_flower.evaluation import run_folder
from dpfact_flower.evaluation.prose import headline
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.evaluation.summarise import summarise
from dpfact_flower.legacy import DPFact as Legacy
from dpfact_flower.machine.logs import ProgressCallback, no_progress, use_flower_handler
from dpfact_flower.machine.threads import in_order, one_blas_thread
from dpfact_flower.runtime.config import RunConfig, load_vocabularies, prepare_data
from dpfact_flower.runtime.grid import InProcessGrid
from dpfact_flower.runtime.superlink import MEASURING_LINE
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import AppSettings, Scalar, SiteSettings
from dpfact_flower.site.disclosure import disclosure_logger, log_privately
from dpfact_flower.site.refit import refit
from dpfact_flower.strategy import DPFact


def serve(
    grid: Grid,
    config: RunConfig,
    *,
    cohort: Cohort | None = None,
    durable: bool = False,
    measured: bool = True,
    report: bool = True,
    watch: ProgressCallback = no_progress,
) -> Path:
    """Run DPFact on a Grid, write the run folder and return its path.

    `cohort` contains a simulation's sites, by default those in the folder that `config` names.
    `durable` sites keep budgets. A simulation's model is evaluated if `measured` is true.
    """
    app, run, solver, privacy = config
    if cohort is None and prepare_data(app):
        cohort = Cohort.load(app.cohort_folder)
    planned = privacy
    if cohort is not None:
        run = replace(run, sites=len(cohort.sites))
        nodes = len(list(grid.get_node_ids()))
        if nodes != run.sites:
            raise SettingsError(
                f"simulation: need a virtual client for each site ({run.sites}), got {nodes}: "
                f'use --federation-config "num-supernodes={run.sites}"'
            )
        if privacy.privacy == "patient" and not privacy.patients:  # a simulation can count them
            planned = replace(privacy, patients=sum(s.tensor.n_patients for s in cohort.sites))
    vocabularies = cohort.vocabularies if cohort else load_vocabularies(app)
    strategy = DPFact(
        [len(vocabulary) for vocabulary in vocabularies],
        solver=solver,
        privacy=planned,
        run=run,
        vocabulary=vocabularies,
        run_dir=app.run_folder,
        resume=app.resume,
        durable=durable or cohort is None,
    )
    coordinator = strategy.coordinator

    def report_round(number: int, _: ArrayRecord) -> None:
        watch("rounds", (coordinator.finished_rounds if number else 0) / coordinator.rounds)

    strategy.start(grid, evaluate_fn=None if watch is no_progress else report_round)
    if cohort is not None and measured and privacy.privacy == "patient":
        _refit_sites(cohort, app.sites_folder, coordinator.run.job)
    # The stored config omits a generated job name, because sites refuse to repeat a job. A counted
    # number of patients is omitted too, because a repeated run would treat this number as public.
    asked = RunConfig(replace(app, resume=False), run, solver, privacy)
    _write(coordinator, asked, vocabularies, cohort, measured=measured, watch=watch)
    if report:
        _report(app.run_folder)
    return app.run_folder


def federate_config(config: Mapping[str, Scalar], *, watch: ProgressCallback = no_progress) -> Path:
    """Run DPFact from a run config, with all sites in this process. Return the run folder."""
    checked = RunConfig.read(config)
    if not prepare_data(checked.app):
        raise SettingsError("data: a run in one process needs data")
    return federate_cohort(Cohort.load(checked.app.cohort_folder), checked, watch=watch)


def federate_cohort(
    cohort: Cohort,
    config: RunConfig,
    *,
    own: SiteSettings | None = None,
    measured: bool = True,
    report: bool = True,
    watch: ProgressCallback = no_progress,
) -> Path:
    """Run DPFact with all sites in this process, on a cohort in memory. Return the run folder.

    If `own` is given, every site enforces the settings in `own` (for example, a budget) and keeps a
    durable ledger. If `own` is None, the sites accept every run.
    """
    use_flower_handler()
    settings = own or simulated_settings(config.app.sites_folder)
    names = [site.name for site in cohort.sites]
    clients = [
        DPFactClient(site, settings, simulation=own is None, beside=names) for site in cohort.sites
    ]
    nodes: list[dict[str, Scalar]] = [{"partition-id": n, "site": s} for n, s in enumerate(names)]
    grid = InProcessGrid(_app_of(clients), nodes)
    with _reasons_shown():
        return serve(
            grid, config, cohort=cohort, durable=own is not None, measured=measured,
            report=report and measured, watch=watch,
        )  # fmt: skip


def write_run(strategy: DPFact | Legacy, vocabularies: Sequence[Vocabulary]) -> Path:
    """Write a strategy's results to its `run_dir`, for ``dpfact report``, ``export`` and ``label``.

    Call this function in your own ServerApp after its strategy has run. `vocabularies` holds the
    public code lists, one per feature mode (see `Vocabulary.load`). Return the run folder. After
    ``resume=True``, an unfinished run's epsilon includes the round in which the server may have
    stopped.
    """
    coordinator = strategy.coordinator
    if coordinator.run_dir is None:
        raise SettingsError("write_run: give the strategy a run_dir, where its checkpoints go too")
    if (named := [*map(len, vocabularies)]) != coordinator.feature_shape:
        raise SettingsError(
            f"write_run: need code lists of {coordinator.feature_shape} codes, got {named}"
        )
    if coordinator.vocabulary not in ("", joint_digest(vocabularies)):
        raise SettingsError("write_run: need the code lists that the strategy's vocabulary names")
    coordinator.check_learned()
    app = AppSettings(data="", out=str(coordinator.run_dir))
    asked = replace(coordinator.run, job="")
    config = RunConfig(app, asked, coordinator.solver, coordinator.privacy)
    _write(coordinator, config, vocabularies)
    _report(app.run_folder)
    return app.run_folder


def _refit_sites(cohort: Cohort, sites_folder: Path, job: str) -> None:
    """Fit each simulated site's own model, as a hospital does after a run."""
    settings = SiteSettings(state_dir=str(sites_folder))

    def fitted(site: SiteData) -> None:
        try:
            refit(site, settings, job, simulation=True)
        except Exception as error:  # a failure at one site does not fail the run
            log_privately(site.name, error)

    with one_blas_thread:
        list(in_order(fitted, cohort.sites))


def _write(
    coordinator: Coordinator,
    config: RunConfig,
    vocabularies: Sequence[Vocabulary],
    cohort: Cohort | None = None,
    *,
    measured: bool = False,
    watch: ProgressCallback = no_progress,
) -> None:
    folder, model = config.app.run_folder, config.app.run_folder / run_folder.MODEL
    before = model.read_bytes() if model.exists() else b""
    for stale in (run_folder.SUMMARY, run_folder.PHENOTYPES, run_folder.MODEL, run_folder.REPORT):
        (folder / stale).unlink(missing_ok=True)
    if coordinator.rule.selection:
        vocabularies = tuple(map(Vocabulary.select, vocabularies, coordinator.rule.selection))
    run_folder.write_model(folder, coordinator.factors, vocabularies)
    if model.read_bytes() != before:
        for of_another_model in (run_folder.NAMES, run_folder.BESIDE):
            (folder / of_another_model).unlink(missing_ok=True)
    packages = ("dpfact-flower", "flwr", "numpy", "scipy", "scikit-learn", "numba")
    versions = {"python": platform.python_version()} | {name: version(name) for name in packages}
    run_folder.write_config(folder, config.write(), versions)
    if cohort is not None and measured:
        log(INFO, MEASURING_LINE)
    counted = coordinator.privacy.patients != config.privacy.patients
    summary, phenotypes = summarise(
        coordinator, cohort, config.app.sites_folder,
        measured=measured, counted=counted, watch=watch,
    )  # fmt: skip
    run_folder.write_summary(folder, summary)
    run_folder.write_json(folder / run_folder.PHENOTYPES, phenotypes)
    for label, text in headline(summary):
        log(INFO, "%s: %s", label, text)


def _report(folder: Path) -> None:
    try:
        log(INFO, "report: %s", write_report(folder))
    except (MissingDependencyError, DataError) as error:  # the run itself is finished and kept
        log(WARNING, "run folder: %s; no report: %s", folder, error)


@contextmanager
def _reasons_shown() -> Iterator[None]:
    """If sites refuse a run, add the first logged reason to the error message."""
    refusals = BufferingHandler(10_000)
    refusals.setLevel(ERROR)
    disclosure_logger.addHandler(refusals)
    try:
        yield
    except QuorumError as error:
        if not refusals.buffer:
            raise
        first, *others = dict.fromkeys(record.getMessage() for record in refusals.buffer)
        more = f" ({len(others)} more such lines are in the log)" if others else ""
        raise QuorumError(error.problem, [f"{first}{more}"]) from None
    finally:
        disclosure_logger.removeHandler(refusals)


def _app_of(clients: Sequence[DPFactClient]) -> ClientApp:
    """Return a ClientApp for sites in this process. A node's `partition-id` selects its client."""
    app = ClientApp()

    def reply(message: Message, context: Context, *, charged: bool) -> Message:
        client = clients[int(context.node_config["partition-id"])]
        return client_reply(message, client, charged=charged)

    app.train()(partial(reply, charged=True))
    app.query()(partial(reply, charged=False))
    return app
