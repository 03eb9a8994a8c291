"""Federated, differentially private computational phenotyping with Flower.

Public names are imported on first use, so that a process that uses few of the names starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from dpfact_flower.client_app import DPFactClient
    from dpfact_flower.data.readers.frames import read_events
    from dpfact_flower.data.site_data import Cohort, SiteData
    from dpfact_flower.data.vocabulary import Vocabulary
    from dpfact_flower.errors import DPFactError
    from dpfact_flower.evaluation.model import GlobalModel
    from dpfact_flower.notebook.federated import DPFactPhenotyper, federate
    from dpfact_flower.notebook.run import Run
    from dpfact_flower.runtime.grid import InProcessGrid
    from dpfact_flower.runtime.serve import write_run
    from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
    from dpfact_flower.solver import solve
    from dpfact_flower.strategy import DPFact
    from dpfact_flower.tensor import SparseTensor
    from dpfact_flower.tensor.cp import CPModel, factor_match_score

_HOMES = {
    "CPModel": "tensor.cp", "Cohort": "data.site_data", "DPFact": "strategy",
    "DPFactClient": "client_app", "DPFactError": "errors", "DPFactPhenotyper": "notebook.federated",
    "GlobalModel": "evaluation.model", "InProcessGrid": "runtime.grid",
    "PrivacySettings": "settings", "Run": "notebook.run", "RunSettings": "settings",
    "SiteData": "data.site_data", "SiteSettings": "settings", "SolverSettings": "settings",
    "SparseTensor": "tensor", "Vocabulary": "data.vocabulary", "factor_match_score": "tensor.cp",
    "federate": "notebook.federated", "read_events": "data.readers.frames", "solve": "solver",
    "write_run": "runtime.serve",
}  # fmt: skip

__all__ = [
    "CPModel", "Cohort", "DPFact", "DPFactClient", "DPFactError", "DPFactPhenotyper", "GlobalModel",
    "InProcessGrid", "PrivacySettings", "Run", "RunSettings", "SiteData", "SiteSettings",
    "SolverSettings", "SparseTensor", "Vocabulary", "factor_match_score", "federate", "read_events",
    "solve", "write_run",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
