"""Parse readers that a data engineer writes as SQL scripts.

A script begins with a head, which is a comment in TOML with the fields of `Script`. Then come
statements, which DuckDB runs in order. Each statement ends with a semicolon at the end of a line. A
line above each statement says what the statement is for:

- ``-- @load FILE``: a ``CREATE TABLE`` whose columns are filled from a table of the source. The
  types are checked. ``NOT NULL`` refuses blanks, ``UNIQUE`` refuses repetitions, and a column with
  ``DEFAULT NULL`` may be missing. Further lines may follow: ``-- @where SQL`` keeps only rows that
  meet a condition, in which all columns are text. ``-- @there SQL`` is a condition that a database
  applies before it sends rows. ``-- @optional CONSEQUENCE`` marks a table that stays empty if the
  source lacks it. A column ``code`` of type ``VARCHAR[]`` combines the source's columns ``code_1``,
  ``code_2``, ... into a list of their distinct values without blanks. A star in ``FILE`` stands for
  any text. The table then holds all matching files. An additional column, ``part``, contains the
  text that matched the star.
- ``-- @names SYSTEM``: a ``CREATE TABLE`` with code and name, filled with the package's names for
  one of `dpfact_flower.data.code_names.SYSTEMS`.
- ``-- @count WHAT``: a query that returns places and row counts, to be reported as WHAT.
- ``-- @refuse REQUIREMENT``: a query that counts faulty rows by place. A count above 0 is an error.
- ``-- @events``: a query for mode, patient and code, and for encounter and time if the window needs
  them. A time is a date, a timestamp, or minutes from any origin. After this query, the table
  ``people`` contains all patients who have events.
- ``-- @describe``: a query for mode, code and description.
- ``-- @patients``: a query for patient and site that returns one row per patient.
- ``-- @label NAME``: a query, after ``@patients``, for the patients whose label is 1.
- ``-- @stays``: a query, after ``@patients``, for patient, begun and ended. These stays determine
  the readmission label.

If the condition in ``-- @when SQL`` is false, a table stays empty, or a label is left out. A name
with a dollar sign, such as ``$by``, stands for the value of an option. Further names are ``$name``
(of the site or cohort), ``$source``, ``$file`` (the last part of the source) and ``$tables`` (the
source's tables in lower case). If ``@load`` has a star, its conditions may also use ``$part``.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpfact_flower.errors import DataError, SettingsError, shown

GROUP = "dpfact_flower.data.readers"
"""Group of entry points whose objects are the paths of scripts."""
_OWN = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.sql"))}
_HEAD = re.compile(r"\s*/\*(.*?)\*/(.*)", re.DOTALL)
_REMARK = re.compile(r"^--(?! @).*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^-- @(\w+) *(.*)$", re.MULTILINE)
_END = re.compile(r";[ \t]*$", re.MULTILINE)
_KINDS = {"load", "names", "count", "refuse", "events", "describe", "patients", "label", "stays"}
_MORE = {"when", "where", "there", "optional"}


@dataclass(frozen=True)
class Option:
    """An option of a script. The default determines the type, and integers must be at least 1.

    If the default is a TOML table, users give ``NAME=VALUE`` pairs, and the SQL gets a map. An
    option named ``mode`` is a table whose keys are the feature modes. If the default is an array,
    the option holds codes, which the command line reads from a file.
    """

    help: str
    default: bool | int | str | dict[str, str] | list[str]
    choices: Sequence[str] = ()


class Statement(NamedTuple):
    """An SQL statement with its main directive (`kind` and `what`) and `more` directives."""

    sql: str
    kind: str
    what: str
    more: Mapping[str, str]


@dataclass(frozen=True)
class Script:
    """A reader that is an SQL script. Its head sets all fields except name and statements.

    - `modes`: how many codes to keep in each feature mode (0: all), in the tensor's order. If an
      option has the same name as a mode, the mode exists only if the option is true.
    - `window`: ``days`` (a number of days, or the encounter if the number is 0), ``days alone`` (a
      number of days), ``days in encounter`` (both) or ``encounter`` (the encounter).
    - `source`: tables, or one file of lines, which becomes the table ``lines`` with the columns
      ``number`` and ``line``. `folders`: subfolders that may hold tables.
    - `named`: whether the user must give a name. Otherwise the cohort gets the script's name.
    """

    name: str
    help: str
    statements: tuple[Statement, ...]
    modes: Mapping[str, int] = field(default_factory=dict)
    window: Literal["days", "days alone", "days in encounter", "encounter"] = "days"
    min_patients: int = 1
    row_unit: str = "patient"
    source: Literal["tables", "lines"] = "tables"
    folders: Sequence[str] = ()
    named: bool = False
    options: Mapping[str, Option] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Script":
        """Read a script from a file."""
        try:
            match = _HEAD.fullmatch(path.read_text(encoding="utf-8"))
            if match is None:
                raise DataError(f"{path}: need a head in TOML, as a comment, above the statements")
            head = tomllib.loads(match[1])
            options = {name: Option(**given) for name, given in head.pop("options", {}).items()}
            statements = _statements(path, match[2])
            return cls(path.stem, statements=statements, options=options, **head)
        except (OSError, UnicodeError, tomllib.TOMLDecodeError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as a reader: {error}") from None

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of all options. Refuse a value that is not one of the choices."""
        values = {name: option.default for name, option in self.options.items()} | dict(given)
        for name, option in self.options.items():
            if option.choices and values[name] not in (*option.choices, option.default):
                choices, found = ", ".join(option.choices), shown(values[name])
                raise SettingsError(
                    f"{name.replace('_', '-')}: must be one of {choices}; got {found}"
                )
        return values

    def chosen(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the feature modes that exist for the given option values."""
        named = values.get("mode")
        return tuple(mode for mode in named or self.modes if values.get(mode, True))


def script_names() -> list[str]:
    """Return the names of this package's scripts, and of scripts in other installed packages."""
    return [*_OWN, *(found.name for found in entry_points(group=GROUP))]


def find_script(name: str | Path) -> Script | None:
    """Find a script by its name, or by a path that ends in ``.sql``."""
    if str(name) in _OWN:
        return Script.read(_OWN[str(name)])
    if Path(name).suffix.lower() == ".sql":
        return Script.read(Path(name))
    found = entry_points(group=GROUP, name=str(name))
    return Script.read(Path(next(iter(found)).load())) if found else None


def _statements(path: Path, body: str) -> tuple[Statement, ...]:
    found = []
    for part in _END.split(_REMARK.sub("", body)):
        said = dict(_DIRECTIVE.findall(part))
        kinds = said.keys() & _KINDS
        sql = _DIRECTIVE.sub("", part).strip()
        if unknown := said.keys() - _KINDS - _MORE:
            raise DataError(f"{path}: @{min(unknown)} is unknown; known are @{', @'.join(_KINDS)}")
        if len(kinds) > 1 or bool(said) > bool(sql) or (said and not kinds):
            raise DataError(f"{path}: need one kind and a statement below @{min(said)}")
        if sql:
            kind = min(kinds, default="")
            more = {name: text for name, text in said.items() if name in _MORE}
            found.append(Statement(sql, kind, said.get(kind, ""), more))
    return tuple(found)
