"""The tensors that an operator was called with, from the texts that a trace has of them."""

from __future__ import annotations

import json
import math
from functools import cached_property, lru_cache
from typing import Any

from msgspec import Struct

_SIZES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "short int": 2,
    "short": 2, "signed char": 1, "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1,
}  # fmt: skip
_OTHER_NAMES = {  # by torch's ScalarType
    "Double": "double", "Float": "float", "Half": "c10::Half", "BFloat16": "c10::BFloat16", "Long": "long int",
    "Int": "int", "Short": "short int", "Char": "signed char", "Byte": "unsigned char", "Bool": "bool",
}  # fmt: skip
_MOST_ELEMENTS = 10**14
FLOATS = frozenset({"double", "float", "c10::Half", "c10::BFloat16"})
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
        kind = _OTHER_NAMES.get(kind, kind)
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
