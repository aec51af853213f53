"""Columns of complete events and their numbered strings: in compiled code where it is there, else in NumPy."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from traceops.traces import _native

WIDE = ("index", "ts", "dur", "pid", "tid", "stream", "correlation", "external", "sequence")  # int64
NARROW = ("name", "cat", "shape", "types", "strides", "concrete")  # int32, numbers of strings
_LAYOUT = 4  # what the columns hold, as native/events.h has it

Array = NDArray[Any]


class Columns(Protocol):
    """Rows of events, added in file order; what the compiled scanner and PlainColumns have in common."""

    rows: int
    seen: int  # events of all phases
    bad_times: int  # complete events without a usable time
    with_stack: int  # whether there were Python frames

    def number(self, column: str, text: str, /) -> int:
        """The text's number in one of NARROW, a new one if it is new."""

    def extend(self, columns: dict[str, Array], /) -> None:
        """Add rows: a key for each of WIDE and NARROW, equally long."""

    def strings(self, column: str, /) -> tuple[str, ...]:
        """All texts of one of NARROW, by number."""

    def finish(self) -> dict[str, Any]:
        """A buffer for each of WIDE and NARROW; no rows can be added any more."""


class PlainColumns:
    """Columns in NumPy, for where there is no compiled scanner."""

    def __init__(self) -> None:
        self.rows = self.seen = self.bad_times = self.with_stack = 0
        self._strings: dict[str, dict[str, int]] = {column: {} for column in NARROW}
        self._parts: dict[str, list[Array]] = {column: [] for column in (*WIDE, *NARROW)}

    def number(self, column: str, text: str) -> int:
        """As Columns says."""
        numbers = self._strings[column]
        return numbers.setdefault(text, len(numbers))

    def extend(self, columns: dict[str, Array]) -> None:
        """As Columns says."""
        for column, parts in self._parts.items():
            parts.append(columns[column])
        self.rows += len(columns["ts"])

    def strings(self, column: str) -> tuple[str, ...]:
        """As Columns says."""
        return tuple(self._strings[column])

    def finish(self) -> dict[str, Array]:
        """As Columns says."""
        return {
            column: np.concatenate(parts) if parts else np.empty(0, dtype_of(column))
            for column, parts in self._parts.items()
        }


def dtype_of(column: str) -> type[np.int64] | type[np.int32]:
    """The type of a column's numbers."""
    return np.int64 if column in WIDE else np.int32


def native_columns(exact: bool) -> _native.Columns | None:
    """Columns of the compiled scanner; None where TRACEOPS_NATIVE=0 forbids it, or it was not built of this version."""
    if os.environ.get("TRACEOPS_NATIVE") == "0":
        return None
    try:
        from traceops.traces import _native
    except ImportError:
        return None
    if getattr(_native, "LAYOUT", 1) != _LAYOUT:
        return None
    return _native.Columns(exact)
