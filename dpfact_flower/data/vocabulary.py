"""Read, check and compare code lists, one for each feature mode.

The server sends digests of a run's code lists. A site with other lists refuses the run. The
privacy guarantee holds only if all vocabularies come from public lists (`load_codes`).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from unicodedata import normalize

from dpfact_flower.errors import DataError, naming, plural, shown
from dpfact_flower.machine.parsed import from_json
from dpfact_flower.settings import check_name

_CODE_COLUMNS = ("code", "icd9_code", "icd_code")
_DESCRIPTION_COLUMNS = ("description", "long_title")


@dataclass(frozen=True, repr=False)
class Vocabulary:
    """The codes of one feature mode. A code's position is its index in the tensor.

    Codes are unique and printable, in Unicode form NFC, and without blanks at either end. Codes are
    strings, so ``0040`` and ``40`` are different codes. Descriptions are for human readers and do
    not affect the digest. An unknown description is ``""``. `descriptions` may be empty.
    """

    name: str
    codes: tuple[str, ...]
    descriptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("vocabulary name", self.name, quote=False)
        for field in (self.codes, self.descriptions):
            if not isinstance(field, (tuple, list)) or not all(isinstance(x, str) for x in field):
                raise DataError(f"vocabulary {self.name}: codes and descriptions must be text")
        codes = tuple(normalize("NFC", code) for code in self.codes)
        descriptions = tuple(self.descriptions) or ("",) * len(codes)
        self._check_codes(codes)
        if len(descriptions) != len(codes):
            raise DataError(
                f"vocabulary {self.name}: need one description per code ({len(codes)}), "
                f"got {len(descriptions)}"
            )
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "descriptions", descriptions)

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"Vocabulary({self.name!r}, {plural(len(self), 'code')})"

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each code."""
        return {code: position for position, code in enumerate(self.codes)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 digest of the name and codes, for comparing vocabularies across machines."""
        text = json.dumps([self.name, *self.codes], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def select(self, kept: Iterable[int]) -> Vocabulary:
        """Return a vocabulary with only the codes at the given positions."""
        positions = [*kept]
        return Vocabulary(
            self.name,
            tuple(self.codes[position] for position in positions),
            tuple(self.descriptions[position] for position in positions),
        )

    def to_json(self) -> str:
        """Return JSON that `from_json` can read."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Vocabulary:
        """Read and validate the output of `to_json`."""
        try:
            fields = from_json(text)
        except ValueError:
            raise DataError("vocabulary: not JSON") from None
        if not isinstance(fields, dict) or not {"name", "codes"} <= fields.keys():
            raise DataError("vocabulary: need a JSON object with name, codes and descriptions")
        return cls(fields["name"], fields["codes"], fields.get("descriptions", ()))

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to a JSON file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read and validate a file that `save` wrote."""
        text = read_text(Path(path))
        with naming(path):
            return cls.from_json(text)

    def _check_codes(self, codes: tuple[str, ...]) -> None:
        if not codes:
            raise DataError(f"vocabulary {self.name}: need at least one code")
        first: dict[str, int] = {}
        for position, code in enumerate(codes):
            if not code.isprintable() or not code or code != code.strip():
                raise DataError(
                    f"vocabulary {self.name}: codes must be printable, not empty, and without "
                    f"blanks around them; the code at position {position} is not"
                )
            if first.setdefault(code, position) != position:
                raise DataError(
                    f"vocabulary {self.name}: the code at position {position} "
                    f"is the same as at position {first[code]}"
                )


def load_codes(path: str | Path, name: str) -> Vocabulary:
    """Read a public list of codes, in the file's order.

    A ``.json`` file contains a list of codes, or a saved `Vocabulary` with this `name`. A ``.csv``
    file has the column ``code`` (or MIMIC's ``icd9_code`` or ``icd_code``) and optionally
    ``description`` (or MIMIC's ``long_title``). Column names are not case-sensitive. Any other file
    is text with one code per line. Empty lines and lines that begin with ``#`` are skipped.
    """
    path = Path(path)
    text = read_text(path)
    with naming(path):
        if path.suffix.lower() == ".json":
            return _from_list(text, name)
        if path.suffix.lower() == ".csv":
            return _from_csv(text, name)
        lines = (line.strip() for line in text.splitlines())
        return Vocabulary(name, tuple(line for line in lines if line and line[0] != "#"))


def joint_digest(vocabularies: Iterable[Vocabulary]) -> str:
    """Return the digests, joined by commas. Refuse names that would clash in the model's file."""
    lists, reserved = [*vocabularies], {"modes", "file", "allow_pickle"}
    names = [name for v in lists for name in (v.name, f"{v.name}_codes", f"{v.name}_text")]
    if len({*names} - reserved) < len(names):
        raise DataError(
            "vocabularies: names must differ from each other, from each other's NAME_codes and "
            f"NAME_text, and from modes, file, allow_pickle; got {', '.join(v.name for v in lists)}"
        )
    return ",".join(vocabulary.digest for vocabulary in lists)


def _from_list(text: str, name: str) -> Vocabulary:
    try:
        content = from_json(text)
    except ValueError:
        raise DataError("not JSON") from None
    if isinstance(content, list):
        return Vocabulary(name, tuple(content))
    vocabulary = Vocabulary.from_json(text)
    if vocabulary.name != name:
        raise DataError(f"holds the vocabulary {vocabulary.name!r}, but {name!r} is needed")
    return vocabulary


def _from_csv(text: str, name: str) -> Vocabulary:
    header, rows = csv_rows(text)
    code = next((column for column in _CODE_COLUMNS if column in header), None)
    if code is None:
        raise DataError(
            f"lacks a column {' or '.join(_CODE_COLUMNS)}; it has {shown(', '.join(header))}"
        )
    if header.count(code) > 1:
        raise DataError(f"has the column {code!r} twice")
    text_of = next((column for column in _DESCRIPTION_COLUMNS if column in header), "")
    rows = [row for row in rows if row]
    codes = tuple(row.get(code, "") for row in rows)
    return Vocabulary(name, codes, tuple(row.get(text_of, "") for row in rows))


def csv_rows(text: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return a CSV text's lower-case column names and its rows as dicts, {} for a blank row."""
    try:
        names, *rows = [*csv.reader(io.StringIO(text, newline=""), strict=True)] or [[]]
    except csv.Error:
        raise DataError("not readable as CSV: is a quote open?") from None
    header = [name.strip().lower() for name in names]
    return header, [
        dict(zip(header, (value.strip() for value in row), strict=False)) for row in rows
    ]


def read_text(path: Path) -> str:
    """Read a UTF-8 file, and return its text in Unicode form NFC."""
    try:
        # Spreadsheet programs write a byte order mark, which utf-8-sig skips.
        return normalize("NFC", path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable as UTF-8 text ({type(error).__name__})") from None
