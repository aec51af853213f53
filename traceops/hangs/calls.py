"""Whether two ranks' calls are calls of one collective, and how a call is described."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import PurePath

from traceops.hangs.evidence import Frame, Operation
from traceops.hangs.positions import Call

# Sizes that may differ between the ranks of a correct call.
_ANY_INPUT = (
    "all_to_all",
    "alltoall",
    "scatter",
    "broadcast",
    "all_gather",
    "coalesced",
    "gather",
    "send",
    "recv",
    "_broadcast_oop",
)
_ANY_OUTPUT = (
    "all_to_all",
    "alltoall",
    "gather",
    "scatter",
    "reduce",
    "all_gather",
    "coalesced",
    "send",
    "recv",
    "_reduce_oop",
)
# One rank of a correct barrier or broadcast may go by another name of the same thing.
_ALIKE = {"all_reduce_barrier": "barrier", "allreduce": "all_reduce", "all_gather_base": "_all_gather_base"}
_BYTES = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1,
    "bool": 1, "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "int64": 8, "int32": 4,
    "float32": 4, "float16": 2, "float64": 8, "uint8": 1, "int8": 1,
}  # fmt: skip
_LIBRARIES = ("/torch/", "/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "/contextlib.py")


def signature(op: Operation) -> tuple[object, ...]:
    """What all ranks' calls of one collective must have alike; None in it matches anything."""
    name = _ALIKE.get(op.op, op.op)
    return (
        name,
        None if name.endswith(_ANY_INPUT) or name.startswith(_ANY_INPUT) else _elements(op.sizes_in),
        None if name.endswith(_ANY_OUTPUT) or name.startswith(_ANY_OUTPUT) else _elements(op.sizes_out),
        op.dtypes_in or None,
    )


def agree(one: Operation, other: Operation) -> bool:
    """Whether the two can be calls of one collective."""
    return all(a is None or b is None or a == b for a, b in zip(signature(one), signature(other), strict=True))


def by_signature(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls that agree with each other, largest group first, then that of the lowest rank."""
    sides: list[list[Call]] = []
    for call in calls:
        side = next((side for side in sides if agree(side[0].op, call.op)), None)
        if side is None:
            sides.append([call])
        else:
            side.append(call)
    return sorted(sides, key=lambda side: (-len(side), min(call.rank for call in side)))


def describe(op: Operation) -> str:
    """'all_reduce of 1048576 Float'."""
    shape = shape_text(op)
    return f"{op.op} of {shape}" if shape else op.op


def shape_text(op: Operation) -> str:
    """'2048×5120 BFloat16'; '' where the sizes are not known."""
    sizes = op.sizes_in or op.sizes_out
    if not sizes:
        return ""
    shapes = ["×".join(map(str, size)) or "1" for size in sizes]
    text = ", ".join(shapes[:3]) + (f", … ({len(shapes)} in all)" if len(shapes) > 3 else "")
    return f"{text} {op.dtypes_in[0]}" if op.dtypes_in else f"{text} elements"


def message_bytes(op: Operation) -> int | None:
    """Bytes of the larger of input and output, as nccl-tests count a message; None where a type is not known."""
    sides = ((op.sizes_in, op.dtypes_in), (op.sizes_out, op.dtypes_out))
    known = [value for sizes, dtypes in sides if (value := _bytes(sizes, dtypes)) is not None]
    return max(known, default=None)


def code_place(frames: Sequence[Frame]) -> str | None:
    """The innermost frame outside torch and the standard library, as 'step (train.py:128)'."""
    own = next((frame for frame in frames if not any(part in frame.file for part in _LIBRARIES)), None)
    if own is None:
        return None
    line = "" if own.line is None else f":{own.line}"
    return f"{own.function} ({PurePath(own.file).name}{line})"


def _elements(sizes: tuple[tuple[int, ...], ...] | None) -> tuple[int, ...] | None:
    return tuple(math.prod(size) for size in sizes) if sizes else None


def _bytes(sizes: tuple[tuple[int, ...], ...] | None, dtypes: tuple[str, ...] | None) -> int | None:
    if not sizes or not dtypes:
        return None
    widths = [_BYTES.get(dtype.lower()) for dtype in dtypes]
    if len(widths) < len(sizes):
        widths += [widths[0]] * (len(sizes) - len(widths))
    if any(width is None for width in widths):
        return None
    return sum(math.prod(size) * (width or 0) for size, width in zip(sizes, widths, strict=False))
