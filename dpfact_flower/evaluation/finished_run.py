"""Read a finished run from its folder, and write it to another folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from dpfact_flower.errors import DataError
from dpfact_flower.evaluation import run_folder
from dpfact_flower.evaluation.model import GlobalModel
from dpfact_flower.evaluation.prose import uninformative_message
from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.evaluation.tables import Replication, SharedPhenotypes
from dpfact_flower.server.history import RoundRecord, read_history, write_history


@dataclass(frozen=True, eq=False, repr=False)
class FinishedRun:
    """The content of a finished run's folder.

    `model` contains the phenotypes that all sites share, and `summary` is the content of
    ``summary.json``. `records` describes each round. If the run was measured, `tables` contains
    statistics of the phenotypes, computed from all sites' patients. `folder` is None for an unsaved
    run. `replications` lists matches with other runs' phenotypes. `reviewed` lists chart reviews.
    """

    model: GlobalModel
    summary: Summary
    records: tuple[RoundRecord, ...]
    tables: SharedPhenotypes
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    folder: Path | None = None
    replications: tuple[Replication, ...] = ()
    reviewed: Mapping[int, run_folder.Review] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read a finished run of a simulation or a deployment from its folder."""
        place = Path(folder)
        model, summary = GlobalModel.read(place), run_folder.read_summary(place)
        tables, config = run_folder.read_phenotypes(place), run_folder.read_config(place)
        measured = len(tables.table.phenotypes) if tables.table else model.rank
        if not model.rank == summary.rank == measured:
            raise DataError(f"{place}: its files do not belong together")
        history, seconds = tuple(read_history(place)), summary.exchange.seconds
        for records in (history, history[:-1]):  # the last may be of a round to be repeated
            if not round(seconds - sum(record.seconds for record in records), 3):
                break
        else:
            raise DataError(f"{place}: history of an unfinished run; continue it with resume=true")
        return cls(
            model, summary, records, tables, config["run-config"],
            config["versions"], place, run_folder.read_replications(place, model.rank),
            run_folder.read_names(place, model.rank).reviewed,
        )  # fmt: skip

    def save(self, folder: str | Path) -> Self:
        """Write the run to an empty folder, so that `read` and `dpfact` commands can use it."""
        place = Path(folder).expanduser()
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise DataError(f"{place}: is not empty; choose another folder")
        run_folder.write_model(place, self.model.factors, self.model.vocabularies)
        run_folder.write_config(place, dict(self.settings), self.versions)
        run_folder.write_summary(place, self.summary)
        run_folder.write_json(place / run_folder.PHENOTYPES, self.tables)
        write_history(place, self.records, durable=False)
        names = run_folder.Names(dict(self.model.names), dict(self.reviewed))
        if names != run_folder.Names():
            run_folder.write_names(place, names)
        if self.replications:
            run_folder.write_json(place / run_folder.BESIDE, self.replications)
        return replace(self, folder=place)

    def __fspath__(self) -> str:
        if self.folder is None:
            raise DataError("run: has no folder; write one with save(folder)")
        return str(self.folder)

    @property
    def uninformative(self) -> str:
        """A warning with remedies if the model is uninformative, or else an empty string."""
        return uninformative_message(self.summary)
