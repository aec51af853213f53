"""What a sweep varies: axes from the command line, and the points that they span."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from traceops.core.errors import UsageError

MOST_POINTS = 1000
_FOLDER_SAFE = re.compile(r"[^A-Za-z0-9._=,+-]+")


@dataclass(frozen=True)
class SweepAxis:
    """One thing that is varied. of_script: an option of the script's own, not of `traceops run`."""

    key: str
    values: tuple[str, ...]
    of_script: bool = False


@dataclass(frozen=True)
class Point:
    """A value of each axis, in the axes' order."""

    settings: tuple[tuple[SweepAxis, str], ...]

    @property
    def label(self) -> str:
        """'strategy=zero3,workers=2': its name, and that of its folders."""
        said = ",".join(f"{axis.key.lstrip('-')}={value}" for axis, value in self.settings)
        return _FOLDER_SAFE.sub("_", said)[:120]

    @property
    def words(self) -> dict[str, str]:
        """The settings by key."""
        return {axis.key: value for axis, value in self.settings}


def axes_of(options: Sequence[str], arguments: Sequence[str]) -> tuple[SweepAxis, ...]:
    """The axes of --vary and --vary-arg, each KEY=VALUE,VALUE,…. Raises UsageError for what is none."""
    axes = [
        *(_axis(text, "--vary", False) for text in options),
        *(_axis(text, "--vary-arg", True) for text in arguments),
    ]
    if not axes:
        raise UsageError(
            "nothing is varied; add --vary strategy=pytorch_ddp,zero3, or --vary-arg KEY=VALUE,VALUE for a script"
        )
    twice = [axis.key for axis in axes if [other.key for other in axes].count(axis.key) > 1]
    if twice:
        raise UsageError(f"{twice[0]} is varied twice; give all values in one option")
    return tuple(axes)


def points_of(axes: Sequence[SweepAxis]) -> tuple[Point, ...]:
    """All combinations, the last axis changing fastest. Raises UsageError for too many, or names that collide."""
    count = prod(len(axis.values) for axis in axes)
    if count > MOST_POINTS:
        raise UsageError(f"{count} combinations, more than {MOST_POINTS}; vary fewer values at once")
    points = tuple(Point(tuple(zip(axes, values, strict=True))) for values in product(*(axis.values for axis in axes)))
    labels = [point.label for point in points]
    same = [label for label in labels if labels.count(label) > 1]
    if same:
        raise UsageError(f"two combinations would share the folder {same[0]}; use shorter values, or other ones")
    return points


def script_words(point: Point, script: Sequence[str]) -> list[str]:
    """The script's words with the values of its own options: in place of {KEY}, else behind them as --KEY VALUE."""
    words = list(script)
    for axis, value in point.settings:
        if not axis.of_script:
            continue
        place = "{" + axis.key + "}"
        if any(place in word for word in words):
            words = [word.replace(place, value) for word in words]
        else:
            words += [axis.key if axis.key.startswith("-") else f"--{axis.key}", value]
    return words


def _axis(text: str, flag: str, of_script: bool) -> SweepAxis:
    key, sign, listed = text.partition("=")
    values = tuple(value.strip() for value in listed.split(","))
    if not sign or not key.strip("- ") or not all(values):
        raise UsageError(f"{flag} {text}: write KEY=VALUE,VALUE, for example {flag} workers=0,2,4")
    if len(set(values)) < len(values):
        raise UsageError(f"{flag} {text}: a value is given twice; --repeat N runs each combination N times")
    return SweepAxis(key.strip(), values, of_script)
