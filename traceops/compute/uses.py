"""Launched kernels with their operators: what a kernel's name and an operator's inputs say, and equal ones together.

A `Use` is one operator on one set of inputs.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.compute.named import operator_of
from traceops.core.arrays import FEW_ROWS, Int, alike, grouped
from traceops.traces.model import Events

_SIZES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "short int": 2,
    "short": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip
_NAMES = {name.lower(): name for name in _SIZES} | {  # writers differ in case; some use torch's ScalarType
    "half": "c10::Half", "bfloat16": "c10::BFloat16", "long": "long int", "short": "short int",
    "char": "signed char", "byte": "unsigned char",
}  # fmt: skip
_MOST_ELEMENTS = 10**14
FLOATS = frozenset({"double", "float", "c10::Half", "c10::BFloat16", "c10::complex<double>"})
HALVES = frozenset({"c10::Half", "c10::BFloat16"})


class Tensor(Struct, frozen=True, dict=True):
    """One input; a scalar tensor has no dimensions. strides: of the contiguous layout where the trace has none."""

    dims: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        return math.prod(self.dims)

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _SIZES.get(self.dtype, 4)

    @property
    def stored(self) -> int:
        """Bytes that lie in memory: an expanded dimension has one element there."""
        return math.prod(d for d, s in zip(self.dims, self.strides, strict=True) if s or d == 0) * self.size

    @property
    def expanded(self) -> bool:
        """Whether a dimension repeats what is stored once."""
        return any(s == 0 and d > 1 for d, s in zip(self.dims, self.strides, strict=True))

    @property
    def contiguous(self) -> bool:
        """Whether the last dimension moves fastest, without gaps."""
        return self.strides == _packed(self.dims) or all(
            d == 1 or s == p for d, s, p in zip(self.dims, self.strides, _packed(self.dims), strict=True)
        )


class Inputs(Struct, frozen=True, dict=True):
    """Inputs by position: a tensor, a list of tensors, or None for what is neither; `values` are texts of scalars."""

    given: tuple[Tensor | tuple[Tensor, ...] | None, ...]
    values: tuple[str, ...]

    def tensor(self, at: int) -> Tensor | None:
        """The tensor at this position."""
        one = self.given[at] if at < len(self.given) else None
        return one if isinstance(one, Tensor) else None

    @cached_property
    def tensors(self) -> list[Tensor]:
        """All of them, those in lists too."""
        found: list[Tensor] = []
        for one in self.given:
            if isinstance(one, Tensor):
                found.append(one)
            elif one is not None:
                found += one
        return found

    def value(self, at: int) -> str:
        """The text of the scalar at this position."""
        return self.values[at] if at < len(self.values) else ""


NO_INPUTS = Inputs((), ())


def _given(dims: Any, kind: str, strides: Any) -> Tensor | tuple[Tensor, ...] | None:
    """One input; None for what is no tensor and no list of them."""
    if not isinstance(dims, list):
        return None
    if kind == "TensorList" or (dims and isinstance(dims[0], list)):
        lists = strides if isinstance(strides, list) and len(strides) == len(dims) else [[]] * len(dims)
        parts = [_tensor(d, _OF_LISTS, s) for d, s in zip(dims, lists, strict=True)]
        return tuple(part for part in parts if part is not None)
    return _tensor(dims, kind, strides) if kind in _SIZES else None


@lru_cache(maxsize=4096)  # ranks call the same operators with the same inputs
def read_inputs(shapes: str, types: str, strides: str, concrete: str) -> Inputs:
    """Inputs of an operator; empty where the texts are not of this kind, whoever wrote them."""
    dims, kinds, steps, values = (_list(text) for text in (shapes, types, strides, concrete))
    given: list[Tensor | tuple[Tensor, ...] | None] = []
    for at, one in enumerate(dims):
        kind = kinds[at] if at < len(kinds) and isinstance(kinds[at], str) else ""
        kind = _NAMES.get(kind.lower(), kind)
        number = kind in ("double", "long int", "bool") and not one and at and values[at : at + 1] != [""]
        given.append(None if number else _given(one, kind, steps[at] if at < len(steps) else []))
    return Inputs(tuple(given), tuple(value if isinstance(value, str) else "" for value in values))


_OF_LISTS = "float"  # a trace has no types of what is in a list


def _tensor(dims: Any, kind: str, strides: Any) -> Tensor | None:
    if not isinstance(dims, list) or not all(isinstance(d, int) and 0 <= d <= _MOST_ELEMENTS for d in dims):
        return None
    if math.prod(dims) > _MOST_ELEMENTS:  # no memory holds it: the file is damaged, or means to mislead
        return None
    known = (
        isinstance(strides, list)
        and len(strides) == len(dims)
        and all(isinstance(s, int) and abs(s) <= _MOST_ELEMENTS for s in strides)
    )
    return Tensor(tuple(dims), kind, tuple(strides) if known else _packed(tuple(dims)))


def _packed(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for dim in reversed(dims):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))


def _list(text: str) -> list[Any]:
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


_NODE = "autograd::engine::evaluate_function: "
_WIDEST = 1 << 62
_ANCESTORS = 5  # operators around the innermost one that tell what it is for


class Place(Struct, frozen=True):
    """Where in the program: classes of the modules around, as 'GPT/Block/Linear', and file:line, or empty texts."""

    module: str = ""
    line: str = ""

    @property
    def said(self) -> str:
        """'GPT/Block/Linear (model.py:42)'."""
        return f"{self.module} ({self.line})" if self.module and self.line else self.module or self.line


NO_PLACE = Place()


class Launched(Struct, frozen=True):
    """What one rank's recorded steps launched, collectives left out, in the order of launch.

    `row` is a kernel's, copy's or fill's; `operator` the position of the innermost operator around its launch in
    `operators` (rows), -1 without one; `parent` the position of the one around an operator. `optimizing`: launched in
    an optimizer's step. `host_ns`: how long the host took for each step, as recorded.
    """

    events: Events
    row: Int
    step: Int
    operator: Int
    operators: Int
    parent: NDArray[np.int32]
    optimizing: NDArray[np.bool_]
    host_ns: Int
    host_busy_ns: Int  # the same without what it waited for the device
    device_ns: float  # per step, in which the device runs anything, collectives too
    steps: int
    schedule: Callable[[], Schedule]  # asked for where something is lost
    place: Int  # by operator: in `places`, -1 for none
    places: tuple[Place, ...]

    @property
    def typical(self) -> int:
        """The step that stands for all where the order counts."""
        return self.steps // 2


class Schedule(Struct, frozen=True):
    """A typical step in the order of launch, collectives too.

    kernel: position in `Launched.row`, -1 for a collective. host_ns and events: the host's time and its recorded events
    since the launch before, and last those behind the last launch. device_ns: by how much it prolongs the time in which
    the device runs anything. waits: whether the host waits for the device behind it.
    """

    kernel: Int
    host_ns: Int
    events: Int
    device_ns: Int
    waits: NDArray[np.bool_]
    step_ns: int = 0  # how long it took; 0: not known


class Use(Struct, dict=True):
    """An operator called with one set of inputs, in one place of the program: its calls of all recorded steps. path:
    names of the operators around it, the innermost first. node: of autograd, in backward. again: repeats a forward pass
    in backward. kernels: name -> (launches, ns)."""

    name: str
    path: tuple[str, ...]
    node: str
    optimizing: bool
    again: bool
    inputs: Inputs
    calls: int
    ns: int
    kernels: dict[str, tuple[int, int]]
    blocks: int  # of the kernel that took longest
    place: Place = NO_PLACE
    alone: bool = False  # kernels without an operator: name and inputs are as far as their names tell

    @property
    def launches(self) -> int:
        return sum(count for count, _ in self.kernels.values())

    @cached_property
    def main_kernel(self) -> str:
        """The kernel that takes most of its time."""
        return max(self.kernels, key=lambda name: self.kernels[name][1])

    def kernel_ns_of(self, wanted: Callable[[str], bool]) -> int:
        """Time of kernels with such a name."""
        return sum(ns for name, (_, ns) in self.kernels.items() if wanted(name))

    def within(self, *names: str) -> bool:
        """Whether it is, or lies in, an operator of one of these names."""
        return self.name in names or any(name in names for name in self.path)


class Uses(Struct, frozen=True):
    """All uses; `order` has the use of each call of one typical step, in the order of launch."""

    uses: tuple[Use, ...]
    order: tuple[int, ...]
    steps: int
    of_kernel: Int  # the use of each launched kernel


def find_uses(launched: Launched) -> Uses:
    """Group kernels by their operator's name, inputs and place."""
    events, rows = launched.events, launched.row
    operator = launched.operator
    node, again = _backward(launched)
    columns = [
        *_around(launched),
        _of(launched.place, operator),
        *(_of(node, operator), _of(again, operator), launched.optimizing.astype(np.int64)),
    ]
    known = operator >= 0
    op_rows = (
        launched.operators.take(np.maximum(operator, 0)) if len(launched.operators) else np.zeros(len(rows), np.int64)
    )
    for inputs in (events.shape, events.types, events.strides, events.concrete):
        columns.append(np.where(known, inputs.take(op_rows) if len(launched.operators) else -1, -1))
    columns.append(np.where(known, -1, events.shape.take(rows)))
    columns.append(np.where(known, -1, events.name.take(rows)))
    first, which = _alike(columns)
    parts: defaultdict[int, dict[str, tuple[int, int]]] = defaultdict(dict)
    pair = which * len(events.names) + events.name.take(rows)
    at, inverse = _alike([pair])
    count = np.bincount(inverse, minlength=len(at))
    ns = np.bincount(inverse, weights=events.dur.take(rows), minlength=len(at))
    for index, row in enumerate(at.tolist()):
        name = events.names[events.name[rows[row]]]
        parts[int(which[row])][name] = (int(count[index]), int(ns[index]))
    call = np.where(known, operator, -1 - np.arange(len(rows)))
    begins = np.concatenate(([True], (call[1:] != call[:-1]))) if len(rows) else np.zeros(0, bool)
    calls = np.bincount(which[begins], minlength=len(first))
    longest = _longest(which, events.dur.take(rows), len(first))
    uses = []
    for group, index in enumerate(first.tolist()):
        place = int(operator[index])
        names = _path(launched, place)
        op_row = int(launched.operators[place]) if place >= 0 else -1
        kernel, blocks = events.names[events.name[rows[index]]], _blocks(events, int(rows[longest[group]]))
        named = operator_of(kernel, blocks) if not names else None
        given = NO_INPUTS
        if op_row >= 0:
            given = _inputs(events, op_row)
        elif named:
            given = Inputs(tuple(Tensor((named[1],), dtype, (1,)) for dtype in named[2]), ())
        uses.append(
            Use(
                names[0] if names else named[0] if named else kernel,
                names[1:],
                events.names[int(node[place])].removeprefix(_NODE) if place >= 0 and node[place] >= 0 else "",
                bool(launched.optimizing[index]),
                bool(again[place]) if place >= 0 else False,
                given,
                int(calls[group]),
                sum(ns for _, ns in parts[group].values()),
                parts[group],
                blocks,
                launched.places[number] if place >= 0 and (number := int(launched.place[place])) >= 0 else NO_PLACE,
                not names,
            )
        )
    order = which[begins & (launched.step == launched.typical)]
    return Uses(tuple(uses), tuple(order.tolist()), launched.steps, which)


def _alike(columns: list[Int]) -> tuple[Int, Int]:
    """The first of the rows that are equal in all columns, in the order of what they hold, and each row's group."""
    if len(columns[0]) <= FEW_ROWS:
        return alike(columns)
    key, width = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        least = int(column.min(initial=0))
        size = int(column.max(initial=0)) - least + 1
        if width * size > _WIDEST:  # numbers that long do not fit: those in use are numbered anew
            key = grouped(key)[1]
            width = int(key.max(initial=0)) + 1
        key *= size
        key += column - least
        width *= size
    return grouped(key)


def _around(launched: Launched) -> list[Int]:
    """The names of the innermost operator and of those around it, as columns."""
    names = launched.events.name.take(launched.operators).astype(np.int64)
    at = launched.operator
    columns: list[Int] = []
    if not len(names):
        return columns
    for _ in range(_ANCESTORS):
        columns.append(_of(names, at))
        at = np.where(at >= 0, launched.parent.take(np.maximum(at, 0)), -1)
    return columns


def _of(column: NDArray[np.int64], at: Int) -> Int:
    if not len(column):
        return np.full(len(at), -1, dtype=np.int64)
    found: Int = np.where(at >= 0, column.take(np.maximum(at, 0)), -1)
    return found


def _path(launched: Launched, at: int) -> tuple[str, ...]:
    events = launched.events
    names: list[str] = []
    while at >= 0 and len(names) < _ANCESTORS:
        names.append(events.names[events.name[launched.operators[at]]].removeprefix(_NODE))
        at = int(launched.parent[at])
    return tuple(names)


def _backward(launched: Launched) -> tuple[Int, Int]:
    """Of each operator: the name of autograd's node around it (-1), and whether it repeats a forward pass."""
    events, parent = launched.events, launched.parent
    if not len(launched.operators):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    names = events.name.take(launched.operators).astype(np.int64)
    is_node = np.array([name.startswith(_NODE) for name in events.names], bool).take(names)
    forward = np.array([name.startswith("aten::") for name in events.names], bool).take(names)
    node = np.where(is_node, names, -1)
    # Autograd numbers what it records: in backward only what runs a forward pass again.
    again = forward & (events.sequence.take(launched.operators) >= 0)
    # Twice as many operators around each are looked at in every turn.
    inside = np.flatnonzero(parent >= 0)
    above = parent[inside]
    jump = parent.copy()
    while len(inside):
        around = node[above]
        repeated = again[above]
        node[inside] = np.where(node[inside] < 0, around, node[inside])
        again[inside] |= repeated
        jump[inside] = jump[above]
        inside = inside[jump[inside] >= 0]
        above = jump[inside]
    return node, (again & (node >= 0)).astype(np.int64)


def _longest(which: Int, dur: Int, count: int) -> Int:
    """The last of each group's rows that took longest."""
    best: Int = np.zeros(count, dtype=np.int64)
    most: Int = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, which, dur)
    longest = np.flatnonzero(dur == most.take(which))
    best[which[longest]] = longest
    return best


def _blocks(events: Events, row: int) -> int:
    text = events.shapes[events.shape[row]] if events.shape[row] >= 0 else ""
    try:
        return int(np.prod([int(part) for part in text.strip("[]").split(",")])) if text.startswith("[") else 0
    except ValueError:
        return 0


def _inputs(events: Events, row: int) -> Inputs:
    columns = (
        (events.shape, events.shapes), (events.types, events.type_lists),
        (events.strides, events.stride_lists), (events.concrete, events.concrete_lists),
    )  # fmt: skip
    return read_inputs(*(texts[column[row]] if column[row] >= 0 else "" for column, texts in columns))
