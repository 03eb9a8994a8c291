"""Use a survey to test whether people can tell a run's phenotypes from made-up phenotypes.

Half of the items are the model's phenotypes. A made-up item is a phenotype with codes of another
phenotype, in place of either one leading code or all leading codes of one mode. The key file lists
the real items, so nobody should read the key file before the survey ends. Anyone who may see the
model may see the survey.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score

from dpfact_flower.errors import DataError, SettingsError
from dpfact_flower.evaluation.clinical import LEADING_CODES
from dpfact_flower.evaluation.model import GlobalModel, write_csv
from dpfact_flower.evaluation.page import write_page
from dpfact_flower.evaluation.review import SheetKey, digest, filled_lines, new_files, read_key
from dpfact_flower.evaluation.run_folder import write_json

COLUMNS = ("item", "answer", "comment")
REAL, MADE_UP = "real", "made-up"
ANSWERS = (REAL, MADE_UP, "unsure")
FEWEST = 8
"""Minimum number of items, which gives two made-up items of each kind."""
Kind = Literal["real", "other mode", "other code"]
_WORDS: Mapping[str, str] = {
    "real": "phenotypes of the model",
    "other mode": "two phenotypes in one",
    "other code": "one code exchanged",
}
Codes = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Item:
    """A survey item: the leading codes of each mode, taken from one phenotype or from two."""

    phenotype: int
    kind: Kind
    other: int | None
    codes: dict[str, Codes]

    @property
    def truth(self) -> str:
        """The correct answer for the item."""
        return REAL if self.kind == "real" else MADE_UP


@dataclass(frozen=True)
class Key(SheetKey):
    """A survey's key file, which says whether each item is real or made-up."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Answers:
    """One reader's answers. `given` maps the positions of the answered items to the answers."""

    name: str
    items: tuple[Item, ...]
    given: dict[int, str]

    def __str__(self) -> str:
        """Describe accuracy (with a Wilson 95 % interval), kappa, and accuracy by kind of item."""
        if not self.given:
            return f"{self.name}: no item is answered"
        truth = {n: self.items[n].truth for n in self.given}
        right = {n: self.given[n] == truth[n] for n in self.given}
        hits, count = sum(right.values()), len(right)
        low, high = binomtest(hits, count).proportion_ci(method="wilson")
        parts = []
        for kind, words in _WORDS.items():
            own = [right[n] for n in right if self.items[n].kind == kind]
            if own:
                parts.append(f"{sum(own)} of {len(own)} {words}")
        return (
            f"{self.name}: {hits} of {count} right, {100 * hits / count:.0f} % (95 % interval "
            f"{100 * low:.0f} to {100 * high:.0f} %; guessing 50 %); kappa "
            f"{_kappa(truth, self.given)}; {', '.join(parts)}"
        )


def agreement(one: Answers, two: Answers) -> str:
    """Return Cohen's kappa for the items that two readers both answered."""
    both = one.given.keys() & two.given.keys()
    kappa = _kappa({n: one.given[n] for n in both}, two.given)
    return f"{one.name} and {two.name}: kappa {kappa} over {len(both)} items"


def write_survey(folder: Path, out: Path, *, items: int = 20, seed: int | None = None) -> Path:
    """Write a survey's sheet, page and key, readable only by their owner. Return the sheet's path.

    The survey has at most one item per phenotype, even if `items` is larger. `seed` determines the
    choice and the order of the items.
    """
    sheet, page, key = new_files(folder, out)
    chosen = _items(GlobalModel.read(folder), items, np.random.default_rng(seed))
    write_json(key, Key(digest(folder), chosen))
    write_page(page, "survey.html.j2", {"items": chosen, "sheet": sheet.name})
    write_csv(sheet, COLUMNS, [(str(n), "", "") for n in range(1, len(chosen) + 1)])
    return sheet


def read_survey(folder: Path, key: Path, sheets: Sequence[Path]) -> list[Answers]:
    """Return every reader's answers, together with the correct answers from the key."""
    found = read_key(key, Key, folder).items
    return [Answers(sheet.name, found, dict(_given(sheet, len(found)))) for sheet in sheets]


def _given(sheet: Path, items: int) -> Iterator[tuple[int, str]]:
    places = {str(number): number - 1 for number in range(1, items + 1)}
    for where, row in filled_lines(sheet, COLUMNS):
        answer = row["answer"].lower()
        if row["item"] not in places:
            raise DataError(f"{where}: item must be a number, 1 to {items}")
        if answer and answer not in ANSWERS:
            raise DataError(f"{where}: answer must be {', '.join(ANSWERS)} or empty")
        if answer:
            yield places[row["item"]], answer


def _kappa(one: Mapping[int, str], two: Mapping[int, str]) -> str:
    """Return Cohen's kappa for two readers' answers, or ``undefined`` if all answers are equal."""
    pairs = [(one[n], two[n]) for n in sorted(one)]
    if len({answer for pair in pairs for answer in pair}) < 2:
        return "undefined"
    return f"{cohen_kappa_score(*zip(*pairs, strict=True)):.2f}"


Lists = Mapping[int, Mapping[str, Codes]]
"""All codes with non-zero weights by phenotype and mode, largest weight first."""


def _items(model: GlobalModel, most: int, rng: np.random.Generator) -> tuple[Item, ...]:
    """Return items in random order. Half of the items (rounded down) are made-up."""
    lists = {
        number: {
            mode: tuple((row.code, row.description) for row in rows)
            for mode, rows in by_mode.items()
        }
        for number, by_mode in model.codes_by_mode().items()
        if all(by_mode.values())
    }
    if most < FEWEST:
        raise SettingsError(f"--items: must be {FEWEST} or more, got {most}")
    if len(lists) < FEWEST:
        raise DataError(f"survey: needs {FEWEST} phenotypes with codes, not {len(lists)}")
    numbers = rng.permutation([*lists])[:most].tolist()
    made = len(numbers) // 2
    # In a mode with few codes, all phenotypes have the same leading codes.
    mode = next((v.name for v in reversed(model.vocabularies) if len(v) > LEADING_CODES), "")
    mixed = made // 2 if len(model.modes) > 1 and mode else 0  # else, all codes would be real
    exchanged = _exchanged_lists(lists, mode, numbers[:mixed])
    changed = {item.phenotype for item in exchanged}
    items = [
        *exchanged,
        *(_exchanged_code(lists, n, rng) for n in numbers[:made] if n not in changed),
        *(Item(number, "real", None, _leading(lists[number])) for number in numbers[made:]),
    ]
    return tuple(items[place] for place in rng.permutation(len(items)))


def _leading(by_mode: Mapping[str, Codes]) -> dict[str, Codes]:
    return {mode: codes[:LEADING_CODES] for mode, codes in by_mode.items()}


def _exchanged_lists(lists: Lists, mode: str, numbers: Sequence[int]) -> list[Item]:
    """Replace each phenotype's codes in one mode with other codes, from a dissimilar phenotype."""
    own = {number: _leading(lists[number]) for number in numbers}

    def partners(shift: int) -> list[tuple[int, int]]:
        return [(n, numbers[(at + shift) % len(numbers)]) for at, n in enumerate(numbers)]

    def in_common(shift: int) -> int:
        return sum(len({*own[a][mode]} & {*own[b][mode]}) for a, b in partners(shift))

    best = min(range(1, len(numbers)), key=in_common, default=0)
    return [
        Item(number, "other mode", other, own[number] | {mode: own[other][mode]})
        for number, other in partners(best)
        if {*own[number][mode]} != {*own[other][mode]}
    ]


def _exchanged_code(lists: Lists, number: int, rng: np.random.Generator) -> Item:
    """Replace a leading code of phenotype `number` with a leading code of another phenotype."""
    own = _leading(lists[number])
    choices = [
        (mode, other, code)
        for mode, codes in own.items()
        if len(codes) > 1
        for other, theirs in lists.items()
        for code in theirs[mode][:LEADING_CODES]
        if code not in lists[number][mode][: max(LEADING_CODES, len(lists[number][mode]) // 2)]
    ]
    if not choices:
        raise DataError("survey: the phenotypes have too few codes of their own to exchange one")
    mode, other, code = choices[rng.integers(len(choices))]
    place = int(rng.integers(len(own[mode])))
    changed = (*own[mode][:place], code, *own[mode][place + 1 :])
    return Item(number, "other code", other, own | {mode: changed})
