"""Survivors that no test can or should notice, and why; found by what the line says."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.sample import Mutant


@dataclass(frozen=True)
class Explained:
    """A line whose mutants may live.

    Attributes
    ----------
    path : str
        Below the package.
    before : str
        The line, without its indentation.
    after : tuple of str
        Of the mutants meant, the same line; empty for all of this line.
    why : str
    """

    path: str
    before: str
    after: tuple[str, ...]
    why: str


EXPLAINED: tuple[Explained, ...] = (
    Explained(
        "server/readiness.py",
        'side = "ahead" if self.clock > 0 else "behind"',
        (
            'side = "ahead" if self.clock > 1 else "behind"',
            'side = "ahead" if self.clock > -1 else "behind"',
        ),
        "it is asked where the clock is more than some seconds wrong",
    ),
    Explained(
        "privacy/noise.py",
        "return k % 2 == 1",
        ("return k % 2 >= 1",),
        "the rest of a division by two is 0 or 1",
    ),
    Explained(
        "server/rule.py",
        'return checked_factors(found, rank=like[0].shape[1], who="checkpoint")',
        ('return checked_factors(found, rank=like[ -1].shape[1], who="checkpoint")',),
        "every factor has the same number of columns",
    ),
    Explained(
        "privacy/conversions.py",
        "high = 2 * low",
        ("high = 2 + low",),
        "any upper end will do, for it is doubled until the root lies below",
    ),
    Explained(
        "privacy/conversions.py",
        "high *= 2",
        ("high *= 3",),
        "any upper end will do",
    ),
    Explained(
        "privacy/patient/plan.py",
        "low, high = rho_for_epsilon(epsilon, delta) * _ROUNDING, "
        "mu_for_epsilon(epsilon, delta) ** 2",
        (
            "low, high = rho_for_epsilon(epsilon, delta) / _ROUNDING, "
            "mu_for_epsilon(epsilon, delta) ** 2",
        ),
        "the lower end of a search, which tight zCDP exceeds by more than rounding",
    ),
    Explained(
        "privacy/patient/pairs.py",
        "slot, heads = np.full(everything, -1, np.int64), np.empty(everything + 1, np.int64)",
        ("slot, heads = np.full(everything, - 2, np.int64), np.empty(everything + 1, np.int64)",),
        "whatever is below 0 says that a code has no place yet",
    ),
    Explained(
        "privacy/patient/pairs.py",
        "heads[: size + 1] = 0",
        ("heads[: size + 2] = 0",),
        "one more place of a scratch array is cleared that nothing reads",
    ),
    Explained(
        "site/factor_file.py",
        "shape = (sum(sizes), factors[0].shape[1])",
        ("shape = (sum(sizes), factors[ -1].shape[1])",),
        "every factor has the same number of columns",
    ),
    Explained(
        "privacy/patient/statistics.py",
        "cuts = np.searchsorted(starts, np.linspace(0, starts[-1], threads + 1))",
        ("cuts = np.searchsorted(starts, np.linspace(0, starts[- 2], threads + 1))",),
        "threads share the patients evenly but for one; the sum is the same however they do",
    ),
    Explained(
        "privacy/patient/outlook.py",
        "_SIGNALS = (0.0, 0.2, 0.4, 0.65, 0.9, 1.15, 1.65, 2.5, 3.5, 6.0)",
        (),
        "measured on planted phenotypes: another knot is another measurement",
    ),
    Explained(
        "privacy/patient/outlook.py",
        "_SCORES = (0.0, 0.03, 0.14, 0.32, 0.60, 0.71, 0.85, 0.93, 0.96, 0.98)",
        (),
        "as the line before it",
    ),
    Explained(
        "privacy/patient/plan.py",
        "if not every or len(kept) != len(every) or "
        "any(k > n for k, n in zip(kept, every, strict=True)):",
        (
            "if not every or len(kept) != len(every) or "
            "any(k > n for k, n in zip(kept, every, strict=False)):",
        ),
        "their lengths have just been compared",
    ),
    Explained(
        "server/elastic.py",
        "self._pull(replies, 1)",
        ("self._pull(replies, 0)", "self._pull(replies, -1)"),
        "a round is in parts where there are two or more",
    ),
    Explained(
        "server/status.py",
        'modes = [f"mode {mode}" for mode, _ in enumerate(shape, start=1)]',
        (),
        "what an event is of changes nothing of its cost, and no name is shown here",
    ),
    Explained(
        "site/metrics.py",
        "with Ledger(folder, create=False) as ledger:",
        ("with Ledger(folder, create=True) as ledger:",),
        "it has just been seen to be there",
    ),
)


def reason(mutant: Mutant) -> str | None:
    """Why a mutant may live, or None."""
    for known in EXPLAINED:
        same = mutant.path.as_posix() == f"dpfact_flower/{known.path}"
        if same and mutant.before == known.before and mutant.after in (known.after or mutant.after):
            return known.why
    return None
