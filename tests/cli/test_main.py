"""The command line, as a person uses it."""

import io
import json
import math
import re
import subprocess
import sys
import tomllib

import pytest
from rich.console import Console

from dpfact_flower import __version__, cli
from dpfact_flower.cli import options
from dpfact_flower.cli.options import APP_FOLDER, app_config, parse_assignments, run_config
from dpfact_flower.data.synthetic import PRESETS
from dpfact_flower.errors import DPFactError, SettingsError
from dpfact_flower.runtime.config import RunConfig, prepare_data
from dpfact_flower.settings import AppSettings
from tests.commands import dpfact


@pytest.mark.slow
def test_help_teaches_every_command():
    commands = {
        (): "data ledger centre site keys plan audit run simulate demo init superlink "
        "submit status report compare export label review survey settings",
        ("data",): "synthetic mimic3 mimic4 eicu synpuf omop meds nhds tns events show",
        ("ledger",): "show verify backup restore",
        ("centre",): "init admit",
        ("site",): "init answer check connect metrics close refit",
    }
    for group, names in commands.items():
        shown = dpfact(*group, "--help")
        listed = re.findall(r"^[^\w-]+([a-z0-9]+) {2,}[A-Za-z]", shown, re.MULTILINE)
        assert sorted(listed) == sorted(names.split())
    for command, sizes in (("mimic3", True), ("eicu", False), ("nhds", True)):
        shown = dpfact("data", command, "--help")
        assert "SOURCE is" in shown
        assert ("(202x316)" in shown, "(0x0)" in shown) == (sizes, False)
    assert set(PRESETS) <= set(re.findall(r"[\w-]+", dpfact("data", "synthetic", "--help")))


@pytest.mark.slow
def test_data_run_and_report(cohort_folder, tmp_path, monkeypatch):
    data, out = tmp_path / "data", tmp_path / "run"
    assert dpfact("data", "synthetic", "paper-synthetic", "--out", data).count("site-") == 5
    assert "1,000" in dpfact("data", "show", data)
    settings = ("-s", "rounds=2", "-s", "rank=3", "-s", "privacy=none")
    command = ["run", "--data", cohort_folder, "--out", out, *settings]
    assert "no privacy guarantee" in dpfact(*command)
    with pytest.raises(SettingsError, match=r"holds a finished run already; .* --force"):
        dpfact(*command)
    with pytest.raises(SettingsError, match="did you mean 'rank'"):  # the folder causes no error
        dpfact(*command, "--force", "-s", "rnak=3")
    (out / "report.html").unlink()
    assert "report.html" in dpfact("report", out)
    assert (out / "report.html").exists()
    dpfact("label", out, 1, "renal failure")
    (out / "beside.json").write_text("[]")
    of_the_model = {"names.toml", "beside.json"}
    dpfact(*command, "--force")  # the same model
    assert of_the_model <= {path.name for path in out.iterdir()}
    dpfact(*command, "--force", "-s", "rank=2")
    assert of_the_model.isdisjoint(path.name for path in out.iterdir())
    with pytest.raises(SettingsError, match="holds a finished run already"):
        dpfact("demo", "--out", out)  # which replaces only demos
    asked = []
    monkeypatch.setattr(
        "dpfact_flower.cli.run.simulate", lambda *_, force, **__: asked.append(force)
    )
    dpfact("demo", "--out", out, "--force")
    dpfact("demo", "--out", tmp_path / "new")
    summary = out / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"name": "demo"}))
    dpfact("demo", "--out", out)
    assert asked == [True, False, True]


def test_as_many_phenotypes_are_sought_as_were_planted_or_an_app_says(tmp_path, monkeypatch):
    assert run_config(APP_FOLDER, [], data="synthetic:paper-synthetic")["rank"] == 20
    assert run_config(APP_FOLDER, [], data=str(tmp_path))["rank"] == 12
    monkeypatch.chdir(tmp_path)  # the app is found wherever a command starts
    assert run_config(APP_FOLDER, [], data="synthetic:")["rank"] == 12
    assert run_config(APP_FOLDER, ["rank=3"], data="synthetic:")["rank"] == 3
    own = (APP_FOLDER / "pyproject.toml").read_text().replace("rank = 12", "rank = 7")
    (tmp_path / "pyproject.toml").write_text(own.replace("synthetic:demo", "data/ours"))
    config = run_config(tmp_path, [], data=None)
    assert (config["data"], config["rank"]) == ("data/ours", 7)
    with pytest.raises(SettingsError, match="use --data"):
        run_config(tmp_path, ["data=elsewhere"], data=None)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "says"), [("checkpoint.npz", "resume=true"), ("x", "nothing")])
def test_ctrl_c_ends_a_run_with_a_line_that_says_what_was_kept(tmp_path, monkeypatch, file, says):
    def stop(config, watch):
        (tmp_path / file).touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("dpfact_flower.runtime.serve.federate_config", stop)
    assert re.fullmatch(rf"stopped: .*{says}.*\n", dpfact("run", "--out", tmp_path, code=130))


@pytest.mark.slow
def test_flowers_log_is_shown_on_request_and_json_stands_alone(cohort_folder, tmp_path, caplog):
    settings = ("-s", "rounds=1", "-s", "rank=2", "-s", "privacy=none")
    for more in ((), ("-v",), ("-q",), ("--json", "-q")):
        caplog.clear()
        out = tmp_path / "-".join(("run", *more))
        text = dpfact("run", "--data", cohort_folder, "--out", out, *settings, *more)
        assert ("Aggregated MetricRecord" in caplog.text) is (more == ("-v",))
    assert json.loads(text) == json.loads((out / "summary.json").read_text())


def test_a_version_and_completion_are_there():
    assert dpfact("--version").startswith(f"dpfact-flower {__version__} (flwr ")
    assert "--install-completion" in dpfact("--help")


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dpfact_flower.cli.run.find_spec", lambda name: None)
    for command in ("simulate", "demo"):
        with pytest.raises(DPFactError, match=r'pip install "dpfact-flower\[simulation\]"'):
            dpfact(command, "--out", str(tmp_path / "run"))


def test_a_setting_written_as_an_option_is_answered_with_how_to_write_it():
    said = dpfact("simulate", "--epsilon", 4, code=2, width=200)
    assert "No such option '--epsilon'. It is a setting: write -s epsilon=VALUE." in said
    assert "Did you mean" in dpfact("simulate", "--outt", 4, code=2, width=200)
    assert "setting" not in dpfact("compare", "--epsilon", 4, code=2, width=200)


def test_the_wheel_has_the_flower_app():
    """`dpfact demo` works without a clone of the repository."""
    root = APP_FOLDER.parents[1]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    ours = APP_FOLDER.relative_to(root).as_posix()
    assert wheel["only-include"] == ["dpfact_flower", ours]
    assert wheel["sources"] == {ours: "dpfact_flower/flower_app"}


def test_the_flower_app_has_every_setting_at_the_librarys_default(tmp_path):
    """Flower accepts no other keys on its command line. A run is the same wherever it starts."""
    assert app_config(APP_FOLDER) == RunConfig.read({}).write()
    text = dpfact("settings")
    for key in ("elastic-step", "mu-from-round", "allow-privacy", "state-dir", "epsilon"):
        assert key in text
    assert "different defaults" not in text
    own = (APP_FOLDER / "pyproject.toml").read_text().replace("rank = 12", "rank = 7")
    (tmp_path / "pyproject.toml").write_text(own)
    assert "has different defaults: rank = 7\n" in dpfact("settings", "--app", str(tmp_path))
    (tmp_path / "pyproject.toml").write_text('[tool.flwr.app]\npublisher = "north"\n')
    assert run_config(tmp_path, ["rank=3"], data=None) == {"rank": 3}  # an app without a config


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--out", "x", "-s", "rank"], "need key=value"),
        (["run", "--out", "x", "-s", "out=y"], "out is an option of this command: use --out"),
        (["run", "--out", "x", "--data", "/nowhere"], "/nowhere"),
        (["data", "mimic3", "/nowhere", "--out", "x"], "/nowhere"),
        (["data", "eicu", ".", "--out", "x", "--top=-3x4"], "such as 202x316"),
        (["data", "synpuf", ".", "--out", "x", "--group", "a=1;2"], "need sites as SITE=1,2,3"),
        (["simulate", "--out", "x", "--app", "/nowhere"], "is not a Flower App"),
        (["data", "show", "/nowhere"], "error (data): /nowhere/cohort.json: no such file"),
        (["run", "--out", "x", "-s", "job=[/red]"], "error (settings): job: '[/red]' does not"),
        (["data", "show", "file"], "error (data): file/cohort.json: no such file; is this a"),
        (["compare", "a", "./a"], "error (data): runs: one folder is given twice"),
        (["report", "file"], "error (data): file/global_model.npz: no such file; is this the"),
        (["run", "--out", "x", "--app", "app"], "error (settings): --app: app/pyproject.toml is"),
    ],
)
def test_an_error_ends_the_command_with_2_one_clear_line_and_nothing_written(
    arguments, says, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "pyproject.toml").write_text("not = [TOML")
    monkeypatch.setattr(sys, "argv", ["dpfact", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(("error (data): ", "error (settings): "))
    assert says in said
    assert {path.name for path in tmp_path.iterdir()} == {"file", "app"}


@pytest.mark.parametrize("out", ["", " ", "file", "file/below", "~nosuchuser/x"])
def test_where_no_folder_can_be_is_refused_before_anything_is_read(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for command in (["run"], ["simulate"], ["data", "synthetic"], ["data", "mimic3", "/nowhere"]):
        assert "need a folder" in dpfact(*command, "--out", out, code=2)


@pytest.mark.process
def test_the_package_is_the_command_too():
    command = [sys.executable, "-m", "dpfact_flower", "plan", "--sizes", "20x30"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "round 1, start" in done.stdout


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("dpfact_flower", {"numpy", "numba", "flwr"}),
        ("dpfact_flower.privacy", {"torch", "opacus", "dp_accounting", "flwr"}),
        ("dpfact_flower.data.readers.event_tables", {"duckdb"}),
        ("dpfact_flower.data.readers.runner", {"duckdb"}),
    ],
)
def test_importing_is_light(module, heavy):
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_another_preset_is_other_data_and_an_unknown_one_leaves_nothing_behind(tmp_path):
    """Data from an earlier run in the sites' folder is not used for this run."""
    unknown, *places = [AppSettings(data=f"synthetic:{name}", out=str(tmp_path / "run"))
                        for name in ("nonsense", "demo", "paper-synthetic")]  # fmt: skip
    with pytest.raises(DPFactError, match="nonsense"):
        prepare_data(unknown)
    assert not list(tmp_path.iterdir())
    assert [len(prepare_data(place)) for place in places] == [6, 5]


@pytest.mark.parametrize(("terminal", "hidden"), [(True, False), (True, True), (False, False)])
def test_a_terminal_shows_a_bar_with_the_time_left_unless_hidden(terminal, hidden, monkeypatch):
    drawn = io.StringIO()

    def console(**_):
        return Console(file=drawn, force_terminal=terminal, width=100, color_system=None)

    monkeypatch.setattr(options, "Console", console)
    with options.progress(hidden=hidden) as watch:
        watch("rounds", 0.0)
        watch("rounds", 0.5)
    shown = [text in drawn.getvalue() for text in ("rounds", "50%", "-:--:--")]
    assert shown == [terminal and not hidden] * 3


# --- settings on the command line


PARSED = [
    ("rank=3", 3), ("noise-seed=-1", -1), ("eta=0.5", 0.5), ("eta=1e-3", 1e-3),
    ("resume=true", True), ("nonnegative=false", False), ("solver=psgd", "psgd"),
    ('out="runs/a b"', "runs/a b"), ("out='3'", "3"), ("out=~/runs/a-b_c.d", "~/runs/a-b_c.d"),
    ("data=synthetic:demo", "synthetic:demo"), ("allow-privacy=none,paper", "none,paper"),
    ("out=a=b", "a=b"), (" rank = 3 ", 3), (" solver = psgd ", "psgd"), ("job=", ""),
    ("job=007", "007"), ("gamma=inf", math.inf), ('out="x', '"x'), ("out=2024-01-01", "2024-01-01"),
    ("out=a#b", "a#b"), ("out=1#2", "1#2"), ("x='a#b'", "a#b"),
    (f"job={'1' * 5000}", "1" * 5000), (f"job={'[' * 3000}", "[" * 3000),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PARSED)
def test_assignments(text, expected):
    ((key, value),) = parse_assignments([f"{text.split('=')[0]}=1", text]).items()  # the last wins
    assert (key, value, type(value)) == (text.split("=")[0].strip(), expected, type(expected))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rank", "need key=value, got 'rank'"), ("  =3", "need key=value"),
        ("", "need key=value"), ("rank=[1, 2]", "^rank: need a single value"),
    ],
)  # fmt: skip
def test_bad_assignments(text, says):
    with pytest.raises(SettingsError, match=says):
        parse_assignments(["tau=1", text])
