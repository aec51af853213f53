"""The bars of a rank's steps are its trace's events, and files of others cannot make them anything else."""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from traceops.core.text import short_name
from traceops.measure import detail
from traceops.measure.activity import COMM, find_activity
from traceops.measure.detail import MOST_BARS, measure_detail, unpack_detail
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze
from traceops.traces.discover import discover
from traceops.traces.kineto import load_trace

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", ["slow_loader4", "straggler_gloo2"])
def test_its_bars_are_the_events_of_the_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = discover(str(DATA / name)).windows[-1].files[0]
    events = load_trace(file.path).events
    activity = find_activity(events)
    steps = find_steps(events, activity, file.steps)
    whole = measure_detail(events, activity, steps)
    names, found = unpack_detail(whole)
    assert sorted(found) == list(range(len(steps)))
    assert sum(len(row.bars) for rows in found.values() for row in rows) <= MOST_BARS
    known = {
        (int(ts), int(ts + dur), short_name(events.names[name], 120))
        for ts, dur, name in zip(events.ts, events.dur, events.name, strict=True)
    }
    exact = 0
    for rows in found.values():
        for row in rows:
            for start, end, place, count in zip(
                row.bars.start.tolist(),
                row.bars.end.tolist(),
                row.bars.name.tolist(),
                row.bars.count.tolist(),
                strict=True,
            ):
                if count == 1:
                    exact += 1
                    assert (start, end, names[place]) in known
    assert exact > 500
    own = activity.kind != COMM
    inside = (activity.start[own] >= steps.edges[0]) & (activity.start[own] < steps.edges[-1])
    drawn = sum(int(row.bars.count.sum()) for rows in found.values() for row in rows if row.of == "stream")
    if activity.on_gpu:
        assert drawn == int(inside.sum()), "every kernel that begins in a step is in it once"
    else:
        assert drawn == 0
    monkeypatch.setattr("traceops.measure.detail._MOST_A_STEP", 100)
    smaller = measure_detail(events, activity, steps)
    assert len(smaller) < len(whole) / 3
    counted = {step: sum(int(row.bars.count.sum()) for row in rows) for step, rows in unpack_detail(smaller)[1].items()}
    assert counted == {step: sum(int(row.bars.count.sum()) for row in rows) for step, rows in found.items()}


def test_bytes_of_others_are_refused() -> None:
    file = discover(str(DATA / "straggler_gloo2")).windows[-1].files[0]
    events = load_trace(file.path).events
    activity = find_activity(events)
    good = measure_detail(events, activity, find_steps(events, activity, file.steps))
    names, rows, columns = msgspec.msgpack.decode(zlib.decompress(good))
    for bad in (
        good[:-20],
        b"x" * 40,
        zlib.compress(b"\xc0"),
        zlib.compress(msgspec.msgpack.encode([names[:1], rows, columns])),
        zlib.compress(msgspec.msgpack.encode([names, rows[1:], columns])),
        zlib.compress(msgspec.msgpack.encode([names, [], b"x" * 8_000_000])),
    ):
        with pytest.raises(ValueError):
            unpack_detail(bad)
    assert unpack_detail(b"") == ((), {})


def test_reports_with_bars_are_compared() -> None:
    first, again = (analyze(str(DATA / "slow_loader4"), cache=False, jobs=1) for _ in range(2))
    assert first == again
    assert first != analyze(str(DATA / "ddp4"), cache=False, jobs=1)


def test_rows_of_each_value_come_in_their_order() -> None:
    """A loop over the values of a trace with as many threads as events took minutes for megabytes."""
    values, rows = np.array([7, -1, 7, 3, -1]), np.array([10, 11, 12, 13, 14])
    found = {value: own.tolist() for value, own in detail._by_value(values, rows)}
    assert found == {-1: [11, 14], 3: [13], 7: [10, 12]}
    assert list(detail._by_value(values[:0], rows[:0])) == []
