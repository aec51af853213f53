"""How much of a host's time in a step the profiler's recording can be at most, by the trace itself.

What records an event runs between boundaries (begins and ends of events) that follow each other on a thread. An
operator's begin is stamped when its record is made, its end before that record is closed [torch: begin_op,
onFunctionExit]; a call of the device's runtime is recorded within its own begin and end [CUPTI]. So recording lies in
gaps in front of an operator's begin, behind its end, and inside calls. It takes no longer than these gaps: any
quantile of a kind of gaps bounds that quantile of its cost. Recording costs about the same each time, so of the longest
gaps of a kind only as much counts as the others take. What they hold beyond that is the program's own work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traceops.core.arrays import Int, median, native, union
from traceops.core.capture_failure import any_before_window
from traceops.measure.host_rows import ANNOTATION_CATS, OPERATOR_CATS, HostRows, distinct, named
from traceops.measure.steps import StepBounds
from traceops.traces.model import Events, TraceMeta

SLOWED = 1.10  # times the step without the profiler, from which it is told
_GRAPH_LAUNCH = re.compile("GraphLaunch")
_EVER = np.iinfo(np.int64).max
_APART = 3.0  # times the shortest profiled step: then something comes in some of them
_AS_SHORT = 1.1  # times the unprofiled step


def profiler_slowdown(manifest: dict[str, Any]) -> float | None:
    """Profiled ÷ unprofiled step time of the same run, None where one of them is not known. None too where some of the
    profiled ones are a program's first steps: those take longer without a profiler as well. And where some are as short
    as without it and others far longer: the profiler is in all of them."""
    if first_steps_profiled(manifest) or some_profiled_as_short(manifest):
        return None
    profiled, plain = manifest.get("profiled_step_ms"), manifest.get("unprofiled_step_ms")
    if isinstance(profiled, (int, float)) and isinstance(plain, (int, float)) and plain > 0:
        return profiled / plain
    return None


def first_steps_profiled(manifest: dict[str, Any]) -> bool:
    """Whether steps from before the schedule's window are among the profiled ones: of a program that ended early."""
    return any_before_window(manifest.get("schedule"), manifest.get("profiled_steps"))


def some_profiled_as_short(manifest: dict[str, Any]) -> bool:
    """Whether every rank has profiled steps as short as without the profiler beside far longer ones."""
    plain, ranks = manifest.get("unprofiled_step_ms"), list(_profiled(manifest))
    if not isinstance(plain, (int, float)) or not ranks:
        return False
    return all(min(own) <= _AS_SHORT * plain and max(own) >= _APART * min(own) for own in ranks)


def _profiled(manifest: dict[str, Any]) -> Iterator[list[float]]:
    """Each rank's profiled steps, ms."""
    ranks = manifest.get("ranks")
    for rank in ranks if isinstance(ranks, list) else ():
        told = rank.get("profiled_step_ms") if isinstance(rank, dict) else None
        own = [ms for ms in told if isinstance(ms, (int, float)) and ms > 0] if isinstance(told, list) else []
        if own:
            yield own


_OPERATOR, _CALL, _GRAPH, _BEGINS = 0, 1, 2, 3  # what ends at a boundary; + _BEGINS: what begins there
_CODES = 6
_CODE_BITS = 3
_BETWEEN_THREADS = _CODES * _CODES  # no gap
_KINDS = _BETWEEN_THREADS + 1
_GAP_BITS = 57  # of a gap's length beside its kind
_LONGEST_GAP = (1 << _GAP_BITS) - 1
_PLACE_BITS = 59  # of a boundary's thread and time


def _kinds(left: tuple[int, ...], right: tuple[int, ...]) -> list[int]:
    """The numbers of the kinds of gaps from one of the boundaries on the left to one of those on the right."""
    return [one * _CODES + other for one in left for other in right]


_INSIDE_OPERATOR = _kinds((_OPERATOR + _BEGINS,), (_OPERATOR,))
_BEHIND_BEGIN = _kinds((_OPERATOR + _BEGINS,), (_OPERATOR, _OPERATOR + _BEGINS))
# Between an operator's begin or a call's end, and the begin of a call.
_RECORDING_NOTHING = _kinds((_OPERATOR + _BEGINS, _CALL), (_CALL + _BEGINS, _GRAPH + _BEGINS))
# The kernels of a graph are recorded one by one when it is launched.
_AT_GRAPH = _kinds((_GRAPH + _BEGINS, _GRAPH), tuple(range(_CODES)))

_MANY = 100
_OBSERVED_NS = 7_000  # behind half of such begins: there a second observer runs too, as ExecutionTraceObserver
_QUANTILE = 0.85
_LONGEST_NS = 20_000  # no recording was seen to take more than half of it [benchmarks/field]
# Calls of Python are recorded too and are no boundaries here. They lie unevenly, many in few gaps.
_QUANTILE_WITH_STACK = 0.98


class _Gaps(Struct, frozen=True):
    """From each boundary to the next of its thread: ns, and its kind; 0 between threads. By thread, then by time.
    `place` is where each begins: its thread's number above `bits`, and there the ns since `first`."""

    length: Int
    kind: NDArray[np.uint8]
    place: Int
    threads: int
    bits: int
    first: int

    def in_each(self, counted: Int, begins: Int) -> Int:
        """What is counted of the gaps in each of the steps that begin then; what lies before all is the first's."""
        total = np.zeros(len(counted) + 1, dtype=np.int64)
        counted.cumsum(out=total[1:])
        threads = np.arange(self.threads)[:, None] << self.bits
        begins = np.maximum(begins - self.first, 0)
        begins[:1] = 0
        at = self.place.searchsorted(threads + np.minimum(begins, (1 << self.bits) - 1))
        over = np.append(at[1:, :1], len(counted))[:, None]
        until: Int = np.concatenate((at[:, 1:], over), axis=1)
        spent: Int = (total[until] - total[at]).sum(axis=0)
        return spent


def recording_at_most(host: HostRows, steps: StepBounds, meta: TraceMeta) -> tuple[int, ...]:
    """The most that recording takes of each step on this rank's host, ns; empty where it has no event of a host."""
    events = host.events
    operators = events.in_cats(*OPERATOR_CATS, *ANNOTATION_CATS).nonzero()[0]
    rows = np.concatenate((operators, host.launches))
    graphs = named(events, _GRAPH_LAUNCH)
    called = np.where(graphs.take(events.name.take(host.launches)), np.uint8(_GRAPH), np.uint8(_CALL))
    what = np.concatenate((np.full(len(operators), _OPERATOR, dtype=np.uint8), called))
    inside = union(steps.host_start, steps.host_end).holds(events.ts.take(rows))
    if not np.count_nonzero(inside):
        return ()
    gaps = _gaps(events, rows[inside], what[inside])
    # How much of a gap of each kind counts, ns. No less than the clock's tick: a coarse clock shows nothing shorter.
    longest = np.zeros(_KINDS, dtype=np.int64)
    quantile = _QUANTILE_WITH_STACK if meta.with_stack else _QUANTILE
    count = np.bincount(gaps.kind, minlength=_KINDS)
    within = (quantile * (count - 1)).astype(np.int64)  # of the gaps of a kind, once they are in order
    within[count == 0] = -1
    length = np.minimum(gaps.length, _LONGEST_GAP)
    tick = None if native is None else native.select(gaps.kind, length, within, longest)
    if tick is None:
        # By kind, then by length: both are in one number, which sorts fast.
        in_order = np.sort((gaps.kind.astype(np.int64) << _GAP_BITS) | length)
        used = count.nonzero()[0]
        longest[used] = in_order[(count.cumsum() - count + within)[used]] & _LONGEST_GAP
        tick = int(length[length > 0].min(initial=_LONGEST_GAP)) if np.count_nonzero(length > 0) else 0
    if not meta.with_stack:
        np.minimum(longest, _LONGEST_NS, out=longest)
    np.maximum(longest, tick, out=longest)
    longest[_AT_GRAPH] = _EVER
    if any(count[kind] < _MANY or median(gaps.length[gaps.kind == kind]) < _OBSERVED_NS for kind in _BEHIND_BEGIN):
        longest[_RECORDING_NOTHING] = 0
        if not meta.profile_memory:  # else allocations are recorded inside operators too
            longest[_INSIDE_OPERATOR] = 0
    counted = longest.take(gaps.kind)
    most = gaps.in_each(np.minimum(counted, gaps.length, out=counted), steps.host_start)
    waits = union(events.ts[host.waiting], events.end[host.waiting])
    own = steps.host_end - steps.host_start - waits.within(steps.host_start, steps.host_end)
    return tuple(np.minimum(most, np.maximum(own, 0)).tolist())


def _gaps(events: Events, rows: Int, what: NDArray[np.uint8]) -> _Gaps:
    """The gaps between the begins and ends of these rows. what: what each row is. Each boundary is one number, so that
    they are sorted at once: its thread, its time, and what is there, ends before begins."""
    begin, dur = events.ts.take(rows), events.dur.take(rows)
    first = min(int(begin.min()), int((begin + dur).min()))
    bits = (max(int(begin.max()), int((begin + dur).max())) - first).bit_length()
    numbers, which = distinct(events.tid.take(rows))
    threads = min(len(numbers), 1 << max(_PLACE_BITS - bits, 0))
    place = np.empty(2 * len(rows), dtype=np.int64)
    begins, ends = place[: len(rows)], place[len(rows) :]
    np.subtract(begin, first, out=begins)
    which %= threads
    which <<= bits
    begins += which
    np.add(begins, dur, out=ends)
    del begin, dur, which  # this takes more memory than any other measure
    place <<= _CODE_BITS
    ends |= what
    begins |= what + np.uint8(_BEGINS)
    place.sort(kind="stable")  # runs that are nearly in order
    code = np.empty(len(place), dtype=np.uint8)
    np.bitwise_and(place, (1 << _CODE_BITS) - 1, out=code, casting="unsafe")
    place >>= _CODE_BITS
    length, kind = place[1:] - place[:-1], code[:-1] * np.uint8(_CODES) + code[1:]
    between = place.searchsorted(np.arange(1, threads) << bits) - 1
    length[between], kind[between] = 0, _BETWEEN_THREADS
    return _Gaps(length, kind, place[:-1], threads, bits, first)
