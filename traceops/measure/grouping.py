"""Groups rows by what some of their columns hold, without sorting where the values are few."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceops.core.arrays import Int

_CELLS_A_ROW = 4  # a table of so many cells a row costs less than sorting the rows


def distinct(values: NDArray[Any]) -> tuple[Int, Int]:
    """The different values in rising order and each row's place among them; fast where equal values stand together."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    first = np.concatenate(([0], changes))[: len(values)]
    found, which = np.unique(values[first], return_inverse=True)
    return found, np.repeat(which, np.diff(np.append(first, len(values))))


def groups(*columns: NDArray[Any]) -> tuple[Int, Int]:
    """The different rows of some columns of numbers from -1 on, shape (groups, columns), and each row's group."""
    sizes = [int(column.max(initial=-1)) + 2 for column in columns]
    key = np.zeros(len(columns[0]), dtype=np.int64)
    for column, size in zip(columns, sizes, strict=True):
        key *= size
        key += column
        key += 1
    cells = math.prod(sizes)
    if cells <= _CELLS_A_ROW * len(key):
        used = np.bincount(key, minlength=cells) > 0
        values, group = np.flatnonzero(used), (np.cumsum(used) - 1)[key]
    else:
        values, group = np.unique(key, return_inverse=True)
    parts = []
    for size in reversed(sizes):
        values, part = np.divmod(values, size)
        parts.append(part - 1)
    return np.stack(parts[::-1], axis=1), group
