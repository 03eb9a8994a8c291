"""`write_run`: the run folder of a user's own ServerApp."""

import pytest
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid, ServerApp

from dpfact_flower import (
    DPFact,
    InProcessGrid,
    PrivacySettings,
    RunSettings,
    SolverSettings,
    Vocabulary,
    write_run,
)
from dpfact_flower.client_app import app as client_app
from dpfact_flower.errors import QuorumError, SettingsError
from dpfact_flower.runtime.serve import federate_config
from tests.commands import dpfact


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"privacy": "none"}, marks=pytest.mark.nightly),
        {"patients": 300, "codes": "3x5"},
    ],
)
def test_a_serverapp_of_ones_own_leaves_a_folder_that_report_export_and_label_take(
    cohort, cohort_folder, tmp_path, options, caplog
):
    app, lists = ServerApp(), []
    for vocabulary in cohort.vocabularies:
        vocabulary.save(tmp_path / f"{vocabulary.name}.json")
        lists.append(Vocabulary.load(tmp_path / f"{vocabulary.name}.json"))

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = DPFact(
            [*map(len, lists)], solver=SolverSettings(rank=3),
            privacy=PrivacySettings(**options), run=RunSettings(sites=3, rounds=3),
            run_dir=tmp_path / "run", vocabulary=lists,
        )  # fmt: skip
        strategy.start(grid)
        write_run(strategy, lists)

    nodes = [{"partition-id": n, "num-partitions": 3} for n in range(3)]
    config = {"data": str(cohort_folder), "out": str(tmp_path / "other")}
    app(InProcessGrid(client_app, nodes, config), Context(1, 1, {}, RecordDict(), {}))
    assert f"privacy: {'epsilon 4.000' if 'patients' in options else 'none'}" in caplog.text
    run, site = tmp_path / "run", cohort_folder / "site-1.npz"
    dpfact("label", run, 2, "renal failure")
    dpfact("report", run)
    assert "renal failure" in (run / "report.html").read_text()
    dpfact("export", run, "--phenotypes", tmp_path / "p.csv", "--patients", tmp_path / "m.csv",
           "--data", site)  # fmt: skip
    assert "renal failure" in (tmp_path / "p.csv").read_text()
    again = federate_config({"data": str(cohort_folder), "out": str(tmp_path / "again"), "rank": 3,
                      **options, "rounds": 3})  # fmt: skip
    assert {path.name for path in run.iterdir()} >= {path.name for path in again.iterdir()}


def test_a_strategy_without_a_folder_or_with_other_lists_is_refused(cohort, tmp_path):
    with pytest.raises(SettingsError, match="write_run: give the strategy a run_dir"):
        write_run(DPFact((3, 4)), cohort.vocabularies)
    with pytest.raises(SettingsError, match=r"need code lists of \[3, 4\] codes, got \["):
        write_run(DPFact((3, 4), run_dir=tmp_path), cohort.vocabularies)
    lists = [codes.select(reversed(range(len(codes)))) for codes in cohort.vocabularies]
    strategy = DPFact([*map(len, lists)], run_dir=tmp_path, vocabulary=cohort.vocabularies)
    with pytest.raises(SettingsError, match="the code lists that the strategy's vocabulary names"):
        write_run(strategy, lists)


def test_a_run_of_no_round_has_no_files(cohort, tmp_path):
    strategy = DPFact([*map(len, cohort.vocabularies)], run_dir=tmp_path)
    with pytest.raises(QuorumError, match="no round met the quorum"):
        write_run(strategy, cohort.vocabularies)
    assert not list(tmp_path.iterdir())
