"""Forecast the outcome, memory and traffic of a run in patient mode, from public facts.

The test of docs/results.md compares models of a real cohort with models of shuffled patients. The
forecast is the chance that all models of the real cohort beat every model of shuffled patients.
This chance depends only on the run's strength (see `chance_of`).
"""

import math
from typing import Literal, NamedTuple

from dpfact_flower.errors import plural
from dpfact_flower.estimation.codes import divided_equally
from dpfact_flower.estimation.start import MOST_SEPARATE
from dpfact_flower.privacy.conversions import epsilon_gaussian_discrete
from dpfact_flower.privacy.patient.plan import BYTES_A_VALUE, PatientPlan
from dpfact_flower.privacy.patient.strength import GOOD_STRENGTH, Facts, chance_of
from dpfact_flower.tensor.triangle import strict_size

Verdict = Literal["good", "weak", "hopeless", "unknown"]
Quantity = Literal["rank", "epsilon", "patients", "codes", "sites"]

_HOPELESS, _CLEAR = 0.1, 1.5
"""A run is called hopeless if its chance is below `_HOPELESS` and its signal is below `_CLEAR`.
With a stronger signal, clear-cut phenotypes can still be found."""
_MANY_CODES = 2_000
"""Number of codes in all modes above which `Needs.codes` proposes to keep fewer."""
_REPLY_BYTES, _FITTED_BYTES, _WORKING_BYTES = 4, 12, 60
"""The server's memory in bytes per value: for each site's reply, for each site or group to which
candidates are fitted, and for working matrices."""
_SURROGATE_BYTES = 80_000_000
"""The server's memory in bytes for surrogate patients, which are generated after the start."""
_SENT_BITS, _MASKED_BITS = 12, 32
"""Bits per value (docs/explanation/noise.md), and bits per masked value (48 without `patients`)."""


class Lever(NamedTuple):
    """A quantity that could be changed to improve the forecast.

    `good` is the value that would make the forecast's verdict good, or 0 if no value suffices.
    `chance` is the forecast chance if the quantity is doubled (or, for `rank` and `codes`, halved).
    """

    name: Quantity
    good: float
    chance: float

    @property
    def text(self) -> str:
        """The value of `good` as text: exact for ranks and codes, else rounded up to two digits."""
        if self.name in ("rank", "codes") or self.good <= 0:
            return f"{self.good:,.0f}"
        step = 10.0 ** (math.floor(math.log10(self.good)) - 1)  # two digits
        step = step if self.name == "epsilon" else max(step, 1.0)
        return f"{round(math.ceil(self.good / step - 1e-9) * step, 9):,.15g}"


class Outlook(NamedTuple):
    """The forecast for a plan, computed from public facts alone. Unknown numbers are NaN.

    `sentence` gives the verdict and the changes that would help. `signal` is the start's
    signal-to-noise ratio (`Facts.start_signal`). `levers` starts with the most helpful change.
    """

    verdict: Verdict
    sentence: str
    signal: float
    chance: float
    levers: tuple[Lever, ...]


class Needs(NamedTuple):
    """The memory and traffic of one site, and the memory of the server, in bytes.

    `memory` excludes the patients' data. `server` (the server's memory) is 0 if the number of sites
    is unknown. If a run has many codes, `codes` proposes a smaller selection.
    """

    memory: int
    server: int
    sent: int
    codes: str


def outlook_of(plan: PatientPlan) -> Outlook:
    """Forecast a planned run."""
    facts = plan.facts
    if not facts.known:
        sentence = "The outlook is unknown: set patients and sites to public estimates."
        return Outlook("unknown", sentence, math.nan, math.nan, ())
    signal = facts.start_signal(plan.start.rho)
    strength = signal * math.sqrt(facts.rank)
    chance = chance_of(strength)
    verdict: Verdict = "weak"
    if strength >= GOOD_STRENGTH:
        verdict = "good"
    elif chance < _HOPELESS and signal < _CLEAR:
        verdict = "hopeless"
    levers = _levers(plan, strength)
    sentence = _sentence(plan, verdict, signal, chance, levers)
    return Outlook(verdict, sentence, signal, chance, levers)


def needs_of(plan: PatientPlan) -> Needs:
    """Return the memory and traffic that a planned run needs."""
    facts, counts = plan.facts, [release.count for release in plan.releases]
    slots, bits, learned = 1, _SENT_BITS, facts.sites
    if facts.sharing:
        slots, bits, learned = facts.sharing.slots, _MASKED_BITS, facts.sharing.slots
    every = plan.releases[0].kind != "codes"
    values, fitted = strict_size(sum(facts.sizes)), min(learned, MOST_SEPARATE)
    each = _REPLY_BYTES * facts.sites + _FITTED_BYTES * fitted + _WORKING_BYTES
    return Needs(
        memory=BYTES_A_VALUE * max(counts) * slots,
        server=max(values * each, _SURROGATE_BYTES) if facts.sites else 0,
        sent=sum(counts) * slots * bits // 8,
        codes=_fewer(facts.sizes, _MANY_CODES) if every and sum(facts.sizes) > _MANY_CODES else "",
    )


def _levers(plan: PatientPlan, strength: float) -> tuple[Lever, ...]:
    """Return the quantities that could improve the forecast, the most helpful first.

    `strength` is proportional to the number of patients, and to the parameter mu of Gaussian
    differential privacy. Doubling the rank or the number of codes divides `strength` by sqrt(2).
    """
    facts, lacking = plan.facts, GOOD_STRENGTH / strength
    epsilon, delta = plan.settings.epsilon, plan.settings.delta
    mu = math.sqrt(2 * sum(release.rho for release in plan.releases))
    twice = epsilon_gaussian_discrete(2 * mu, delta, 1)
    # mu is nearly a power of epsilon. The epsilon for twice the mu determines the exponent.
    power = math.log(2) / math.log(twice / epsilon)
    needed = epsilon_gaussian_discrete(mu * lacking, delta, 1)
    needed = needed if math.isfinite(needed) else 0.0  # beyond the proof's limits
    codes, fewest = sum(facts.sizes), facts.rank * len(facts.sizes)
    fewer, root = math.floor(codes / lacking**2), math.sqrt(2)
    steep, gain = (1, 2.0) if facts.sharing else (2, root)

    def lever(name: Quantity, good: float, gain: float) -> Lever:
        return Lever(name, float(good), chance_of(strength * gain))

    levers = (
        lever("rank", math.floor(facts.rank / lacking**2), root if facts.rank > 1 else 1.0),
        lever("epsilon", needed, 2.0**power),
        lever("patients", math.ceil(facts.patients * lacking), 2.0),
        lever("codes", fewer if fewer >= fewest else 0, root),
        lever("sites", math.ceil(facts.sites * lacking**steep), gain),
    )
    return tuple(sorted(levers, key=lambda lever: -lever.chance))  # stable: ties keep their order


def _fewer(sizes: tuple[int, ...], most: int) -> str:
    """Return a `codes` setting that keeps up to `most` codes in total."""
    return "x".join(map(str, divided_equally(most, sizes)))


def _sentence(
    plan: PatientPlan, verdict: Verdict, signal: float, chance: float, levers: tuple[Lever, ...]
) -> str:
    facts = plan.facts
    planned = (
        f"{plural(facts.patients, 'patient')} at {plural(facts.sites, 'site')}, {sum(facts.sizes)} "
        f"codes and {plural(facts.rank, 'phenotype')} at epsilon {plan.settings.epsilon:g}"
    )
    good = GOOD_STRENGTH / math.sqrt(facts.rank)
    found = "the estimated chance that all models beat all fits to shuffled patients is "
    found += f"{100 * chance:.0f} in 100"
    if verdict == "good":
        return f"{planned}: phenotypes are {signal:.1f} times as strong as the noise; {found}."
    ways = [way for lever in levers if (way := _way(lever, facts))]
    helps = f"What helps most: {ways[0]}; or {', '.join(ways[1:])}, or some of each."
    if verdict == "weak":
        return (
            f"{planned}: the noise will blur all but clear-cut phenotypes (signal {signal:.1f}, "
            f"{good:.1f} is good); {found}. {helps}"
        )
    return (
        f"{planned}: the phenotypes will drown in noise (signal {signal:.2f}, {good:.1f} is good), "
        f"so don't spend the budget on this. {helps}"
    )


def _way(lever: Lever, facts: Facts) -> str:
    """Describe the change that would make the verdict good, or return "" if no change would."""
    if lever.name == "rank":
        fewer = "fewer phenotypes" if facts.rank > 1 else ""
        return f"rank = {lever.good:.0f}" if lever.good >= 2 else fewer
    if lever.name == "codes" and lever.good > 0:
        return f"codes = {_fewer(facts.sizes, int(lever.good))}"
    if lever.name == "epsilon" and lever.good > 0:
        return f"epsilon {lever.text}"
    if lever.name in ("patients", "sites"):
        same = " of the same size" if lever.name == "sites" else ""
        return f"{lever.text} {lever.name}{same}"
    return ""
