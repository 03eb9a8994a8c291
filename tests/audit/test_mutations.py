"""Each audit is worth something only if it fails where something is wrong: faults are injected.

``python -m pytest tests/audit/test_mutations.py -s`` prints what was measured for each fault; the
table of ``docs/how-to/audit.md`` is made of it.
"""

import pytest

from tests.audit.mutants import MUTANTS, SLOW_MUTANTS


def shown(measured):
    """Four digits, and where that hides by how much 1 was passed, that."""
    excess = measured - 1
    return f"1 + {excess:.2g}" if 0 < excess < 1e-3 else f"{measured:.4g}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [*MUTANTS, *(pytest.param(each, marks=pytest.mark.nightly) for each in SLOW_MUTANTS)],
    ids=", ".join,
)
def test_an_audit_finds(mutant, target, counting_target, run, monkeypatch):
    (fault, audit), (inject, begins) = mutant, (MUTANTS | SLOW_MUTANTS)[mutant]
    inject(monkeypatch)
    chosen = counting_target if audit.endswith("of codes") else target
    findings = run(audit.removesuffix(" of codes"), chosen)
    monkeypatch.undo()
    failed = [found for found in findings if not found.passed]
    named = [found for found in failed if found.name.startswith(begins)]
    assert named, "\n".join(map(str, findings))
    worst = named[0]
    print(f"\n| {fault} | {audit} | {worst.name} | {shown(worst.measured)} | "
          f"{worst.allowed_text} |")  # fmt: skip
