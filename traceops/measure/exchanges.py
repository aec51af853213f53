"""What each communication of a rank was, where the host knows it: sends and receives, grouped ones too."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import Int, percentiles
from traceops.measure.activity import COMPUTE, Activity
from traceops.measure.host_rows import ANNOTATION_CATS, BACKWARD_NAME, OPERATOR_CATS, begin_inside, named, rows_named
from traceops.traces.model import CommArgs, Events

_DTYPE_BYTES = {
    "bool": 1, "byte": 1, "char": 1, "int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "int16": 2, "float": 4, "float32": 4, "int": 4, "int32": 4, "long": 8, "int64": 8, "double": 8, "float64": 8,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def message_bytes(elements: int | None, dtype: str | None) -> int | None:
    """Bytes of so many elements of a type as traces name it; None where either is not known."""
    size = _dtype_bytes(dtype)
    return elements * size if elements is not None and size is not None else None


@lru_cache(maxsize=256)
def _dtype_bytes(dtype: str | None) -> int | None:
    name = (dtype or "").lower().removeprefix("c10::").removeprefix("torch.")
    return 1 if name.startswith("float8") else _DTYPE_BYTES.get(name)


NOTHING, FORWARD, BACKWARD = -1, 0, 1  # what was computed beside a send or a receive
_CALL = re.compile(r"^record_param_comms$")
_GROUPED = re.compile(r"^\w+:\w*coalesced$")
_BACKEND = re.compile(r"^(?:nccl|rccl|xccl|hccl):_?(?P<op>\w+)(?: (?P<own>\d+)(?P<way><-|->)(?P<other>\d+))?")
_SENDS = re.compile(r"SendRecv", re.IGNORECASE)
_ONE_WAY = re.compile(r"^_?i?(send|recv)", re.IGNORECASE)
_LABEL = re.compile(r"^PP:(?P<stage>\d{1,9})(SEND|RECV)_(?P<way>[FB])(?P<micro>\d{1,9})$")  # torch's own schedules
_WEIGHTS = re.compile(r"^PP:\d+[IW]\d+$")
_NEAR = 0.1  # of the computation between two sends or receives: what says what it begins or ends with
_USUAL = 90  # percentile beyond which a duration may be an accident


class Exchanges(Struct, frozen=True):
    """Per communication of a rank, in the order of its `comm`. `args` is what the trace says of it, `parts` are its
    sends and receives, () where it is another operation. `before` and `after` are NOTHING, FORWARD or BACKWARD: what
    the rank computed between it and its neighbours; NOTHING too for what is neither send nor receive. `stage` and
    `micro_batch` are as torch's schedules note them, -1 where they do not. `weights_apart`: whether they note weight
    gradients computed apart, as zero-bubble schedules do."""

    args: tuple[CommArgs | None, ...]
    parts: tuple[tuple[CommArgs, ...], ...]
    before: NDArray[np.int8]
    after: NDArray[np.int8]
    stage: Int
    micro_batch: Int
    weights_apart: bool


def find_exchanges(events: Events, activity: Activity, comm: Int) -> Exchanges:
    """What the communications at positions `comm` of `activity` were. A kernel that does not say so itself was launched
    inside a call that does: record_param_comms, or the end of a group (batch_isend_irecv), which launches what was
    called since the group before. Where no kernel says so, this is asked of those only that send and receive."""
    rows = activity.row[comm]
    args = [events.comm.get(int(row)) for row in rows]
    parts: list[tuple[CommArgs, ...]] = [() for _ in args]
    launches = activity.launch[comm].tolist() if activity.on_gpu else []
    silent = [i for i, launch in enumerate(launches) if args[i] is None and launch >= 0]
    if all(own is None for own in args):  # an older torch: the names of most kernels say as much
        sends = named(events, _SENDS, ("sendrecv",))[events.name[rows]]
        silent = [i for i in silent if sends[i]]
    if silent:
        calls = _Calls(events, activity.launch[comm])
        for i in silent:
            args[i], parts[i] = calls.around(launches[i])
    for i, own in enumerate(args):
        if own is not None and not parts[i] and is_one_way(own.op):
            parts[i] = (own,)
    if not activity.on_gpu:
        for i, name in enumerate(events.names[n] for n in events.name[rows].tolist()):
            op = name.partition(":")[2]
            if not parts[i] and is_one_way(op):
                parts[i] = (CommArgs(op=op),)
    one_way = np.array([bool(own) for own in parts], dtype=bool)
    before, after = _computed_beside(events, activity, comm, one_way)
    stage, micro_batch, backward = _noted(events, activity.launch[comm], one_way)
    before, after = (np.where(stage >= 0, backward, own).astype(np.int8) for own in (before, after))
    apart = bool(np.count_nonzero(named(events, _WEIGHTS, ("pp:",))))
    return Exchanges(tuple(args), tuple(parts), before, after, stage, micro_batch, apart)


@lru_cache(maxsize=1 << 10)
def is_one_way(op: str) -> bool:
    """Whether an operation is a send or a receive."""
    return _ONE_WAY.match(op) is not None


class _Calls:
    """The host's calls of collectives, by thread and in order, and what each group of them launched."""

    def __init__(self, events: Events, launches: Int) -> None:
        self._events = events
        calls = [int(row) for row in rows_named(events, _CALL) if int(row) in events.comm]
        self._calls = _Spans(events, [row for row in calls if events.comm[row].op != "wait"])
        marks = events.in_cats(*ANNOTATION_CATS).nonzero()[0]
        grouped = named(events, _GROUPED)[events.name[marks]]
        self._groups = _Spans(events, marks[grouped].tolist())
        backend = named(events, _BACKEND, (":",))[events.name[marks]]
        self._notes = _Spans(events, marks[backend & ~grouped].tolist())
        known = launches[launches >= 0].tolist()
        self._alone = {row for launch in known if (row := self._calls.around(launch)) >= 0}

    def around(self, launch: int) -> tuple[CommArgs | None, tuple[CommArgs, ...]]:
        """What a call launched at this row was, as one operation and as sends and receives.

        A call of a group of one rank sends nothing: it is no part of the calls that are launched together.
        """
        comm = self._events.comm
        if (call := self._calls.around(launch)) >= 0:
            return comm[call], ()
        if (group := self._groups.around(launch)) >= 0:
            since = [comm[row] for row in self._calls.between(self._groups.before(group), group)
                     if row not in self._alone and comm[row].group_size != 1]  # fmt: skip
            if since and all(is_one_way(own.op) for own in since):
                return (since[0] if len(since) == 1 else None), tuple(since)
            return _together(since), ()
        if (note := self._notes.around(launch)) >= 0:
            return _of_note(self._events.names[self._events.name[note]]), ()
        return None, ()


class _Spans:
    """Rows of host events by thread and in time order."""

    def __init__(self, events: Events, rows: Sequence[int]) -> None:
        self._events = events
        self._rows: dict[int, list[int]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: int(events.ts[row])):
            self._rows[int(events.tid[row])].append(row)
        self._starts = {tid: events.ts[own].tolist() for tid, own in self._rows.items()}

    def around(self, row: int) -> int:
        """The last of them that begins before this row and ends after it, -1 for none."""
        ts, tid = int(self._events.ts[row]), int(self._events.tid[row])
        at = bisect_right(self._starts.get(tid, []), ts) - 1
        found = self._rows[tid][at] if at >= 0 else -1
        return found if found >= 0 and int(self._events.ts[found] + self._events.dur[found]) >= ts else -1

    def before(self, row: int) -> int:
        """The one before one of them on its thread, -1 for none."""
        tid = int(self._events.tid[row])
        at = bisect_left(self._starts[tid], int(self._events.ts[row])) - 1
        return self._rows[tid][at] if at >= 0 else -1

    def between(self, earlier: int, later: int) -> list[int]:
        """Those on the thread of `later` that begin after `earlier` is over (-1: from the first on) and before it."""
        tid = int(self._events.tid[later])
        starts = self._starts.get(tid, [])
        since = 0 if earlier < 0 else bisect_left(starts, int(self._events.ts[earlier] + self._events.dur[earlier]))
        return self._rows[tid][since : bisect_left(starts, int(self._events.ts[later]))] if starts else []


def _together(calls: Sequence[CommArgs]) -> CommArgs | None:
    """Several calls of one operation in one group as a call of all their elements; None where they are not alike."""
    if not calls or len({(own.op, own.dtype, own.group_name, own.group_ranks) for own in calls}) > 1:
        return None
    sides = ("elements_in", "elements_out")
    sizes = [[n for own in calls if (n := getattr(own, side)) is not None] for side in sides]
    into, out = (sum(own) if len(own) == len(calls) else None for own in sizes)
    return replace(calls[0], elements_in=into, elements_out=out)


def _of_note(name: str) -> CommArgs | None:
    """What a backend's note such as `nccl:all_to_all` or `nccl:recv 1<-0` says."""
    if (found := _BACKEND.match(name)) is None:
        return None
    other = None if found["other"] is None else int(found["other"])
    sends = found["way"] == "->"
    return CommArgs(op=found["op"], source=None if sends else other, destination=other if sends else None)


def _noted(events: Events, calls: Int, wanted: NDArray[np.bool_]) -> tuple[Int, Int, Int]:
    """Stage, micro-batch and whether it is of the backward pass, as torch's schedules note it around the calls."""
    stage, micro_batch, backward = np.full((3, len(calls)), -1, dtype=np.int64)
    marks = events.in_cats(*ANNOTATION_CATS).nonzero()[0]
    marks = marks[named(events, _LABEL, ("pp:",))[events.name[marks]]]
    if len(marks) and np.count_nonzero(wanted):
        notes = _Spans(events, marks.tolist())
        for i in (wanted & (calls >= 0)).nonzero()[0].tolist():
            if (note := notes.around(int(calls[i]))) >= 0:
                label = _LABEL.match(events.names[events.name[note]])
                assert label is not None
                stage[i], micro_batch[i] = int(label["stage"]), int(label["micro"])
                backward[i] = BACKWARD if label["way"] == "B" else FORWARD
    return stage, micro_batch, backward


def _computed_beside(
    events: Events, activity: Activity, comm: Int, wanted: NDArray[np.bool_]
) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Whether forward or backward was computed last before and first after each of the wanted communications."""
    before, after = np.full((2, len(comm)), NOTHING, dtype=np.int8)
    chosen = wanted.nonzero()[0]
    # What was launched before the window has no place among the calls.
    work = activity.by_launch[(activity.kind == COMPUTE).take(activity.by_launch)]
    work = work[activity.launch.take(work) >= 0]
    if not len(chosen) or not len(work):
        return before, after
    spans = rows_named(events, BACKWARD_NAME)
    spans = spans[events.in_cats(*OPERATOR_CATS)[spans]]
    backward = begin_inside(events, activity.launch[work], spans)
    long = activity.end[work] - activity.start[work]
    launched = activity.launched[work]
    # A kernel was put between others where it was launched; without a GPU, the thread waits until its end.
    begun = activity.launched[comm[chosen]]
    over = begun if activity.on_gpu else activity.end[comm[chosen]]
    begins = launched.searchsorted(begun)
    ends = launched.searchsorted(over, side="right")
    earlier = np.concatenate(([0], np.sort(ends)))  # what neighbours leave; equal ones are at the same place
    later = np.append(np.sort(begins), len(work))
    since = earlier[np.maximum(earlier.searchsorted(begins) - 1, 0)]
    until = later[np.minimum(later.searchsorted(ends, side="right"), len(later) - 1)]
    for i, first, begin, end, last in zip(chosen, since, begins, ends, until, strict=True):
        before[i] = _kind(long[first:begin], backward[first:begin], -1)
        after[i] = _kind(long[end:last], backward[end:last], 0)
    return before, after


def _kind(long: Int, backward: NDArray[np.bool_], which: int) -> int:
    """What most of the first (0) or last (-1) part of a stretch of computation is, single long ones cut short."""
    if not len(long):
        return NOTHING
    usual = np.minimum(long, percentiles(long, (_USUAL,))[0])
    done = usual.cumsum() if which == 0 else usual[::-1].cumsum()[::-1]
    near = done - usual <= _NEAR * done.max()
    return BACKWARD if 2 * usual[near & backward].sum() > usual[near].sum() else FORWARD
