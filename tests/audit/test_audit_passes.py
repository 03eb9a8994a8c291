"""The code as it is passes its audits, on several kinds of sites and settings."""

import numpy as np
import pytest

from dpfact_flower.audit import AuditTarget, audit, audit_state
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary
from dpfact_flower.errors import StateError
from dpfact_flower.privacy.ledger import LEDGER, Ledger
from dpfact_flower.settings import PrivacySettings, SolverSettings
from dpfact_flower.tensor import SparseTensor

AUDITS = ("sensitivity", "noise", "likelihood")


def three_modes() -> AuditTarget:
    """Three feature modes, a small epsilon and the smallest bound."""
    rng, sizes = np.random.default_rng(3), {"procedures": 4, "diagnoses": 5, "drugs": 3}
    cells = np.column_stack([rng.integers(0, n, 120) for n in (15, *sizes.values())])
    site = SiteData(
        "three",
        SparseTensor.from_coo(cells, rng.integers(1, 4, 120), (15, *sizes.values())),
        tuple(Vocabulary(m, tuple(f"{m}{n}" for n in range(k))) for m, k in sizes.items()),
    )
    privacy = PrivacySettings(epsilon=0.2, delta=1e-3, bound=1e-3)
    return AuditTarget.of(site, SolverSettings(rank=2), privacy)


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("counting_target", "three_modes")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["target", *SLOW])
@pytest.mark.parametrize("name", AUDITS)
def test_the_code_passes(name, kind, run, request):
    audited = three_modes() if kind == "three_modes" else request.getfixturevalue(kind)
    findings = run(name, audited)
    assert all(finding.passed for finding in findings), "\n".join(map(str, findings))


def test_settings_that_seed_the_noise_fail(target, run):
    findings = run("noise", target, values=1500, seeded=True)
    failed = [finding for finding in findings if not finding.passed]
    assert [finding.name for finding in failed] == ["noise source"]
    assert "noise-seed" in failed[0].detail


def test_a_sites_own_folder_is_open_to_nobody_else_and_its_ledger_whole(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    folder = tmp_path / "state" / "north"
    with Ledger(folder):
        pass
    assert [finding.measured for finding in audit_state(folder)] == [0, 0]
    (folder / "job").mkdir(mode=0o755)
    rights, ledger = audit_state(folder)
    assert rights.measured == 1
    assert "chmod 700" in rights.detail
    assert ledger.passed
    content = bytearray((folder / LEDGER).read_bytes())
    content[100:200] = bytes(100)
    (folder / LEDGER).write_bytes(content)
    with pytest.raises(StateError, match="malformed"):  # `audit` makes a finding of it
        audit_state(folder)


@pytest.mark.nightly
def test_all_audits_of_a_cohort_at_full_length(cohort, tmp_path):
    told = []
    findings = audit(
        cohort,
        SolverSettings(rank=4, relative_l21=0.3),
        PrivacySettings(),
        site="site-2",
        state_dir=tmp_path,
        watch=lambda name, share: told.append((name, share)),
    )
    wrong = [finding for finding in findings if not finding.passed]
    assert [finding.name for finding in wrong] == ["state: broke off"]  # there is no ledger
    assert {name for name, share in told if share == 1.0} == set(AUDITS)
