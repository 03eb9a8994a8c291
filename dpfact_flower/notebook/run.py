"""The results of a run as Python objects: model, DataFrames, plots and report."""

from __future__ import annotations

import html
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfact_flower.errors import DataError, SettingsError, plural
from dpfact_flower.evaluation import run_folder
from dpfact_flower.evaluation.clinical import clinical_measures
from dpfact_flower.evaluation.finished_run import FinishedRun
from dpfact_flower.evaluation.page import library
from dpfact_flower.evaluation.prose import certainties, headline, titles
from dpfact_flower.evaluation.report import write_report
from dpfact_flower.privacy import price_of_replacing, rounded_up
from dpfact_flower.privacy.release import about_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True, eq=False, repr=False)
class Run(FinishedRun):
    """A finished run, returned by `dpfact_flower.federate` or read from its folder.

    A run can be pickled, and contains no individual patient's data. The measures of a simulation
    contain no noise, so they need the same protection as patients' data.
    """

    @property
    def guarantee(self) -> str:
        """A statement of how patients are protected, and of whether this protection is proven."""
        return dict(headline(self.summary))["privacy"]

    @property
    def epsilon(self) -> float | None:
        """The epsilon of the site that spent the most, or None if the run added no noise."""
        return self.summary.spent.epsilon if self.summary.spent else None

    def phenotypes(self, *, top: int | None = None) -> DataFrame:
        """Return the codes of each phenotype. The codes are as public as the model.

        The column ``certainty`` is based on the run's `replications` and `model.false_discovery`.
        """
        frame = self.model.to_frame(top=top)
        frame.insert(1, "title", frame["phenotype"].map(titles(self.model)))
        sure = certainties(self.model, self.replications, self.summary)
        return frame.assign(certainty=frame["phenotype"].map(lambda r: ", ".join(sure[r])))

    def clinical(self) -> DataFrame:
        """Return clinical measures of the phenotypes, computed from the model alone."""
        rows = [
            {"classification": measures.classification, **asdict(group), "is_about": group.is_about}
            for measures in clinical_measures(self.model)
            for group in measures.enrichments
        ]
        return library("pandas").DataFrame(rows)

    def history(self) -> DataFrame:
        """Return a row for each round: sites, failures, bytes, seconds and, if measured, errors."""
        errors = self.summary.errors
        known = {error.round: asdict(error) for error in errors.error_by_round} if errors else {}
        rows = [
            {
                **asdict(record), "sites": len(record.sites), "failures": len(record.failures),
                "arrivals": len(record.arrivals),
                **known.get(record.round, {}),
            }
            for record in self.records
        ]  # fmt: skip
        return library("pandas").DataFrame(rows).set_index("round")

    def ledger(self) -> DataFrame:
        """Return each site's noisy releases, with the privacy cost of each release."""
        spent = self.summary.spent.per_site if self.summary.spent else {}
        rows = [
            {"site": site, **asdict(event), "rho": event.rho}
            for site, spending in spent.items()
            for event in spending.ledger
        ]
        columns = ["site", "name", "count", "sensitivity", "sigma", "rho", "claim", "seeded"]
        return library("pandas").DataFrame(rows, columns=columns)

    def label(self, number: int, name: str) -> Run:
        """Return the run with a new name for a phenotype. An empty `name` removes the old name.

        If the run has a folder, the new name is also written to the folder.
        """
        new = run_folder.Names({**self.model.names, number: name})
        names = run_folder.checked_names(new, self.model.rank)
        if self.folder:
            run_folder.write_names(self.folder, run_folder.Names({number: name}))
        return replace(self, model=replace(self.model, names=names.phenotypes))

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report as an HTML page, by default ``report.html`` in the run folder."""
        out = None if path is None else Path(path)
        if self.folder is not None and self.folder.exists():
            return write_report(self.folder, out)
        if out is None:
            raise SettingsError("report: give a path; the run has no folder")
        with tempfile.TemporaryDirectory() as folder:
            return write_report(Path(self.save(folder)), out)

    def plot_phenotype(self, number: int, ax: Axes | None = None, *, top: int = 8) -> Axes:
        """Plot the `top` codes of a phenotype in each mode as bars. `number` starts at 1."""
        rows = [row for row in self.model.rows(top=top) if row.phenotype == number]
        if not rows:
            raise DataError(f"phenotype: the model has no number {number}, or it has no codes")
        return self._drawn("phenotype", ax, rows)

    def plot_errors(self, ax: Axes | None = None, *, measure: str = "fit") -> Axes:
        """Plot an error measure for each round. `measure` names a field of `RoundErrors`."""
        return self._drawn("errors", ax, self.summary, measure)

    def plot_traffic(self, ax: Axes | None = None) -> Axes:
        """Plot the bytes sent per round."""
        return self._drawn("traffic", ax, self.records)

    def plot_usage(self, ax: Axes | None = None) -> Axes:
        """Plot a heat map of how strongly each phenotype is present at each site."""
        if self.tables.usage is None:
            raise DataError("usage: known only for a simulation that was measured")
        return self._drawn("usage", ax, self.tables.usage, self.model.names)

    def plot_auc(self, ax: Axes | None = None, *, label: str = "") -> Axes:
        """Plot how well phenotypes and two baselines predict a label (default: the first)."""
        predictions = self.summary.predictions
        label = label or next(iter(predictions), "")
        if label not in predictions:
            raise DataError(
                f"auc: known only for a simulation that was measured, and for these labels: "
                f"{', '.join(predictions) or 'none'}"
            )
        return self._drawn("auc", ax, predictions[label])

    def _drawn(self, what: str, ax: Axes | None, *values: Any) -> Axes:
        """Draw the plot `what` on `ax`, or on new axes if `ax` is None."""
        library("matplotlib")
        from dpfact_flower.evaluation import plots  # noqa: PLC0415 - optional, and slow to import

        if ax is None:
            _, ax = library("matplotlib.pyplot").subplots(figsize=(7.0, 3.6), layout="constrained")
        getattr(plots, what)(ax, *values)
        return ax

    def __repr__(self) -> str:
        spent = self.summary.spent
        cost = "no noise" if spent is None else f"epsilon {rounded_up(spent.epsilon)}"
        price = price_of_replacing(spent.replacing) if spent else ""
        return (
            f"Run({plural(self.summary.rank, 'phenotype')}, {plural(self.summary.sites, 'site')}, "
            f"{plural(self.summary.rounds, 'round')}, {cost}"
            f"{about_rows(price, self.summary.row_unit)} [{self.summary.claim}])"
        )

    def _repr_html_(self) -> str:
        lines = "".join(
            f"<tr><th>{html.escape(label)}</th><td>{html.escape(text)}</td></tr>"
            for label, text in headline(self.summary)
        )
        shown = "" if self.uninformative else self.model._repr_html_()
        return f"<table>{lines}</table>{shown}"
