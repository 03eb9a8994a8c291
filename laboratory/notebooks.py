"""Execute the notebooks of docs/notebooks, and store them with their output, which the site shows.

    python -m laboratory.notebooks [NAME ...]

Each runs in an empty folder of its own. `PATH/TO/eicu` is the eICU demo of $DPFACT_DATA while it
runs, and stands in the stored notebook as before. The tests execute the same cells, and compare no
output: noise makes it new each time.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from simulation.paper.datasets import open_data

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
PLACES = {"PATH/TO/eicu": str(open_data() / "eicu_demo")}


def execute(path: Path) -> None:
    """Execute one, and write it."""
    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells]
    for cell in notebook.cells:
        for name, place in PLACES.items():
            cell.source = cell.source.replace(name, place)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=None, record_timing=False, resources={"metadata": {"path": folder}}
        )
        client.execute()
        for cell, source in zip(notebook.cells, sources, strict=True):
            cell.source = source
            if cell.cell_type == "code":
                # Logs and progress; what they name lies in the folder that is gone.
                cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
                for out in cell.outputs:
                    if "text/html" in (
                        data := out.get("data", {})
                    ):  # of pandas: a header of nothing
                        data["text/html"] = data["text/html"].replace("<th></th>", "<td></td>")
    nbformat.write(notebook, path)


def main(arguments: Sequence[str]) -> None:
    """Execute those that are named, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not arguments or path.stem in arguments:
            print(path.stem, flush=True)
            execute(path)


if __name__ == "__main__":
    main(sys.argv[1:])
