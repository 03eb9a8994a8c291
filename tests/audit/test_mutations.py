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


def check(mutant, subject, run, monkeypatch):
    mutant.inject(monkeypatch)
    findings = run(mutant.audit.removesuffix(" of codes"), subject)
    monkeypatch.undo()
    failed = [f for f in findings if not f.passed]
    named = [f for f in failed if f.name.startswith(mutant.finding)]
    assert named, "\n".join(map(str, findings))
    worst = named[0]
    print(
        f"\n| {mutant.name} | {mutant.audit} | {worst.name} | {shown(worst.measured)} | "
        f"{worst.allowed_text} | {len(failed)} of {len(findings)} |"
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_an_audit_finds(mutant, subject, counting_subject, run, monkeypatch):
    chosen = counting_subject if mutant.audit.endswith("of codes") else subject
    check(mutant, chosen, run, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SLOW_MUTANTS, ids=str)
def test_a_thousand_runs_find(mutant, subject, run, monkeypatch):
    check(mutant, subject, run, monkeypatch)
