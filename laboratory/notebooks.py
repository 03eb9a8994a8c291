"""Execute the notebooks of docs/notebooks, and store them with their output for the website.

    python -m laboratory.notebooks [NAME ...]

Each notebook runs in its own empty folder. While it runs, `PATH/TO/eicu` is replaced with the eICU
demo in $DPFACT_DATA. The tests execute the same cells, but do not compare outputs, because fresh
noise changes them.
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
    """Execute and write one notebook."""
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
                # Logs and progress name files in a deleted folder.
                cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
                for out in cell.outputs:
                    if "text/html" in (data := out.get("data", {})):  # pandas
                        data["text/html"] = data["text/html"].replace("<th></th>", "<td></td>")
    nbformat.write(notebook, path)


def main(arguments: Sequence[str]) -> None:
    """Execute the named notebooks, or all of them by default."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not arguments or path.stem in arguments:
            print(path.stem, flush=True)
            execute(path)


if __name__ == "__main__":
    main(sys.argv[1:])
