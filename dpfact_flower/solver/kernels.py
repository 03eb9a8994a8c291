"""Compiled loops over the entries of a sparse tensor: all the numba of the solvers.

The kernels take the factor matrices as one *stack*: the rows of all modes, one mode after the
other, in a single two-dimensional array. An entry is then N row numbers, and no kernel knows how
many modes there are. Rows are padded with zero columns to whole vector registers; a zero column
stays zero under every update here.

The fast-math flags let sums be reordered but leave NaN and infinity their meaning: that is how
divergence is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfact_flower.compiled import compiled
from dpfact_flower.tensor import SparseTensor

Array = NDArray[Any]
_LANES = 8  # float32 values in a 256-bit register
_ZERO = np.float32(0)
_ONE = np.float32(1)
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}


@dataclass(frozen=True)
class Step:
    """How one visit moves the rows it touches.

    Attributes
    ----------
    eta : float
        Step size.
    gamma : float
        Elastic weight. The pull to the anchors applies at entries, not at sampled zero cells.
    clip : float
        Bound on the 2-norm of a visit's data gradient for each row, weight included; 0 is none.
    zero_weight : float
        Weight of a sampled zero cell's gradient; that of an entry is 1.
    floor : float
        Least value of a factor: 0, or minus infinity for no bound.
    sequential : bool
        Whether each mode sees a residual made with the new rows of the modes before it.
    """

    eta: float
    gamma: float = 0.0
    clip: float = 0.0
    zero_weight: float = 1.0
    floor: float = 0.0
    sequential: bool = False


def stack_factors(factors: Sequence[Array]) -> Array:
    """Rows of all modes in one array, padded with zero columns.

    Parameters
    ----------
    factors : sequence of ndarray, each (I_n, R), all of one dtype

    Returns
    -------
    ndarray, shape (sum of I_n, R rounded up to a multiple of 8), C-contiguous
    """
    rank = factors[0].shape[1]
    stack = np.zeros((sum(map(len, factors)), -(-rank // _LANES) * _LANES), factors[0].dtype)
    np.concatenate(factors, out=stack[:, :rank])
    return stack


def row_offsets(sizes: Sequence[int]) -> NDArray[np.int64]:
    """First row of each mode in the stack, then the number of rows; shape (N + 1,)."""
    return np.cumsum([0, *sizes], dtype=np.int64)


def model_values(indices: NDArray[np.int32], factors: Sequence[Array]) -> NDArray[np.float64]:
    """Value of the CP model at the given cells.

    Parameters
    ----------
    indices : ndarray of int32, shape (cells, N)
    factors : sequence of N ndarrays of float32 or float64, each (I_n, R)

    Returns
    -------
    ndarray of float64, shape (cells,)
        Each a sum over the R components in the factors' own precision.
    """
    offsets = row_offsets([len(factor) for factor in factors])
    return stacked_values(indices, stack_factors(factors), offsets)


def stacked_values(indices: Array, stack: Array, offsets: Array) -> NDArray[np.float64]:
    """`model_values` for factors that are stacked already; `offsets` as of `row_offsets`."""
    values = np.empty(len(indices))
    if indices.shape[1] == 3:
        _values_three(indices, stack, offsets, values)
    else:
        _values_any(indices, stack, offsets, values)
    return values


def mttkrp(tensor: SparseTensor, factors: Sequence[Array], mode: int) -> Array:
    """Matricised tensor times Khatri-Rao product of all factors but `mode`'s.

    Parameters
    ----------
    tensor : SparseTensor
    factors : sequence of N ndarrays of float32 or float64, each (I_n, R)
    mode : int in [0, N)

    Returns
    -------
    ndarray, shape (I_mode, R)
        Products are formed in the factors' own precision. So are the sums for the patients, whose
        rows collect few entries; for features they, and the result, are float64.
    """
    stack = stack_factors(factors)
    dtype = stack.dtype if mode == 0 else np.float64
    result = np.zeros((tensor.shape[mode], stack.shape[1]), dtype)
    kernel = _mttkrp_three if tensor.ndim == 3 else _mttkrp_any
    kernel(tensor.indices, tensor.values, stack, row_offsets(tensor.shape), mode, result)
    return result[:, : factors[0].shape[1]]


@compiled(**_OPTIONS)
def _values_three(indices: Array, stack: Array, offsets: Array, values: Array) -> None:
    for s in range(len(indices)):
        a, b = stack[indices[s, 0]], stack[offsets[1] + indices[s, 1]]
        c = stack[offsets[2] + indices[s, 2]]
        total = stack.dtype.type(0)
        for r in range(len(a)):
            total += a[r] * (b[r] * c[r])
        values[s] = total


@compiled(**_OPTIONS)
def _values_any(indices: Array, stack: Array, offsets: Array, values: Array) -> None:
    entries, modes = indices.shape
    columns = stack.shape[1]
    product = np.empty(columns, stack.dtype)
    for s in range(entries):
        product[:] = stack[indices[s, 0]]
        for n in range(1, modes - 1):
            row = stack[offsets[n] + indices[s, n]]
            for r in range(columns):
                product[r] *= row[r]
        row = stack[offsets[modes - 1] + indices[s, modes - 1]]
        total = stack.dtype.type(0)
        for r in range(columns):
            total += product[r] * row[r]
        values[s] = total


@compiled(**_OPTIONS)
def _mttkrp_three(
    indices: Array, values: Array, stack: Array, offsets: Array, mode: int, result: Array
) -> None:
    p, q = (1 if mode == 0 else 0), (1 if mode == 2 else 2)
    for s in range(len(values)):
        x, y = stack[offsets[p] + indices[s, p]], stack[offsets[q] + indices[s, q]]
        target, value = result[indices[s, mode]], values[s]
        for r in range(len(x)):
            target[r] += value * (x[r] * y[r])


@compiled(**_OPTIONS)
def _mttkrp_any(
    indices: Array, values: Array, stack: Array, offsets: Array, mode: int, result: Array
) -> None:
    entries, modes = indices.shape
    columns = stack.shape[1]
    product = np.empty(columns, stack.dtype)
    for s in range(entries):
        product[:] = values[s]
        for n in range(modes):
            if n != mode:
                row = stack[offsets[n] + indices[s, n]]
                for r in range(columns):
                    product[r] *= row[r]
        target = result[indices[s, mode]]
        for r in range(columns):
            target[r] += product[r]


@compiled(**_OPTIONS)
def draw_visits(
    indices: Array,
    values: Array,
    offsets: Array,
    starts: Array,
    first: int,
    rows: Array,
    counts: Array,
    rng: np.random.Generator,
) -> None:
    """Fill `rows` and `counts` with a block's entries and sampled zero cells, in random order.

    Parameters
    ----------
    indices, values : ndarrays (nnz, N) of int32 and (nnz,) of float32, sorted by patient
    offsets : ndarray of int64, shape (N + 1,)
    starts : ndarray of int64, shape (patients in the block + 1,)
        First entry of each patient of the block.
    first : int
        First patient of the block.
    rows, counts : ndarrays (visits, N) of int32 and (visits,) of float32
        Written. What exceeds the block's entries is filled with cells that are zero, each uniform
        among the block's zero cells and independent of the others; their count is 0. There must
        be a zero cell if there is something to fill.
    rng : numpy.random.Generator
    """
    modes = indices.shape[1]
    patients, entries = len(starts) - 1, starts[-1] - starts[0]
    cell = np.empty(modes, np.int32)
    for s in range(len(counts)):
        # Fisher-Yates, inside out: the newcomer takes a random place, whoever is there moves to s.
        place = int(rng.random() * (s + 1))
        for n in range(modes):
            rows[s, n] = rows[place, n]
        counts[s] = counts[place]
        if s < entries:
            for n in range(modes):
                cell[n] = indices[starts[0] + s, n]
            counts[place] = values[starts[0] + s]
        else:
            while True:
                patient = int(rng.random() * patients)
                cell[0] = first + patient
                for n in range(1, modes):
                    cell[n] = int(rng.random() * (offsets[n + 1] - offsets[n]))
                if not _occurs(indices, starts[patient], starts[patient + 1], cell):
                    break
            counts[place] = 0
        for n in range(modes):
            rows[place, n] = offsets[n] + cell[n]


@compiled(**_OPTIONS)
def _occurs(indices: Array, low: int, high: int, cell: Array) -> bool:
    """Whether `cell` is among the sorted rows low..high-1 of `indices` (binary search)."""
    modes = len(cell)
    while low < high:
        middle = (low + high) // 2
        order = 0
        for n in range(modes):
            order = indices[middle, n] - cell[n]
            if order != 0:
                break
        if order == 0:
            return True
        if order < 0:
            low = middle + 1
        else:
            high = middle
    return False


def visit(stack: Array, anchors: Array, rows: Array, counts: Array, step: Step) -> None:
    """One stochastic gradient step per visit, in the order given; eqs. (ai), (bj).

    Parameters
    ----------
    stack : ndarray of float32, shape (sum of I_n, R padded)
        Updated in place.
    anchors : ndarray of float32, shape (sum of I_n but I_0, R padded)
        The stack of the global feature factors: row q belongs to row I_0 + q of `stack`.
    rows, counts : ndarrays (visits, N) of int32 and (visits,) of float32
        Rows of `stack`, and the cell's count. A count of 0 marks a sampled zero cell.
    step : Step
    """
    numbers: Any = [step.eta, step.gamma, step.clip, step.zero_weight, step.floor]
    numbers = [np.float32(number) for number in numbers]
    if rows.shape[1] == 3 and not step.sequential:
        _visit_three(stack, anchors, rows, counts, *numbers)
    else:
        _visit_any(stack, anchors, rows, counts, step.sequential, *numbers)


@compiled(**_OPTIONS)
def _visit_three(
    stack: Array,
    anchors: Array,
    rows: Array,
    counts: Array,
    eta: np.float32,
    gamma: np.float32,
    clip: np.float32,
    zero_weight: np.float32,
    floor: np.float32,
) -> None:
    """`_visit_any`, joint, for three modes: a third of its time."""
    patients = len(stack) - len(anchors)
    for s in range(len(counts)):
        a, b, c = stack[rows[s, 0]], stack[rows[s, 1]], stack[rows[s, 2]]
        model = _ZERO
        for r in range(len(a)):
            model += a[r] * (b[r] * c[r])
        at_entry = counts[s] > _ZERO
        gradient = (_ONE if at_entry else zero_weight) * (model - counts[s])
        pull = eta * gamma if at_entry else _ZERO
        for_a = for_b = for_c = gradient
        if clip > _ZERO:
            for_a = _clipped_pair(gradient, b, c, clip)
            for_b = _clipped_pair(gradient, a, c, clip)
            for_c = _clipped_pair(gradient, a, b, clip)
        anchor_b, anchor_c = anchors[rows[s, 1] - patients], anchors[rows[s, 2] - patients]
        _move_three(a, b, c, anchor_b, anchor_c, eta * for_a, eta * for_b, eta * for_c, pull, floor)


@compiled(**_OPTIONS)
def _move_three(
    a: Array,
    b: Array,
    c: Array,
    anchor_b: Array,
    anchor_c: Array,
    step_a: np.float32,
    step_b: np.float32,
    step_c: np.float32,
    pull: np.float32,
    floor: np.float32,
) -> None:
    keep = _ONE - pull
    for r in range(len(a)):
        ar, br, cr = a[r], b[r], c[r]
        new = ar - step_a * (br * cr)
        a[r] = floor if new < floor else new  # in this form a NaN stays one
        new = keep * br + pull * anchor_b[r] - step_b * (ar * cr)
        b[r] = floor if new < floor else new
        new = keep * cr + pull * anchor_c[r] - step_c * (ar * br)
        c[r] = floor if new < floor else new


@compiled(**_OPTIONS)
def _visit_any(
    stack: Array,
    anchors: Array,
    rows: Array,
    counts: Array,
    sequential: bool,
    eta: np.float32,
    gamma: np.float32,
    clip: np.float32,
    zero_weight: np.float32,
    floor: np.float32,
) -> None:
    visits, modes = rows.shape
    patients = len(stack) - len(anchors)
    others = np.empty((modes, stack.shape[1]), np.float32)
    for s in range(visits):
        at_entry = counts[s] > _ZERO
        weight = _ONE if at_entry else zero_weight
        for n in range(1 if sequential else modes):
            _hadamard(stack, rows, s, n, others)
        model = _ZERO
        for r in range(stack.shape[1]):
            model += stack[rows[s, 0], r] * others[0, r]
        for n in range(modes):
            if sequential and n > 0:
                _hadamard(stack, rows, s, n, others)
            step = eta * _clipped(weight * (model - counts[s]), others, n, clip)
            pull = eta * gamma if at_entry and n > 0 else _ZERO
            anchor = rows[s, n] - patients if n > 0 else 0
            moved = _move(stack, rows[s, n], others, n, anchors, anchor, step, pull, floor)
            if sequential:
                model = moved


# The helpers below take arrays and row numbers, not rows: a row handed from function to function
# costs numba an atomic reference count each time.


@compiled(**_OPTIONS)
def _hadamard(stack: Array, rows: Array, s: int, mode: int, others: Array) -> None:
    """Write to row `mode` of `others` the product of visit s's rows of all other modes."""
    first = 1 if mode == 0 else 0
    row = rows[s, first]
    for r in range(stack.shape[1]):
        others[mode, r] = stack[row, r]
    for n in range(first + 1, rows.shape[1]):
        if n != mode:
            row = rows[s, n]
            for r in range(stack.shape[1]):
                others[mode, r] *= stack[row, r]


@compiled(**_OPTIONS)
def _move(
    stack: Array,
    row: int,
    others: Array,
    mode: int,
    anchors: Array,
    anchor: int,
    step: np.float32,
    pull: np.float32,
    floor: np.float32,
) -> np.float32:
    """Step a row of the stack; returns the model's value with the new row."""
    keep, model = _ONE - pull, _ZERO
    for r in range(stack.shape[1]):
        direction = others[mode, r]
        new = keep * stack[row, r] + pull * anchors[anchor, r] - step * direction
        new = floor if new < floor else new  # in this form a NaN stays one
        stack[row, r] = new
        model += new * direction
    return model


@compiled(**_OPTIONS)
def _clipped(gradient: np.float32, others: Array, mode: int, clip: np.float32) -> Any:
    """`gradient`, scaled so that ||gradient * others[mode]|| <= `clip`; 0 is no bound."""
    if clip > _ZERO:
        total = _ZERO
        for r in range(others.shape[1]):
            total += others[mode, r] * others[mode, r]
        norm = abs(gradient) * np.sqrt(total)
        if norm > clip:
            return gradient * (clip / norm)
    return gradient


@compiled(**_OPTIONS)
def _clipped_pair(gradient: np.float32, first: Array, second: Array, clip: np.float32) -> Any:
    """`gradient`, scaled so that ||gradient * first * second|| is at most `clip`."""
    total = _ZERO
    for r in range(len(first)):
        total += (first[r] * second[r]) * (first[r] * second[r])
    norm = abs(gradient) * np.sqrt(total)
    return gradient * (clip / norm) if norm > clip else gradient
