"""A reader as a file of SQL that a data engineer can write: what it says, before anything is read.

A script begins with a comment, its head, in TOML: ``help``, the feature ``modes`` with how many
codes of each are kept (0: all), the ``window``, and ``options`` of its own. Statements follow, each
ended by a semicolon at the end of a line. DuckDB runs them in order. A line above a statement says
what the statement is for:

- ``-- @load FILE``: a ``CREATE TABLE`` whose columns are filled from a table of the source. The
  types are checked: ``NOT NULL`` refuses blanks, ``UNIQUE`` repetitions, and a column with
  ``DEFAULT NULL`` need not be there. With it: ``-- @where SQL`` over the columns as text (which
  rows are kept), ``-- @there SQL`` over the table in its own database (which rows are sent), and
  ``-- @optional WHAT FOLLOWS`` for a table that may be missing, and then is empty. A column of type
  ``VARCHAR[]`` is a list of the file's columns of its name and a number (``code_1``, ``code_2``),
  without blanks and each value once. In ``FILE`` a star may stand for a part: the table is made of
  all such files, and has two more columns, ``part`` and ``cut``. With ``-- @cut`` a last line that
  is incomplete is left out, and ``cut`` then true.
- ``-- @names SYSTEM``: a ``CREATE TABLE`` of code and name, filled with the names that the package
  has of one of `dpfact_flower.data.code_names.SYSTEMS`.
- ``-- @count WHAT``: a query of places and numbers, for the report of what was read and left out.
- ``-- @refuse WHAT WOULD BE RIGHT``: likewise; a number above 0 ends the reading.
- ``-- @events``: a query of mode, patient, code and, as far as the window needs them, encounter
  and time (a date, a timestamp, or minutes from any origin). The table ``people`` then has their
  patients.
- ``-- @describe``: a query of mode, code and description.
- ``-- @patients``: a query of patient and site, one row a patient.
- ``-- @label NAME``: after that, a query of the patients whose label is 1.
- ``-- @stays``: after that, a query of patient, begun and ended, for the label of readmission.

``-- @when SQL`` leaves a table empty, or out a label, where the condition does not hold. A name
with a dollar is an option's value: ``$by``. There are also ``$name`` (of the site or cohort),
``$source``, ``$file`` (the last part of it), ``$tables`` (which there are, in lower case), and in
the condition of files with a star ``$part``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dpfact_flower.errors import DataError, SettingsError, shown

GROUP = "dpfact_flower.data.readers"
"""Entry points whose objects are paths of scripts."""
_OWN = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.sql"))}
_HEAD = re.compile(r"\s*/\*(.*?)\*/(.*)", re.DOTALL)
_REMARK = re.compile(r"^--(?! @).*$", re.MULTILINE)
_DIRECTIVE = re.compile(r"^-- @(\w+) *(.*)$", re.MULTILINE)
_END = re.compile(r";[ \t]*$", re.MULTILINE)
_KINDS = {"load", "names", "count", "refuse", "events", "describe", "patients", "label", "stays"}
_MORE = {"when", "where", "there", "optional", "cut"}


@dataclass(frozen=True)
class Option:
    """What a script may be asked; its default says the type, and whole numbers are 1 or more.

    A table is asked for as ``NAME=VALUE``, and a map in SQL. That of an option ``mode`` names the
    feature modes. An array is of codes; the command takes them from a list's file.
    """

    help: str
    default: bool | int | str | dict[str, str] | list[str]
    choices: Sequence[str] = ()

    def check(self, name: str, value: Any) -> None:
        """Refuse a value of another type or beside the choices."""
        if self.choices and value not in (*self.choices, self.default):
            raise SettingsError(
                f"{name}: must be one of {', '.join(self.choices)}; got {shown(value)}"
            )
        blank = isinstance(value, dict) and not (
            all(value.values()) and (value or not self.default)
        )
        if type(value) is not type(self.default) or blank or (type(value) is int and value < 1):
            kinds = {bool: "true or false", int: "an integer of at least 1", str: "a text"}
            kind = kinds.get(type(self.default), "a value for each name")
            raise SettingsError(f"{name}: need {kind}, got {shown(value)}")


class Statement(NamedTuple):
    """SQL, and what the lines above it say: what it is for, of what, and more."""

    sql: str
    kind: str
    what: str
    more: Mapping[str, str]


@dataclass(frozen=True)
class Script:
    """A reader.

    Attributes
    ----------
    help : str
        Of the command; its first line stands in the list of commands.
    modes : mapping of str to int
        Number of codes of each feature mode, in the tensor's order. A mode that an option is named
        like is there where the option is true.
    window : {"days", "days alone", "days in encounter", "encounter"}
        What bounds a window: a number of days, or the encounter where that is 0; days; both; or the
        encounter.
    min_patients : int
        Of a site that is not merged with others.
    row_unit : str
        What a row of the tensor is.
    source : {"tables", "lines"}
        Tables in a folder or database, or one file of lines: the table ``lines`` of ``number`` and
        ``line``.
    folders : sequence of str
        Subfolders where tables may be.
    named : bool
        Whether a name is asked for; else the cohort has the script's.
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
    def read(cls, path: Path) -> Script:
        """The script of a file."""
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
        """Values of all options, given or not."""
        values = {name: option.default for name, option in self.options.items()} | dict(given)
        for name, option in self.options.items():
            option.check(name.replace("_", "-"), values[name])
        return values

    def chosen(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """The feature modes that there are under these options."""
        named = values.get("mode")
        return tuple(mode for mode in named or self.modes if values.get(mode, True))


def script_names() -> list[str]:
    """Names of this package's own scripts, and of those that installed packages bring."""
    return [*_OWN, *(found.name for found in entry_points(group=GROUP))]


def find_script(name: str | Path) -> Script | None:
    """The script of a name, or of a file whose name ends in ``.sql``."""
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
            raise DataError(f"{path}: there is no @{min(unknown)}; there are @{', @'.join(_KINDS)}")
        if len(kinds) > 1 or bool(said) > bool(sql) or (said and not kinds):
            raise DataError(f"{path}: need one kind and a statement below @{min(said)}")
        if sql:
            kind = min(kinds, default="")
            more = {name: text for name, text in said.items() if name in _MORE}
            found.append(Statement(sql, kind, said.get(kind, ""), more))
    return tuple(found)
