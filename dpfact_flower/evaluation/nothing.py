"""A model that has learned nothing, in words: what is wrong and the way out."""

from __future__ import annotations

from dpfact_flower.evaluation.summary import Summary
from dpfact_flower.evaluation.words import percent

NOTHING = "the phenotypes explain nothing"
"""Why a figure is missing where it would describe noise."""
_WAYS_OUT = {
    "none": "start = cooccurrence, more rounds, fewer or more frequent codes, or a lower rank",
    "paper": "a larger epsilon, or privacy = patient; the paper's noise seldom leaves anything",
    "patient": "more patients, fewer codes (codes), a lower rank or a larger epsilon; "
    "dpfact plan says how much of each",
}


def nothing_learned(summary: Summary) -> str:
    """A sentence for whoever reads the run's result; empty where something was learned."""
    measured = summary.measured
    if measured is None or not measured.explains_nothing:
        return ""
    assert measured.fit_shared is not None
    assert measured.fit_frequencies is not None
    return (
        f"the shared phenotypes explain {percent(measured.fit_shared)} of the data, no more than "
        f"how frequent each code is ({percent(measured.fit_frequencies)}): they are noise, so no "
        f"prevalence, odds or AUC is shown. What can help: {_WAYS_OUT[summary.privacy]}"
    )
