"""Federated, differentially private computational phenotyping with Flower.

Public names are imported on first use, so that `dpfact_flower` itself can be imported quickly. At a
site, Flower starts a new process for every message.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from dpfact_flower.client_app import DPFactClient as DPFactClient
    from dpfact_flower.data.readers.frames import read_events as read_events
    from dpfact_flower.data.site_data import Cohort as Cohort
    from dpfact_flower.data.site_data import SiteData as SiteData
    from dpfact_flower.data.vocabulary import Vocabulary as Vocabulary
    from dpfact_flower.errors import DPFactError as DPFactError
    from dpfact_flower.evaluation.model import GlobalModel as GlobalModel
    from dpfact_flower.notebook.federated import DPFactPhenotyper as DPFactPhenotyper
    from dpfact_flower.notebook.federated import federate as federate
    from dpfact_flower.notebook.run import Run as Run
    from dpfact_flower.runtime.grid import InProcessGrid as InProcessGrid
    from dpfact_flower.runtime.serve import write_run as write_run
    from dpfact_flower.settings import PrivacySettings as PrivacySettings
    from dpfact_flower.settings import RunSettings as RunSettings
    from dpfact_flower.settings import SiteSettings as SiteSettings
    from dpfact_flower.settings import SolverSettings as SolverSettings
    from dpfact_flower.solver import solve as solve
    from dpfact_flower.strategy import DPFact as DPFact
    from dpfact_flower.tensor import SparseTensor as SparseTensor
    from dpfact_flower.tensor.cp import CPModel as CPModel
    from dpfact_flower.tensor.cp import factor_match_score as factor_match_score

_HOMES = {
    "CPModel": "tensor.cp",
    "Cohort": "data.site_data",
    "DPFact": "strategy",
    "DPFactClient": "client_app",
    "DPFactError": "errors",
    "DPFactPhenotyper": "notebook.federated",
    "GlobalModel": "evaluation.model",
    "InProcessGrid": "runtime.grid",
    "PrivacySettings": "settings",
    "Run": "notebook.run",
    "RunSettings": "settings",
    "SiteData": "data.site_data",
    "SiteSettings": "settings",
    "SolverSettings": "settings",
    "SparseTensor": "tensor",
    "Vocabulary": "data.vocabulary",
    "factor_match_score": "tensor.cp",
    "federate": "notebook.federated",
    "read_events": "data.readers.frames",
    "solve": "solver",
    "write_run": "runtime.serve",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
