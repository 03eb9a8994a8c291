"""Build, inspect, install and test the wheel and the source archive.

    python -m laboratory.packages --python python3.11 --python python3.12

Each package is installed in an empty environment of each Python, without extras and without access
to the checkout. Then the wheel is tested in Flower's simulation, with `dpfact demo`, and with `flwr
run` in a project that `dpfact init` wrote. `make packages` tries every available Python.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from dpfact_flower import __version__

ROOT = Path(__file__).parents[1]
APP, INSTALLED_APP = "simulation/dpfact-app/", "dpfact_flower/flower_app/"
ELSEWHERE = (".ci/", ".devcontainer/", ".github/", ".pre-commit-config.yaml")
"""Files that only the repository needs."""
PLAN = "plan --sizes 202x316 --patients 40000 --sites 6 --rank 20 --epsilon 4"
RUN = "run --out run -q -s privacy=none -s rounds=2 -s rank=4"
FLWR_RUN = """
from pathlib import Path
from dpfact_flower.runtime.superlink import local_superlink
with local_superlink(Path("flwr").resolve(), simulation=True) as superlink:
    config = {"out": str(Path("flower").resolve()), "rounds": 2, "privacy": "none"}
    nodes = "num-supernodes=6 client-resources-num-cpus=1"
    superlink.run(Path("study"), config, federation_config=nodes)
"""
"""`flwr run` with a SuperLink that ends together with the run."""
HIDDEN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def run(*command: str | Path, cwd: Path) -> str:
    """Return a command's output. If the command fails, end the program and show its output."""
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def environment(python: str, folder: Path) -> Path:
    """Create an empty environment, and return the folder with its commands."""
    run(python, "-m", "venv", folder, cwd=folder.parent)
    return folder / "bin"


def tracked() -> set[str]:
    """Return the repository's files, including uncommitted files."""
    listed = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT
    ).split("\0")
    return {name for name in listed if name and not (ROOT / name).is_symlink()}


def check(what: str, found: set[str], expected: set[str]) -> None:
    """If there are unexpected or missing files, end the program with a list of them."""
    strange, missing = sorted(found - expected), sorted(expected - found)
    if strange or missing:
        sys.exit(f"{what}: should not hold {strange}; lacks {missing}")
    print(f"{what}: {len(found)} files, as it should be")


def build(out: Path) -> tuple[Path, Path]:
    """Build the wheel and the archive from the checkout, in a separate environment."""
    tools = environment(sys.executable, out / "tools")
    run(tools / "pip", "install", "--quiet", "build", "twine", cwd=out)
    run(tools / "python", "-m", "build", "--outdir", out / "dist", ROOT, cwd=out)
    (wheel,), (archive,) = (out / "dist").glob("*.whl"), (out / "dist").glob("*.tar.gz")
    run(tools / "twine", "check", "--strict", wheel, archive, cwd=out)
    return wheel, archive


def look_into(wheel: Path, archive: Path) -> None:
    """Compare the files in the wheel and in the archive with the repository's files."""
    files = tracked()
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in opened.namelist() if name.endswith("/METADATA"))
        text = opened.read(metadata).decode()
    if relative := re.findall(r'(?:\]\(|src=")(?!https:)[^)"]*', text):
        sys.exit(f"{wheel.name}: its description links to files that an index lacks: {relative}")
    ours = {name for name in files if name.startswith("dpfact_flower/")}
    app = {name.replace(APP, INSTALLED_APP) for name in files if name.startswith(APP)}
    check(wheel.name, held, ours | app)
    with tarfile.open(archive) as opened:
        held = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    check(archive.name, held - {"PKG-INFO"}, {n for n in files if not n.startswith(ELSEWHERE)})


def use(python: str, package: Path, out: Path) -> None:
    """Install a package in an empty environment, and try its commands in an empty folder."""
    began = time.monotonic()
    kind = "wheel" if package.suffix == ".whl" else "archive"
    folder = out / f"{Path(python).name}-{kind}"
    folder.mkdir()
    bin_ = environment(python, folder / "env")

    def pip(what: str) -> None:
        constraints = ROOT / "constraints.txt"
        run(bin_ / "pip", "install", "--quiet", "-c", constraints, what, cwd=folder)

    pip(str(package))
    installed, home = time.monotonic() - began, folder / "home"
    home.mkdir()

    def dpfact(arguments: str) -> str:
        return run(bin_ / "dpfact", *arguments.split(), cwd=home)

    assert dpfact("--version").startswith(f"dpfact-flower {__version__} (flwr ")
    assert "Releases of each site" in dpfact(PLAN)
    dpfact("init study -s rank=5")
    assert re.search(r"different defaults: rank = 5\s", dpfact("settings --app study"))
    dpfact(RUN)
    assert (home / "run" / "summary.json").exists()
    if kind == "wheel":
        pip(f"{package}[simulation,report]")
        assert "report.html" in dpfact("demo -q").splitlines()[-1]
        run(bin_ / "python", "-c", FLWR_RUN, cwd=home)
        assert (home / "flower" / "summary.json").exists()
    version = run(bin_ / "python", "--version", cwd=home).strip()
    used = time.monotonic() - began - installed
    print(f"{version}, {package.name}: installed in {installed:.0f} s, used for {used:.0f} s")
    shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Build, inspect, install and use the wheel and the source archive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--python", action="append", help="a Python to install in; may be repeated")
    parser.add_argument("--keep", type=Path, help="folder to leave wheel and archive in")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dpfact-packages-") as folder:
        out = Path(folder)
        packages = build(out)
        look_into(*packages)
        for python in given.python or [sys.executable]:
            for package in packages:
                use(python, package, out)
        if given.keep:
            given.keep.mkdir(parents=True, exist_ok=True)
            for package in packages:
                shutil.copy(package, given.keep)


if __name__ == "__main__":
    main()
