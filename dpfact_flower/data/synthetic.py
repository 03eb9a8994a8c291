"""Generate artificial EHR data with planted phenotypes for the demo, tests and experiments.

Each patient has one to four active phenotypes, each of which occurs in one or more time windows.
Codes in the same window count as occurring together. A code is drawn from the phenotype's codes or,
less often, from all codes. Code frequencies follow a power law. Phenotype frequencies differ
between sites, and some phenotypes exist at only one site. A patient's risk of in-hospital death
depends on the patient's phenotypes. The same settings always produce the same data.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from dpfact_flower.data.site_data import DIED, Cohort, SiteData, Truth
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import SettingsError
from dpfact_flower.tensor import Floats, SparseTensor
from dpfact_flower.tensor.arrays import distinct

Ints = NDArray[np.int64]

_MOST_ACTIVE = 4
_DISPERSION = 1.5
"""Variance of the patients' relative visit rates, which have mean 1."""
_SINGULAR = {"diagnoses": "diagnosis"}

TOPICS = (
    "cardiac", "respiratory", "renal", "sepsis", "diabetes", "hypertension", "stroke", "trauma",
    "liver", "pneumonia", "anemia", "arrhythmia", "heart failure", "gastric bleeding", "fracture",
    "cancer", "transplant", "thrombosis", "pancreatitis", "dialysis", "burns", "epilepsy",
    "dementia", "asthma", "COPD", "thyroid", "pregnancy", "newborn", "jaundice", "hernia",
    "appendix", "gallbladder", "bowel", "urinary", "prostate", "spine", "hip", "knee", "shoulder",
    "wound", "skin", "allergy", "poisoning", "alcohol", "depression", "psychosis", "vision",
    "hearing", "coagulation", "nutrition", "electrolytes", "shock", "aneurysm", "valve",
    "vascular", "meningitis", "HIV", "tuberculosis", "lupus", "gout",
)  # fmt: skip
"""Names of planted phenotypes in code descriptions. Further phenotypes are named by number."""


class Mode(NamedTuple):
    """One feature mode: its name, number of codes, and mean number of codes drawn per window."""

    name: str
    size: int
    per_window: float


@dataclass(frozen=True)
class SyntheticSettings:
    """Settings of an artificial cohort. The defaults define the preset ``demo``.

    `modes` lists the feature modes, each as ``name:codes:mean`` (mean number of codes per window).
    `shares` contains each site's share of the patients. `phenotypes` is the number of planted
    phenotypes. `local` is the share of phenotypes that exist at only one site. `distinct` is the
    number of the site that lacks most of the shared phenotypes, or 0 for no site. `active` is the
    mean number of active phenotypes per patient (no patient has more than 4). `windows` is the mean
    number of windows per active phenotype. `repeats` is the mean number of times that a window's
    codes occur, as in repeat visits. `background` is the chance that a code is drawn from all
    codes, not from the phenotype's codes. `mortality` is the share of patients who die in hospital.
    """

    name: str = "demo"
    seed: int = 0
    patients: int = 6000
    modes: str = "procedures:120:2.8,diagnoses:200:6"
    shares: str = "0.35,0.16,0.14,0.14,0.11,0.10"
    phenotypes: int = 12
    local: float = 0.2
    distinct: int = 0
    active: float = 1.7
    windows: float = 3.0
    repeats: float = 1.5
    background: float = 0.15
    mortality: float = 0.1

    @property
    def feature_modes(self) -> tuple[Mode, ...]:
        """The feature modes."""
        parts = (part.split(":") for part in self.modes.split(","))
        return tuple(Mode(name, int(size), float(mean)) for name, size, mean in parts)

    @property
    def site_shares(self) -> Floats:
        """Each site's share of the patients, scaled so that the shares sum to one."""
        shares = np.array([float(share) for share in self.shares.split(",")])
        return np.asarray(shares / shares.sum())

    @property
    def site_sizes(self) -> Ints:
        """Number of patients at each site, rounded by the largest-remainder method."""
        exact = self.site_shares * self.patients
        sizes = np.floor(exact).astype(np.int64)
        short = self.patients - int(sizes.sum())
        sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
        return sizes


_PAPER_MIMIC = SyntheticSettings(
    name="paper-mimic", patients=40_662, modes="procedures:202:2.8,diagnoses:316:5.45",
    phenotypes=50,
)  # fmt: skip
PRESETS: Mapping[str, SyntheticSettings] = {
    "demo": SyntheticSettings(),
    # Like the paper's synthetic tensor: same size and sparsity, five equal sites, 12,000 non-zeros.
    "paper-synthetic": SyntheticSettings(
        name="paper-synthetic", patients=5000, modes="procedures:300:1.2,diagnoses:800:1.8",
        shares="0.2,0.2,0.2,0.2,0.2", phenotypes=20, active=1.1, windows=1.1,
    ),
    # Like the paper's MIMIC-III tensor: the same sizes, and six intensive care units as sites.
    "paper-mimic": _PAPER_MIMIC,
    # Variants whose last site's patients differ greatly, like those of the paper's neonatal unit.
    "demo-icu": SyntheticSettings(name="demo-icu", distinct=6),
    "paper-icu": replace(_PAPER_MIMIC, name="paper-icu", distinct=6),
    # Like the paper's CMS tensor: same sizes and sparsity, five equal samples, 725,000 non-zeros.
    "paper-cms": SyntheticSettings(
        name="paper-cms", patients=82_307, modes="procedures:2532:1.35,diagnoses:10983:2.3",
        shares="0.2,0.2,0.2,0.2,0.2", phenotypes=50, active=1.3, windows=2.4,
    ),
}  # fmt: skip


def preset(name: str, /, **changes: Any) -> SyntheticSettings:
    """Return one of `PRESETS`, such as ``demo`` or ``paper-mimic``, with the given changes."""
    if name not in PRESETS:
        raise SettingsError(f"preset: must be one of {', '.join(PRESETS)}; got {name!r}")
    return replace(PRESETS[name], **changes)


def synthetic(settings: SyntheticSettings | str = "demo") -> Cohort:
    """Generate an artificial cohort from settings or from the name of a preset."""
    if isinstance(settings, str):
        settings = preset(settings)
    if (settings.site_sizes < 1).any():
        raise SettingsError("patients, shares: every site needs a patient or more")
    planting, drawing, seeing, dying = np.random.default_rng(settings.seed).spawn(4)
    sources, prevalence, risk = _plant(settings, planting)
    members = _members(settings, prevalence, drawing)
    patient, phenotype, times = _windows(settings, members, seeing)
    codes = [
        _codes_in_windows(mode, source, phenotype, settings.background, seeing)
        for mode, source in zip(settings.feature_modes, sources, strict=True)
    ]
    died = _deaths(members, risk, settings.mortality, dying)
    factors = [source[:, :-1] for source in sources]
    vocabularies = tuple(map(_vocabulary, settings.feature_modes, factors))

    window, combinations = _combinations(codes)
    patient, times = patient[window], times[window]
    sites, first = [], 0
    for number, size in enumerate(settings.site_sizes.tolist(), 1):
        rows = slice(*np.searchsorted(patient, [first, first + size]))
        indices = np.column_stack([patient[rows] - first, combinations[rows]])
        tensor = SparseTensor.from_coo(indices, times[rows], (size, *map(len, vocabularies)))
        name, labels = f"site-{number}", {DIED: died[first : first + size]}
        ids = tuple(f"{name}-{row:07d}" for row in range(size))
        sites.append(SiteData(name, tensor, vocabularies, labels, ids))
        first += size
    unit = tuple(factor / np.linalg.norm(factor, axis=0) for factor in factors)
    return Cohort(settings.name, tuple(sites), Truth(unit, prevalence > 0))


def true_memberships(settings: SyntheticSettings) -> tuple[NDArray[np.bool_], ...]:
    """Return a mask of active phenotypes, of shape (patients, phenotypes), for each site."""
    planting, drawing, _, _ = np.random.default_rng(settings.seed).spawn(4)
    members = _members(settings, _plant(settings, planting)[1], drawing)
    return tuple(np.split(members, np.cumsum(settings.site_sizes)[:-1]))


def _plant(
    settings: SyntheticSettings, rng: np.random.Generator
) -> tuple[list[Floats], Floats, Floats]:
    sources = [_plant_mode(mode.size, settings.phenotypes, rng) for mode in settings.feature_modes]
    return sources, _plant_prevalence(settings, rng), _plant_risk(settings, rng)


def _plant_mode(size: int, phenotypes: int, rng: np.random.Generator) -> Floats:
    """Draw code probabilities: a column per phenotype, and a last column for background codes."""
    frequency = (np.arange(size) + 6.0) ** -0.8
    popularity = rng.permutation(frequency / frequency.sum())
    fewest = min(size, 12, max(4, round(0.02 * size)))
    most = min(size, 2 * fewest)
    source = np.zeros((size, phenotypes + 1))
    source[:, -1] = popularity
    for r in range(phenotypes):
        support = rng.choice(size, rng.integers(fewest, most + 1), replace=False, p=popularity)
        source[support, r] = rng.dirichlet(np.full(len(support), 1.5))
    return source


def _plant_prevalence(settings: SyntheticSettings, rng: np.random.Generator) -> Floats:
    """Draw each site's distribution over phenotypes, as an array (sites, phenotypes)."""
    shares, rank = settings.site_shares, settings.phenotypes
    sites = len(shares)
    common = (np.arange(rank) + 4.0) ** -0.7
    prevalence = common * rng.gamma(2.0, 0.5, (sites, rank))
    shared = rank - round(settings.local * rank) if sites > 1 else rank
    apart = settings.distinct - 1  # -1: no site is distinct
    homes = rng.permutation(sites)
    for position, r in enumerate(range(shared, rank)):
        # A distinct site gets every second local phenotype. The others go to sites in turn.
        home = apart if apart >= 0 and position % 2 == 0 else int(homes[position % sites])
        prevalence[:, r] = 0
        prevalence[home, r] = common.mean() * 0.5 / shares[home]  # higher at small sites
    if apart >= 0:
        kept_shared = max(1, round(0.2 * shared))
        prevalence[apart, rng.permutation(shared)[kept_shared:]] = 0
    return np.asarray(prevalence / prevalence.sum(axis=1, keepdims=True))


def _plant_risk(settings: SyntheticSettings, rng: np.random.Generator) -> Floats:
    """Draw the effect of each phenotype on the log odds of death."""
    rank = settings.phenotypes
    raising, lowering = -(-rank // 3), rank // 6
    risk = np.zeros(rank)
    order = rng.permutation(rank)
    risk[order[:raising]] = rng.uniform(1.5, 3.0, raising)
    risk[order[raising : raising + lowering]] = -rng.uniform(0.5, 1.5, lowering)
    return risk


def _members(
    settings: SyntheticSettings, prevalence: Floats, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw each patient's phenotypes without replacement (Gumbel trick), and return a mask."""
    sizes = settings.site_sizes
    shape = (settings.patients, settings.phenotypes)
    active = 1 + rng.poisson(settings.active - 1, settings.patients)
    with np.errstate(divide="ignore"):  # phenotypes with a prevalence of 0 are never drawn
        log_prevalence = np.log(prevalence)
    keys = np.repeat(log_prevalence, sizes, axis=0) + rng.gumbel(size=shape)
    most = min(_MOST_ACTIVE, settings.phenotypes)
    best = np.argsort(keys, axis=1)[:, : -most - 1 : -1]
    members = np.zeros(shape, bool)
    wanted = np.arange(most) < active[:, None]
    np.put_along_axis(members, best, wanted & np.isfinite(np.take_along_axis(keys, best, 1)), 1)
    return members


def _windows(
    settings: SyntheticSettings, members: NDArray[np.bool_], rng: np.random.Generator
) -> tuple[Ints, Ints, Ints]:
    """Draw windows. Return each window's patient, phenotype and number of occurrences."""
    frailty = rng.gamma(1 / _DISPERSION, _DISPERSION, settings.patients)
    patient, phenotype = np.nonzero(members)
    windows = 1 + rng.poisson((settings.windows - 1) * frailty[patient])
    patient, phenotype = np.repeat(patient, windows), np.repeat(phenotype, windows)
    return patient, phenotype, rng.geometric(1 / settings.repeats, len(patient))


def _codes_in_windows(
    mode: Mode, source: Floats, phenotype: Ints, background: float, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Draw each window's distinct codes in one mode. Return sorted (window number, code) pairs."""
    drawn = 1 + rng.poisson(mode.per_window - 1, len(phenotype))
    window = np.repeat(np.arange(len(drawn)), drawn)
    column = phenotype[window]
    column[rng.random(len(window)) < background] = source.shape[1] - 1
    key = distinct(window * mode.size + _categorical(source, column, rng))
    return key // mode.size, key % mode.size


def _categorical(distributions: Floats, column: Ints, rng: np.random.Generator) -> Ints:
    """Draw codes. Each number in `column` selects the column of `distributions` to draw from."""
    size = len(distributions)
    cumulative = np.cumsum(distributions, axis=0)
    cumulative /= cumulative[-1]
    # Column c's distribution function is shifted by c, so one sorted array holds all columns.
    steps = (cumulative + np.arange(distributions.shape[1])).T.ravel()
    found = np.searchsorted(steps, column + rng.random(len(column)), side="right")
    return np.asarray(np.minimum(found - column * size, size - 1))


def _combinations(codes: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints]:
    """Combine each window's codes, one per mode. Return each combination's window and codes."""
    window, first = codes[0]
    columns = [first]
    for other_window, other in codes[1:]:
        start = np.searchsorted(other_window, window)
        length = np.searchsorted(other_window, window, side="right") - start
        row = np.repeat(np.arange(len(window)), length)
        within = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
        columns = [*(column[row] for column in columns), other[start[row] + within]]
        window = window[row]
    return window, np.column_stack(columns)


def _deaths(
    members: NDArray[np.bool_], risk: Floats, mortality: float, rng: np.random.Generator
) -> NDArray[np.int8]:
    """Draw deaths from a logistic model whose mean risk of death is `mortality`."""
    score = members @ risk

    def excess(intercept: float) -> float:
        return float(expit(score + intercept).mean()) - mortality

    intercept: Any = brentq(excess, -100, 100)
    return np.asarray(rng.random(len(score)) < expit(score + intercept), np.int8)


def _vocabulary(mode: Mode, factor: Floats) -> Vocabulary:
    """Return codes such as P017. Describe a code by the phenotype in which it is most probable."""
    digits = len(str(mode.size - 1))
    kind = _SINGULAR.get(mode.name, re.sub("s$", "", mode.name)).capitalize()
    names = [*TOPICS, *(f"topic {n}" for n in range(len(TOPICS) + 1, factor.shape[1] + 1))]
    topics = [names[row.argmax()] if row.any() else "general" for row in factor]
    numbers = [f"{code:0{digits}d}" for code in range(mode.size)]
    return Vocabulary(
        mode.name,
        tuple(f"{kind[0]}{number}" for number in numbers),
        tuple(f"{kind} {number} ({topic})" for number, topic in zip(numbers, topics, strict=True)),
    )
