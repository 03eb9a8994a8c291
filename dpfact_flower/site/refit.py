"""Fit a hospital's own model after a run in patient mode. The model stays at the site.

The fit adds no noise, and pulls the model towards the global factors. No reply waits for the fit,
because the fit's duration depends on patients' data.
"""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from dpfact_flower.data.site_data import SiteData
from dpfact_flower.errors import DataError, MessageError, StateError
from dpfact_flower.privacy.ledger import keyed_hash
from dpfact_flower.settings import SiteSettings
from dpfact_flower.site.hospital import Hospital
from dpfact_flower.site.local_fit import local_settings, scaled, solved
from dpfact_flower.site.round import stream
from dpfact_flower.site.store import ENDING, REPEAT_END, RoundMeasures, SiteState, SiteStore
from dpfact_flower.solver.exact import fitted_patients
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import RoundRequest

_PERSONAL_PASSES = 10
"""Minimum number of solver passes in a refit, which no later round continues."""


def refit(
    data: SiteData, settings: SiteSettings, job: str, *, simulation: bool = False
) -> RoundMeasures:
    """Fit a site's own model, pulled towards the final global factors, and store the model."""
    hospital = Hospital(data, settings, simulation)
    store = hospital.store(job, keyed_hash(hospital.folder, job, data.fingerprint))
    request = last_request(store)
    tensor = data.select_codes(request.selection).tensor
    if not tensor.nnz:
        raise DataError(f"site {hospital.name}: no patient has any of the run's codes")
    state, measures = personal(tensor, request, hospital.name)
    store.save(state)
    store.keep_only(state.round)
    store.note(measures)
    return measures


def last_request(store: SiteStore) -> RoundRequest:
    """Return the last request of a run that has ended."""
    ending = store.ending()
    if ending is None:
        raise StateError(f"{store.folder}: the run has not ended here, so it cannot be refitted")
    try:
        return RoundRequest.from_wire(*ending)
    except MessageError as error:
        raise StateError(f"{store.folder / ENDING}: damaged ({error}); {REPEAT_END}") from None


def unfitted(folder: Path) -> list[str]:
    """Return the names of finished runs that have no refitted model in a site's `folder`."""
    ended = {path.parent.name for path in folder.glob(f"*/{ENDING}")}
    return sorted(ended - {path.parent.name for path in folder.glob("*/state-*.npz")})


def personal(
    tensor: SparseTensor, request: RoundRequest, site: str
) -> tuple[SiteState, RoundMeasures]:
    """Fit a site's own model to a tensor, starting from the last request's global factors."""
    tensor = scaled(tensor, request.solver)
    rng = np.random.default_rng(stream(request, site))
    began = time.perf_counter()
    # The l2,1 weight applies from the first pass, because the global phenotypes are final.
    with_l21 = replace(request, solver=replace(request.solver, mu_from_round=1))
    patients = fitted_patients(tensor, request.anchors)
    solver = local_settings(with_l21, (patients, *request.anchors))
    solver = replace(solver, tau=max(solver.tau, _PERSONAL_PASSES))
    start = SiteState(0, (patients, *request.anchors), solver.eta)
    return solved(tensor, start, request, solver, rng, began)
