"""Use a survey to test whether people can tell a run's phenotypes from made-up phenotypes.

Half of the items are the model's phenotypes. In a made-up item, either one leading code or all
leading codes of one mode come from another phenotype. The key file lists the real items, so nobody
should read the key file before the survey ends. Anyone who may see the model may see the survey.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.optimize import linear_sum_assignment
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
"""Minimum number of items. Half of the items are made-up."""
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
        if blank := len(self.items) - count:
            parts.append(f"{blank} unanswered")
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
"""Codes by phenotype and mode, largest weight first."""


def _items(model: GlobalModel, most: int, rng: np.random.Generator) -> tuple[Item, ...]:
    """Return items in random order. Half of the items (rounded down) are made-up."""
    lists = {
        n: {m: tuple((row.code, row.description) for row in rows) for m, rows in of.items()}
        for n, of in model.codes_by_mode().items()
        if all(of.values())
    }
    if most < FEWEST:
        raise SettingsError(f"--items: must be {FEWEST} or more, got {most}")
    if len(lists) < FEWEST:
        raise DataError(f"survey: needs {FEWEST} phenotypes with codes, not {len(lists)}")
    numbers = rng.permutation([*lists])[:most].tolist()
    own = {n: {m: codes[:LEADING_CODES] for m, codes in of.items()} for n, of in lists.items()}
    made = len(numbers) // 2
    # In a mode with few codes, all phenotypes have the same leading codes.
    modes = [v.name for v in reversed(model.vocabularies) if len(v) > LEADING_CODES]
    turns = ((numbers * 2)[turn : turn + made // 2] for turn in range(len(numbers)))
    mixed = max((_exchanged_lists(own, *one) for one in product(modes, turns)), key=len, default=[])
    numbers.sort(key=lambda number: number not in {item.phenotype for item in mixed})
    items = [
        *mixed,
        *(_exchanged_code(lists, own, number, rng) for number in numbers[len(mixed) : made]),
        *(Item(number, "real", None, {**own[number]}) for number in numbers[made:]),
    ]
    return tuple(items[place] for place in rng.permutation(len(items)))


def _alike(one: Codes, two: Codes) -> bool:
    """Return whether two lists share more than a fifth of the shorter list's codes."""
    return LEADING_CODES * len({*one} & {*two}) > min(len(one), len(two))


def _exchanged_lists(own: Lists, mode: str, numbers: Sequence[int]) -> list[Item]:
    """Exchange lists of one mode between phenotypes, unless the result resembles a phenotype."""
    made = {(a, b): {**own[a], mode: own[b][mode]} for a in numbers for b in numbers}

    def cost(a: int, b: int) -> float:
        item = made[a, b]
        is_real = any(all(_alike(item[m], real[m]) for m in item) for real in own.values())
        return 1.0 if a == b else np.inf if is_real else 0.0  # 1: `a` keeps its own list

    _, places = linear_sum_assignment([[cost(a, b) for b in numbers] for a in numbers])
    pairs = ((a, numbers[at]) for a, at in zip(numbers, places.tolist(), strict=True))
    return [Item(a, "other mode", b, made[a, b]) for a, b in pairs if a != b]


def _exchanged_code(lists: Lists, own: Lists, number: int, rng: np.random.Generator) -> Item:
    """Replace a phenotype's leading code with a code that leads only dissimilar phenotypes."""
    mine, every = own[number], lists[number]
    both = [(theirs[mode], mine[mode]) for theirs in own.values() for mode in mine]
    near = {code for one, two in both if _alike(one, two) for code in one}
    choices = [
        (mode, other, code)
        for mode, codes in mine.items()
        if len(codes) > 1
        for other, theirs in own.items()
        for code in theirs[mode]
        if code not in near.union(every[mode][: len(every[mode]) // 2])
    ]
    if not choices:
        raise DataError("survey: the phenotypes have too few codes of their own to exchange one")
    mode, other, code = choices[rng.integers(len(choices))]
    place = int(rng.integers(len(mine[mode])))
    changed = (*mine[mode][:place], code, *mine[mode][place + 1 :])
    return Item(number, "other code", other, {**mine, mode: changed})
