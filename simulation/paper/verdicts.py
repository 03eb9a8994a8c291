"""Paired differences with intervals, and one rule (`RULE`) for the verdicts on all claims.

Each claim has cases. A case is, for example, a combination of a data set, a rank and two systems.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

Case = Literal["supports", "contradicts", "open"]
Answer = Literal["yes", "partly", "no", "undecided", "not measured"]
LEVEL = 0.95
RULE = (
    "We judge claims by cases, such as comparisons of two systems on one data set. Paired fits "
    "have the same starting point (for RMSE) or the same split of the patients (for AUC). A case "
    f"supports the claim if the {100 * LEVEL:.0f} % confidence interval of the mean paired "
    "difference lies on the claimed side of zero. A case contradicts the claim if the interval "
    "lies on the other side. All other cases are open. The verdict is **yes** if all cases support "
    "the claim, **partly** if only some do, **no** if none does and some contradict the claim, and "
    "**undecided** if all are open. Verdicts exclude our patient mode's cases."
)
"""The rule for all verdicts, as stated on the page."""


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper, our answer, and the cases behind the answer."""

    claim: str
    answer: Answer
    why: str


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences, with its interval at `LEVEL` and a two-sided p-value.

    `spread` is the standard deviation of the individual differences. If there is only one
    difference, `spread` and `p` are NaN and the interval is infinite.
    """

    mean: float
    spread: float
    low: float
    high: float
    p: float

    def interval(self) -> dict[str, float | None]:
        """Return the interval's ends as table columns, or None if the interval is infinite."""
        known = math.isfinite(self.low)
        return {"low": self.low if known else None, "high": self.high if known else None}

    def case(self, wanted: Literal["below", "above"]) -> Case:
        """Judge the claim that the difference is below, or above, zero."""
        below, above = self.high < 0, self.low > 0
        if below or above:
            return "supports" if below == (wanted == "below") else "contradicts"
        return "open"

    def case_within(self, low: float, high: float) -> Case:
        """Judge the claim that the difference is above zero and lies between `low` and `high`."""
        if self.high < low or self.low > high:
            return "contradicts"
        return "supports" if self.low > 0 and low <= self.mean <= high else "open"


def difference(one: ArrayLike, other: ArrayLike, *, overlap: float = 0.0) -> Difference:
    """Return the mean of ``one - other``, pair by pair, with Student's interval and test.

    Splits of one cohort share patients, so their differences are not independent. The variance of
    the mean is therefore ``1/n + overlap`` times the variance of one difference (Nadeau and Bengio
    2003). For repeated splits, `overlap` is the number of test patients over the number of training
    patients. For independent pairs it is 0.
    """
    differences = np.asarray(one, np.float64) - np.asarray(other, np.float64)
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return Difference(mean, math.nan, -math.inf, math.inf, math.nan)
    spread = float(differences.std(ddof=1))
    error = spread * math.sqrt(1 / n + overlap)
    if error == 0:
        return Difference(mean, 0.0, mean, mean, 1.0 if mean == 0 else 0.0)
    reach = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, n - 1))
    return Difference(mean, spread, mean - reach, mean + reach, p)


def held(flag: bool) -> Case:
    """Return the case of a claim about an exact measurement, such as a number of bytes."""
    return "supports" if flag else "contradicts"


def answer(cases: Iterable[Case]) -> Answer:
    """Judge a claim by applying `RULE` to its cases."""
    count = Counter(cases)
    if not count:
        return "not measured"
    if count["supports"]:
        return "yes" if count["supports"] == count.total() else "partly"
    return "no" if count["contradicts"] else "undecided"


def tally(cases: Sequence[Case]) -> str:
    """Count the cases, as in ``2 of 6 support, 1 contradict, 3 open``."""
    count = Counter(cases)
    words: dict[Case, str] = {"contradicts": "contradict", "open": "open"}
    said = [f"{count[case]} {word}" for case, word in words.items() if count[case]]
    return ", ".join([f"{count['supports']} of {len(cases)} support", *said])
