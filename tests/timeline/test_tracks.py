"""The tracks that traceops adds say what its analysis measured."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from small_traces import BASE, HOST, arrow, timeline_of, training, write_run, write_trace, x
from timeline_reading import check_nesting, ns

from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze
from traceops.timeline.tracks import Slice, spread

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def late(tmp_path: Path):
    """Rank 1's kernel takes 150 µs longer, so that rank 0 waits 150 µs in each collective; 230 µs are transfer."""
    write_run(tmp_path / "run", [training(0), training(1, late_us=150)])
    return timeline_of(tmp_path / "run", tmp_path / "t.json")


def spans(timeline, events):
    at = BASE - timeline.base_ns
    return [(e["name"], (ns(e["ts"]) - at) / 1e3, float(e["dur"])) for e in events]


def test_steps_lie_where_the_device_was_at_them(late) -> None:
    timeline, _ = late
    steps = timeline.added_slices("rank 0 · overview", "steps")
    assert spans(timeline, steps) == [("step 4", 1000.0, 900.0), ("step 5", 1900.0, 1000.0), ("step 6", 2900.0, 1000.0)]
    for step in steps:
        buckets = [float(step["args"][f"{bucket}_ms"]) for bucket in BUCKETS]
        assert sum(buckets) == pytest.approx(float(step["args"]["duration_ms"]))
    assert float(steps[1]["args"]["comm_wait_ms"]) == pytest.approx(0.15)


def test_each_collective_is_waiting_and_transfer(late) -> None:
    timeline, _ = late
    waits = timeline.added_slices("rank 0 · overview", "wait and transfer")
    assert spans(timeline, waits) == [
        span
        for at in (1000, 2000, 3000)
        for span in (("wait for rank 1", at + 520.0, 150.0), ("transfer allreduce 1.0 MB", at + 670.0, 230.0))
    ]
    assert waits[0]["args"] == {
        "group": "default_pg", "ranks": [0, 1], "op": "allreduce", "bytes": 1_000_000, "last_rank": 1,
        "wait_ms": Decimal("0.15"), "transfer_ms": Decimal("0.23"),
    }  # fmt: skip
    last = timeline.added_slices("rank 1 · overview", "wait and transfer")
    assert {event["name"] for event in last} == {"transfer allreduce 1.0 MB"}


def test_arrows_lead_from_the_last_rank_to_the_one_that_waited(late) -> None:
    timeline, _ = late
    flows = defaultdict(list)
    for event in timeline.added:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    assert len(flows) == 3
    for begin, end in flows.values():
        assert (begin["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert timeline.titles[begin["pid"]] == "rank 1 · overview"
        assert timeline.titles[end["pid"]] == "rank 0 · overview"
        assert ns(begin["ts"]) <= ns(end["ts"])
        for event in (begin, end):  # binds to a transfer that runs at that moment
            around = [
                slice_["name"]
                for slice_ in timeline.added
                if slice_["ph"] == "X" and (slice_["pid"], slice_["tid"]) == (event["pid"], event["tid"])
                and ns(slice_["ts"]) <= ns(event["ts"]) < ns(slice_["ts"]) + ns(slice_["dur"])
            ]  # fmt: skip
            assert around == ["transfer allreduce 1.0 MB"]


@pytest.mark.parametrize("name", ["ddp4", "hsdp4", "slow_gpu4"])
def test_tracks_of_real_runs_add_up_to_the_report(name: str, tmp_path: Path) -> None:
    timeline, _ = timeline_of(DATA / name, tmp_path / "t.json.gz")  # checks the nesting
    report = analyze(DATA / name)
    for row in report.ranks:
        title = f"rank {row.rank} · overview"
        steps = timeline.added_slices(title, "steps")
        first, last = ns(steps[0]["ts"]), ns(steps[-1]["ts"]) + ns(steps[-1]["dur"])
        drawn = defaultdict(float)
        for event in timeline.added_slices(title, "wait and transfer"):
            begin = ns(event["ts"]) - (
                0 if event["name"].startswith("wait") else round(event["args"]["wait_ms"] * 10**6)
            )
            if first <= begin < last:
                drawn[event["name"].split()[0]] += float(event["dur"]) / 1e3
        assert drawn["wait"] / len(steps) == pytest.approx(row.wait_ms, abs=1e-5)
        assert drawn["transfer"] / len(steps) == pytest.approx(row.transfer_ms, abs=1e-5)
    found = timeline.added_slices("traceops findings", "findings")
    assert sorted(event["args"]["message"] for event in found) == sorted(f.message for f in report.findings)


def test_findings_span_their_steps_or_everything(tmp_path: Path) -> None:
    timeline, written = timeline_of(DATA / "slow_loader4", tmp_path / "t.json.gz")
    found = timeline.added_slices("traceops findings", "findings")
    assert found
    for event in found:
        assert event["name"].startswith("TO-")
        assert {"title", "message", "advice", "ranks", "steps", "impact_ms"} <= event["args"].keys()
        if not event["args"]["steps"]:
            assert ns(event["dur"]) == written.duration_ns


def test_a_trace_without_steps(tmp_path: Path) -> None:
    events = [event for event in training(0, (0,)) if not event["name"].startswith("ProfilerStep")]
    timeline, _ = timeline_of(write_trace(tmp_path / "rank_0.json", events, 0, 1), tmp_path / "out" / "t.json")
    (only,) = timeline.added_slices("rank 0 · overview", "steps")
    assert only["name"] == "whole trace, no steps are marked"


def test_a_trace_with_nothing_to_analyse(tmp_path: Path) -> None:
    events = [{"ph": "C", "name": "memory", "pid": HOST, "ts": 5.0, "args": {"bytes": 1}}]
    events.append({**arrow("s", 5.0, 1), "pid": HOST, "tid": 1})
    timeline, written = timeline_of(write_trace(tmp_path / "rank_0.json", events, 0, 1), tmp_path / "out" / "t.json")
    assert (written.events, written.added, len(timeline.by_rank[0])) == (2, 0, 2)


def test_names_from_traces_are_text(tmp_path: Path) -> None:
    name = '<script>alert("1")</script>\u2028\\'
    events = [
        {**e, "args": {**e["args"], "Collective name": name, "Process Group Description": name}}
        if "Collective name" in e.get("args", {})
        else e
        for e in training(0)
    ]
    write_run(tmp_path / "run", [events, events])
    timeline, _ = timeline_of(tmp_path / "run", tmp_path / "t.json")
    transfers = timeline.added_slices("rank 0 · overview", "wait and transfer")
    assert transfers[0]["name"].startswith(f"transfer {name.lower()}")


def test_overlapping_slices_are_spread() -> None:
    bundles = [(Slice("", a, b),) for a, b in [(0, 10), (5, 15), (10, 20), (12, 14), (0, 10), (15, 15), (20, 30)]]
    assert spread(bundles) == [0, 2, 0, 1, 1, 1, 0]
    assert spread(bundles, nest=True) == [0, 1, 0, 0, 0, 0, 0]
    for nest in (False, True):
        lanes = spread(bundles, nest)
        check_nesting(
            [
                {**x("", own.start, own.end - own.start), "tid": lane}
                for (own,), lane in zip(bundles, lanes, strict=True)
            ]
        )
