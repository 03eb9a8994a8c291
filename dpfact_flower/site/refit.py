"""A site's own model after a run of patient mode, which never leaves the site.

The duration and the success of the fit depend on the patients, so no reply waits for it. The site
keeps the last request, and the hospital fits its model later (``dpfact site refit``).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError, MessageError, StateError
from dpfact_flower.privacy.ledger import data_tag
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.round import local_settings, localised, measure, scaled, solved, stream
from dpfact_flower.site.store import ENDING, REPEAT_END, RoundMeasures, SiteState, SiteStore
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest

_PERSONAL_PASSES = 10
"""Smallest number of passes of a refit, because no later round continues the fit."""


def refit(
    data: SiteData, settings: SiteSettings, job: str, *, simulation: bool = False
) -> RoundMeasures:
    """Fit a site's own model around the final global factors, and write it to the job's folder."""
    name = settings.site or data.name
    root = Path(settings.state_dir).expanduser()
    tag = data_tag(root / name, data.fingerprint)
    store = SiteStore(root, name, job, tag, durable=not simulation)
    request = localised(last_request(store), settings)
    tensor = data.select_codes(request.selection).tensor
    if tensor.nnz == 0:
        raise DataError(f"site {name}: no patient has any of the run's codes")
    state, measures = personal(tensor, request, name)
    store.save(state)
    store.keep_only(state.round)
    store.note(measures)
    return measures


def last_request(store: SiteStore) -> RoundRequest:
    """Return the last request of a run."""
    ending = store.ending()
    if ending is None:
        raise StateError(f"{store.folder}: the run has not ended here, so it cannot be refitted")
    try:
        return RoundRequest.from_wire(*ending)
    except MessageError as error:
        raise StateError(f"{store.folder / ENDING}: damaged ({error}); {REPEAT_END}") from None


def unfitted(folder: Path) -> list[str]:
    """Return the names of the finished runs in a site's folder that have no refitted model."""
    ended = {path.parent.name for path in folder.glob(f"*/{ENDING}")}
    return sorted(ended - {path.parent.name for path in folder.glob("*/state-*.npz")})


def personal(
    tensor: SparseTensor, request: RoundRequest, site: str
) -> tuple[SiteState, RoundMeasures]:
    """Fit A, B, C at full precision around the global factors in the last request of the run.

    `tensor` has only the selected codes.
    """
    tensor = scaled(tensor, request.solver)
    rng = np.random.default_rng(stream(request, site))
    began = time.perf_counter()
    # The l2,1 weight acts from the first pass, because the global phenotypes have formed.
    with_l21 = replace(request, solver=replace(request.solver, mu_from_round=1))
    patients = fitted_patients(tensor, request.anchors)
    solver = local_settings(with_l21, (patients, *request.anchors))
    solver = replace(solver, tau=max(solver.tau, _PERSONAL_PASSES))
    start = SiteState(0, (patients, *request.anchors), solver.eta)
    local = solved(tensor, start, request, solver, rng, site=site)
    seconds = time.perf_counter() - began
    return (
        SiteState(request.round, local.factors, local.eta),
        measure(tensor, local, request.round, seconds, last=True),
    )
