"""SuperNodes and configs of a real deployment on loopback, for tests."""

from pathlib import Path

from dpfact_flower.evaluation.run_folder import read_model
from dpfact_flower.server.history import read_history
from tests.bits import assert_bits
from tests.patience import PATIENCE

APP = Path(__file__).parents[2] / "simulation" / "dpfact-app"
CONFIG = {"rounds": 3, "rank": 4, "seed": 5, "privacy": "none", "tau": 2}
PATIENT = {"rank": 4, "seed": 5, "relative-l21": 0.0, "privacy": "patient", "epsilon": 4.0,
           "delta": 1e-5}  # fmt: skip


def site_config(cohort_folder: Path, tmp_path: Path, site: str, **changes) -> dict[str, object]:
    return {
        "site": site, "data-path": str(cohort_folder / f"{site}.npz"),
        "state-dir": str(tmp_path / f"state-{site}"), "allow-privacy": "none", **changes,
    }  # fmt: skip


def server_config(cohort, tmp_path: Path) -> dict[str, object]:
    """Return the config of a deployed server, which has only the public code lists."""
    paths = []
    for vocabulary in cohort.vocabularies:
        path = tmp_path / f"{vocabulary.name}.json"
        vocabulary.save(path)
        paths.append(str(path))
    return {"data": "", "vocabulary": ",".join(paths), "out": str(tmp_path / "deployed"),
            "sites": len(cohort.sites), "min-sites": len(cohort.sites),
            "wait-timeout": PATIENCE}  # fmt: skip


def assert_same(out: Path, expected) -> None:
    """Compare a run's global factors with others, bit for bit."""
    assert_bits(read_model(out)[0], expected)


def assert_arrived(out: Path, *, rounds: int, sites: int = 3) -> None:
    """Check an asynchronous run's rounds: no site occurs twice, and most are in the last."""
    records = read_history(out)
    assert [record.round for record in records] == list(range(1, rounds + 1))
    assert [record.failures for record in records] == [()] * rounds
    arrivals = [each for record in records for each in record.arrivals]
    assert len({(each.site, each.round) for each in arrivals}) == len(arrivals)
    assert all(0 <= each.staleness <= sites * rounds for each in arrivals)
    assert sum(each.round == rounds for each in arrivals) >= 2
    assert len({each.site for each in arrivals}) == sites


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file, or none if there is no file yet."""
    return path.read_text().splitlines() if path.exists() else []
