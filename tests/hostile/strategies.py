"""Ways to damage a file: arbitrarily, or with knowledge of its format."""

import io
import json
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

DEEP = "[" * 100_000
ODD = st.sampled_from((
    None, True, False, 0, -1, 2**31 - 1, 2**63, 10**300, -0.0, 1.5, 1e-320, 1e308, float("nan"),
    float("inf"), "", "x", "{}", "OTHER-1", "patient", "none", "psgd", "job", "a\nb", "\x00",
    "\u202e", "\ud800", "../../up", "ledger.sqlite", ".lock", "CON", "1x1", "99999999x1",
    "y" * 5000, [], {}, [1] * 5000, [[[]]], [["x"]], [{}], {"a": 1},
))  # fmt: skip
"""Unexpected values that JSON or a config may hold."""


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """Cut out, overwrite or double a part, or insert something."""
    a = draw(st.integers(0, len(content)))
    b = draw(st.integers(a, len(content)))
    part = content[a:b]
    new = draw(st.sampled_from((b"", 2 * part, bytes(len(part)))) | st.binary(max_size=40))
    return content[:a] + new + content[draw(st.sampled_from((a, b, a + len(new)))) :]


@st.composite
def odd_array(draw, array: np.ndarray) -> Any:
    """Replace an array with one of another type or shape, or with other values."""
    kind = draw(st.sampled_from(("f2", "f8", ">f4", "i1", "u8", "c16", "S3", "U3", "?", "O")))
    values = st.sampled_from((0, -1, 1.1e6, 1e30, 1e-45, 2**31 - 1, np.nan, np.inf, "OTHER-1"))
    makes = (
        lambda: array.astype(kind), lambda: array.ravel()[:1].reshape(()), array.ravel,
        lambda: array[None], lambda: array[:-1], lambda: array[:0], lambda: array.T,
        lambda: array[::-1], lambda: np.concatenate([array, array]), lambda: array * 1e6,
        lambda: -array, lambda: np.full(array.shape, draw(values)), lambda: np.array(draw(values)),
        lambda: np.zeros(array.shape, "M8[s]"), lambda: np.zeros(array.shape, [("a", "<f4")]),
        lambda: np.full((1,) * 30, 1, np.float32), lambda: np.array([DEEP, "x"]),
        lambda: np.array([{"a": 1}, None]), lambda: np.zeros((200, 300), np.float32),
        lambda: np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (10**6, 3), (0, 0)),
    )  # fmt: skip
    with np.errstate(all="ignore"), suppress(TypeError, ValueError, IndexError, OverflowError):
        return draw(st.sampled_from(makes))()
    return np.array([])


@st.composite
def members(draw, content: bytes) -> bytes:
    """Make an `.npz` file with a changed array, a missing array, or a member that is no array."""
    with np.load(io.BytesIO(content), allow_pickle=True) as archive:
        arrays: dict[str, Any] = dict(archive)
    name = draw(st.sampled_from(sorted(arrays)))
    if draw(st.booleans()):
        arrays[name] = draw(odd_array(arrays[draw(st.sampled_from(sorted(arrays)))]))
    else:
        del arrays[name]
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@st.composite
def in_json(draw, content: bytes) -> bytes:
    """Change a value in JSON, or nest it too deeply."""
    place: Any = (whole := [json.loads(content)])
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(keys))
        if not (isinstance(place[key], (dict, list)) and place[key] and draw(st.booleans())):
            break
        place = place[key]
    if isinstance(place, dict) and draw(st.booleans()):
        del place[key]
    else:
        place[key] = draw(ODD)
    odd = st.sampled_from((DEEP.encode(), b"9" * 6000, b"1e999", b"\xff\xfe"))
    return draw(st.just(json.dumps(whole[0] if whole else None).encode()) | odd)


@st.composite
def in_lines(draw, content: bytes) -> bytes:
    """Change a JSON line, or the order of the lines."""
    lines = content.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    lines[number] = draw(in_json(lines[number]))
    return b"\n".join(draw(st.permutations(lines))) + b"\n"


@st.composite
def in_text(draw, content: bytes) -> bytes:
    """Replace a word in a text."""
    words = content.split(b" ")
    odd = (b"", b"\x00", b"\xff", b"nan", b"1e999", b"-1", b"9" * 6000, b"\n", b'"', b"#",
           DEEP.encode(), b"OTHER-1", b"2147483647")  # fmt: skip
    words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(odd))
    return b" ".join(words)


@st.composite
def in_rows(draw, content: bytes) -> bytes:
    """Change rows or tables of a ledger."""
    statements = ("DROP TABLE releases", "PRAGMA user_version = 7", "CREATE VIEW v AS SELECT 1",
                  "DELETE FROM releases WHERE number = 2", "PRAGMA application_id = 3",
                  "ALTER TABLE releases ADD COLUMN more TEXT")  # fmt: skip
    column = draw(st.sampled_from(("", "number", "document", "payload", "hash")))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.sqlite"
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as connection:
            with suppress(sqlite3.Error, OverflowError, UnicodeError, ValueError):
                if column:
                    update = f"UPDATE releases SET {column} = ? WHERE number = 2"
                    connection.execute(update, (draw(ODD),))
                elif draw(st.booleans()):
                    connection.execute(draw(st.sampled_from(statements)))
                else:
                    found = connection.execute("SELECT document FROM releases WHERE number = 2")
                    document = draw(in_json(found.fetchone()[0])).decode()
                    update = "UPDATE releases SET document = ? WHERE number = 2"
                    connection.execute(update, (document,))
            connection.commit()
        return path.read_bytes()
