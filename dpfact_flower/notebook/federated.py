"""`federate`: a whole run in this process, from sites in memory or from a run config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import DataError, PrivacyRefusedError, QuorumError, SettingsError
from dpfact_flower.machine.files import private_scratch
from dpfact_flower.machine.logs import ProgressCallback, flower_quiet, no_progress
from dpfact_flower.notebook.inputs import as_cohort
from dpfact_flower.notebook.run import Run
from dpfact_flower.runtime import federate as runtime
from dpfact_flower.runtime.config import RunConfig
from dpfact_flower.settings import Scalar, SiteSettings


def federate(
    config: Mapping[str, Scalar] | None = None,
    *,
    sites: Any = None,
    vocabularies: Sequence[Vocabulary] | None = None,
    window_days: int | None = 30,
    out: str | Path | None = None,
    state_dir: str | Path | None = None,
    max_epsilon: float = 0.0,
    measure: bool = True,
    verbose: bool = False,
    watch: ProgressCallback = no_progress,
    **settings: Scalar,
) -> Run:
    """Run DPFact with every site in this process. Sites work in parallel threads.

    The strategy, the client and the results are the same as with `flwr run`, but neither Ray nor a
    network is needed.

    Parameters
    ----------
    config : mapping, optional
        A run config with hyphenated keys, at least `data` and `out`, as in a run's
        ``config.toml``; see ``dpfact settings``. Give either `config` or `sites`.
    sites : optional
        The sites' data, in any of the forms of `dpfact_flower.notebook.inputs.as_cohort`.
    vocabularies, window_days
        See `as_cohort`.
    out : path, optional
        Folder for the run's files. Without it, they are in a temporary folder until the run has
        been read, and `Run.save` writes them.
    state_dir : path, optional
        Folder in which the sites keep the ledgers of their releases, and their own factors. Without
        it, a temporary folder is used and deleted at the end, so the ledgers limit no later run.
        With `state_dir`, give `max_epsilon` too and, in patient mode, `patients`.
    max_epsilon : float
        Limit of each site's epsilon, over all runs with this `state_dir`. A run that would exceed
        the limit is refused before any patient's data is read. 0 means no limit.
    measure : bool
        Whether to measure the result (fit, prediction of outcomes, usage by site).
    verbose : bool
        Whether to show Flower's log.
    **settings
        Any of a run's settings, with underscores: ``rank=12, privacy="patient", epsilon=4.0``.

    Raises
    ------
    PrivacyRefusedError
        If a site's budget does not allow the run.
    QuorumError
        If no round met the quorum.

    Examples
    --------
    >>> federate({"data": "synthetic:demo", "out": "runs/first", "rounds": 5})  # doctest: +SKIP
    Run(12 phenotypes, 6 sites, 4 rounds, epsilon 4.000 ...)
    """
    given = {**(config or {}), **{key.replace("_", "-"): value for key, value in settings.items()}}
    if (sites is None) == (config is None):
        raise SettingsError("federate: give either sites or a run config with data")
    with flower_quiet(not verbose):
        if sites is None:
            places = {"out": out, "state-dir": state_dir}
            given |= {key: str(place) for key, place in places.items() if place is not None}
            return Run.read(runtime.federate(given, watch=watch))
        cohort = as_cohort(sites, vocabularies=vocabularies, window_days=window_days)
        if not any(site.tensor.nnz for site in cohort.sites):
            raise DataError("sites: none has a value above 0, so there is nothing to learn from")
        with private_scratch() as folder:
            given |= {
                "data": "",
                "out": str(out or Path(folder, "run")),
                "state-dir": str(state_dir or Path(folder, "sites")),
            }
            checked = RunConfig.read(given)
            own = _own_settings(checked, max_epsilon) if state_dir else None
            if max_epsilon and own is None:
                raise SettingsError(
                    "max_epsilon: needs state_dir, the folder in which spending is recorded"
                )
            try:
                place = runtime.federate_cohort(
                    cohort, checked, own=own, measured=measure, report=bool(out), watch=watch
                )
            except QuorumError as error:
                _, refused, reason = str(error).partition(f"{PrivacyRefusedError.code}: ")
                if own is None or not refused:
                    raise
                raise PrivacyRefusedError(
                    f"{reason}; see dpfact ledger show {own.state_dir} --site NAME"
                ) from None
            run = Run.read(place)
    return run if out else replace(run, folder=None)


def _own_settings(config: RunConfig, max_epsilon: float) -> SiteSettings:
    """Return the settings of sites with a lasting ledger: this privacy mode, up to a budget."""
    privacy = config.privacy
    if privacy.privacy == "patient" and not privacy.patients:
        raise SettingsError(
            "patients: with a state_dir, give a public estimate of the number of patients at all "
            "sites; their exact number would be released without noise"
        )
    if privacy.privacy != "none" and not max_epsilon:
        raise SettingsError(
            "max_epsilon: with a state_dir, give what each site may spend over all runs"
        )
    return SiteSettings(
        state_dir=str(config.app.sites_folder),
        allow_privacy=privacy.privacy,
        max_epsilon=max_epsilon,
        budget_delta=privacy.delta,
        max_rank=max(config.solver.rank, SiteSettings().max_rank),
        max_tau=max(config.solver.tau, SiteSettings().max_tau),
    )
