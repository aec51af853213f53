"""Moments and durations of a trace file, µs in whatever writing, as int64 ns."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Below this a float of µs with three decimals still rounds to the right ns (half a spacing of
# doubles under 2**43 is less than half a ns); above it we read the digits themselves.
EXACT_FLOAT_US = float((1 << 43) - (1 << 40))  # the trace may go on for days
# Garbage beyond these is left out; together with the zero of the clock they cannot overflow an int64.
LATEST_NS = 1 << 61  # 73 years
LONGEST_NS = 1 << 56  # 2 years
_TS = re.compile(rb'"ts"\s*:\s*"?(-?[0-9.eE+]+)')

Times = tuple[NDArray[np.int64], NDArray[np.bool_]]  # ns, and which of them are numbers that fit


def first_times_us(text: bytes) -> list[float]:
    """The timestamps in a piece of trace JSON, µs without their sign; 0 for those that cannot be."""
    return [_magnitude(digits) for digits in _TS.findall(text)]


def floats_to_ns(values: list[float | None]) -> Times:
    """µs to ns."""
    us = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    valid = np.abs(us) < LATEST_NS / 1000  # which NaN is not
    fraction, whole = np.modf(np.where(valid, us, 0.0))  # the product of both would be rounded once more
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000.0).astype(np.int64), valid


def texts_to_ns(values: list[Any]) -> Times:
    """Raw JSON of µs to ns without passing through a float."""
    digits = [digits_to_ns(bytes(value)) if value else None for value in values]
    valid = np.array([ns is not None and abs(ns) < LATEST_NS for ns in digits], dtype=np.bool_)
    fitting = [ns if ok else 0 for ns, ok in zip(digits, valid, strict=True)]
    return np.array(fitting, dtype=np.int64), valid


def digits_to_ns(digits: bytes) -> int | None:
    """Decimal µs, as written in the file, to ns without passing through a float; None if no number."""
    text = digits.decode("ascii", "replace").strip('" ')
    match = re.fullmatch(r"(-?)(\d{1,16})(?:\.(\d*))?", text)
    if match is None:
        try:
            value = float(text) * 1000.0
        except ValueError:
            return None
        return round(value) if abs(value) < LATEST_NS else None
    sign, whole, fraction = match.groups()
    fraction = (fraction or "").ljust(4, "0")
    ns = int(whole) * 1000 + int(fraction[:3]) + (fraction[3] >= "5")
    return -ns if sign else ns


def to_float(value: Any) -> float:
    """µs of any type, NaN where it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _magnitude(digits: bytes) -> float:
    number = to_float(digits)
    return abs(number) if abs(number) < LATEST_NS / 1000 else 0.0
