"""Describe the scope of a guarantee in plain words, for reports."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dpfact_flower.privacy.events import Neighbours, Unit

UNITS: Mapping[Unit, str] = {
    "patient": "everything that a site holds about one patient",
    "entry": "one cell of a site's table: one patient's count of one combination of codes",
}
NEIGHBOURS: Mapping[Neighbours, str] = {
    "add-remove": "that patient is in the data or not",
    "replace": "that cell holds another value",
}
GIVEN_CODES = "; given the data's code lists"
GIVEN_CODES_AND_NUMBER = "; given the data's code lists and its exact number of patients"
"""Text about facts that a simulation in patient mode takes from the data without noise. These facts
can change with one additional patient, unless public code lists and `patients` are given."""
NOT_COVERED: tuple[str, ...] = (
    "Patient factors and the site's own refitted factors. They stay at the site, un-noised.",
    "Results computed from these factors: errors, use by site, prevalence, mortality "
    "coefficients, AUC, and every such result that a simulation shows.",
    "Choices made by looking at the patients' data outside this run: codes, rank, settings.",
    "Other runs on the same patients: each adds its own cost, and the sites' ledgers add them up.",
    "Patients known to several sites: they can lose the sum of what those sites spent.",
    "That a hospital takes part, which rounds it answers, and how long it takes.",
)


def about_rows(text: str, row_unit: str) -> str:
    """Replace "patient" in a text by the unit of a row, such as "discharge"."""
    return re.sub(r"\bpatient(?=\b|s\b)", row_unit, text)
