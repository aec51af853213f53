"""Which traces that name no rank one process wrote, one after the other, under names of its own."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath

from traceops.core.errors import InputError
from traceops.traces.source import chunks, open_binary
from traceops.traces.times import first_times_us
from traceops.traces.windows import Candidate

_HOST_EVENT = re.compile(
    rb'"ph"\s*:\s*"X"\s*,\s*"cat"\s*:\s*"(?:cpu_op|user_annotation|cuda_runtime|python_function)"[^{}]{0,400}?'
    rb'"pid"\s*:\s*(\d{1,10})'
)
_END = re.compile(rb'"Record Window End"[^{}]{0,200}?"ts"\s*:\s*([0-9.]+)')  # kineto's last event
_TAIL = 1 << 16
_DIGITS = re.compile(r"\d+")


def process_of(head: bytes) -> int | None:
    """The pid of the first event of a host in a trace's beginning."""
    match = _HOST_EVENT.search(head)
    return None if match is None else int(match.group(1))


def with_processes(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates, with a process only where several of them are of it.

    Such files name no rank, lie in one folder, have one pid and one name but for its digits (trace_7.json and
    trace_12.json, by their steps), and each begins behind the end of the one before. Ranks of containers that have one
    pid record at the same time.
    """
    alike: dict[tuple[str, str, int], list[Candidate]] = defaultdict(list)
    for one in candidates:
        if one.process is not None and one.rank_in_name is None and one.rank_inside is None and not one.summarized:
            path = PurePosixPath(one.trace)
            alike[str(path.parent), _DIGITS.sub("#", path.name), one.process].append(one)
    same = {one.path for own in alike.values() if len(own) > 1 and _in_turn(own) for one in own}
    return [one if one.path in same else replace(one, process=None) for one in candidates]


def _in_turn(own: Sequence[Candidate]) -> bool:
    """Whether each begins behind the end of the one before."""
    ordered = sorted(own, key=lambda one: one.started_ns)
    for one, following in pairwise(ordered):
        span = _span_ns(one.path)
        if span is None or one.started_ns + span > following.started_ns:
            return False
    return True


def _span_ns(path: str) -> int | None:
    """From a trace's first event to the end of its recording; None where it does not tell that."""
    first, tail = None, b""
    try:
        with open_binary(path) as file:
            for piece in chunks(file):
                if first is None:
                    first = next(iter(first_times_us(piece)), None)
                tail = (tail + piece)[-_TAIL:]
    except InputError:
        return None
    ends = _END.findall(tail)
    return None if first is None or not ends else int((float(ends[-1]) - first) * 1000)
