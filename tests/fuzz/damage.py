"""Ways to damage a file: anyhow, or as somebody would who knows its format."""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Damage = Callable[[bytes, random.Random], bytes]
DEEP = 100_000


def flip(content: bytes, rng: random.Random) -> bytes:
    """A few bits."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Cut off, cut out, doubled, zeroed, or something put in between."""
    a, b = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return rng.choice((
        content[:a], content[:a] + content[b:], content[:b] + content[a:],
        content[:a] + bytes(b - a) + content[b:], content[:a] + rng.randbytes(b - a) + content[b:],
        content[:a] + rng.randbytes(30) + content[a:], content + content, b"",
    ))  # fmt: skip


def within_check(content: bytes, rng: random.Random) -> bytes:
    """A file of factors, damaged, with its checksum made right again."""
    changed = rng.choice((flip, cut, bad_head))(content[:-8], rng)
    return changed + f"{zlib.crc32(changed):08x}".encode()


def bad_head(content: bytes, rng: random.Random) -> bytes:
    """Another header before the numbers of an `.npy`."""
    return npy_head(rng) + content[128:]


def npy_head(rng: random.Random) -> bytes:
    """A header in NumPy's format that claims what is not there, or makes no sense."""
    text = rng.choice((
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (21, 4), }",
        "{'descr': '<U1000000000', 'fortran_order': False, 'shape': (100,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (4,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)", "(" * 5000, "'" * 90,
        "\x00" * 40, "{'descr': 5, 'fortran_order': 7, 'shape': 3}", "[" * 100, "1" * 9000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3)}", "if x:\n  y\n z",
        "\t(\n  )\n",
    ))  # fmt: skip
    version = rng.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    length = len(text) if rng.random() < 0.8 else rng.randrange(2**16)
    size = length.to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text.encode()


def odd_array(array: np.ndarray, others: list[np.ndarray], rng: random.Random) -> Any:
    """Another array in the place of one."""
    one = rng.choice(others)
    makes: tuple[Callable[[], Any], ...] = (
        lambda: one, lambda: array.astype("O"), lambda: array.ravel()[:1].reshape(()),
        lambda: array[None], array.ravel, lambda: array[:-1] if array.ndim else array,
        lambda: np.array(rng.choice((0, -1, 2**62, 1.5, np.nan, np.inf, "x", "", True, 1j))),
        lambda: np.array(["[" * DEEP, "x"]), lambda: np.array("[" * DEEP), lambda: np.array([]),
        lambda: np.zeros((2, 0)), lambda: np.full(array.shape, 2**31 - 1),
        lambda: np.full(array.shape, -1), lambda: np.full(array.shape, np.nan),
        lambda: np.zeros(array.shape, "M8[s]"), lambda: np.zeros(array.shape, [("a", "<f4")]),
        lambda: np.full(array.shape, "OTHER-1"), lambda: np.full(array.shape, "{}"),
        lambda: array.astype(rng.choice(("f2", "i1", "u8", "c16", "S3", "U3", "?"))),
        lambda: np.array([{"a": 1}, None]), lambda: np.concatenate([array.ravel()] * 2),
        lambda: np.array(json.dumps({"name": "OTHER", "codes": ["a"], "descriptions": 3})),
        lambda: np.full((1,) * 20, 1),
    )  # fmt: skip
    try:
        with np.errstate(over="ignore"):  # what a type cannot hold is part of the damage
            return rng.choice(makes)()
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return one


def members(content: bytes, rng: random.Random) -> bytes:
    """A whole `.npz` with other arrays in it, or with members that are none."""
    with np.load(io.BytesIO(content), allow_pickle=True) as archive:
        arrays: dict[str, Any] = dict(archive)
    names = list(arrays)
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(names)
        if rng.random() < 0.1:
            arrays.pop(name, None)
        elif name in arrays:
            arrays[name] = odd_array(arrays[name], list(arrays.values()), rng)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as made:
        for name, array in arrays.items():
            inner = io.BytesIO()
            np.save(inner, array, allow_pickle=True)
            member = inner.getvalue()
            if rng.random() < 0.1:
                member = rng.choice((npy_head(rng) + member[128:], b"x", b"", flip(member, rng)))
            made.writestr(f"{name}.npy" if rng.random() < 0.98 else name, member)
    return file.getvalue()


def odd_value(rng: random.Random) -> Any:
    """What JSON may hold and nobody expects."""
    return rng.choice((
        None, True, False, 0, -1, 2**70, 1.5, "", "x", [], {}, [1], {"a": 1}, [[[]]], "OTHER-1",
        float("nan"), float("inf"), -float("inf"), "\x00", "\ud800", "../../x", "y" * 5000, 10**300,
    ))  # fmt: skip


def in_json(content: bytes, rng: random.Random) -> bytes:
    """JSON with something else at some place, or nested without end."""
    if rng.random() < 0.05:
        return rng.choice((b"[" * DEEP, b'{"a":' * DEEP, b"9" * 6000, b"1e999", b"\xff\xfe"))
    try:
        whole = [json.loads(content)]
    except ValueError:
        return flip(content, rng)
    place: Any = whole
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.75:
            place = place[key]
            continue
        if isinstance(place, dict) and rng.random() < 0.3:
            del place[key]
        else:
            place[key] = odd_value(rng)
        break
    return json.dumps(whole[0] if whole else None).encode()


def in_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON lines with something else in one of them, or in another order."""
    lines = content.splitlines()
    number = rng.randrange(len(lines))
    lines[number] = in_json(lines[number], rng)
    if rng.random() < 0.2:
        rng.shuffle(lines)
    return b"\n".join(lines) + b"\n"


def in_text(content: bytes, rng: random.Random) -> bytes:
    """Text with something else in a word's place."""
    words = content.split(b" ")
    words[rng.randrange(len(words))] = rng.choice((
        b"", b"\x00", b"\xff", b"nan", b"1e999", b"-1", b"9" * 6000, b"\n", b'"', b"[" * DEEP,
        b"#", b"OTHER-1", b"99999999999999999999", b"2147483647",
    ))  # fmt: skip
    return b" ".join(words)
