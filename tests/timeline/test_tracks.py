"""The tracks that traceops adds say what its analysis measured."""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_traces import BASE, HOST, arrow, timeline_of, training, write_run, write_trace, x
from timeline_reading import check_nesting, ns

from traceops.across.clocks import ClockFit
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze
from traceops.timeline.packets import lanes_of
from traceops.timeline.pieces import CannotWrite, PieceWriter, crc_of_both, join
from traceops.timeline.reader import TimelineHeader, format_us, parse_us, place_files

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
    spans = [(0, 10), (5, 15), (10, 20), (12, 14), (0, 10), (15, 15), (20, 30)]
    assert lanes_of(spans, nest=False) == [0, 2, 0, 1, 1, 1, 0]
    assert lanes_of(spans, nest=True) == [0, 1, 0, 0, 0, 0, 0]
    for nest in (False, True):
        lanes = lanes_of(spans, nest=nest)
        check_nesting([{**x("", a, b - a), "tid": lane} for (a, b), lane in zip(spans, lanes, strict=True)])


@given(st.binary(), st.binary())
def test_the_checksum_of_two_texts_is_made_of_theirs(a: bytes, b: bytes) -> None:
    assert crc_of_both(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


@given(st.integers(-(1 << 60), 1 << 60))
def test_times_come_back_to_the_ns(ns: int) -> None:
    assert parse_us(format_us(ns)) == ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        (b"4361298533606.022", 4361298533606022), (b"1.5", 1500), (b"7", 7000), (b'"12.25"', 12250),
        (b"0.0004", 0), (b"0.0005", 1), (b"-1.001", -1001), (b"1e3", 1_000_000), (b"null", None), (b"true", None),
        (b'"nan"', None), (b"1e300", None), (b"", None), (b"99999999999999999999.000", None), (b"[1]", None),
        (b"1.2.345", None),
    ],
)  # fmt: skip
def test_times_as_files_have_them(text: bytes, ns: int | None) -> None:
    assert parse_us(text) == ns


@pytest.mark.parametrize("gzipped", [True, False])
def test_pieces_join_to_one_text(gzipped: bool, tmp_path: Path) -> None:
    texts = [b"a" * 700_000, b"", b"b\n" * 10, bytes(range(256)) * 3000]
    pieces = []
    for number, text in enumerate(texts):
        with PieceWriter(tmp_path / str(number), gzipped) as writer:
            for at in range(0, len(text), 99_999):
                writer.write(text[at : at + 99_999])
        pieces.append(writer.piece)
    join(pieces, tmp_path / "whole")
    raw = (tmp_path / "whole").read_bytes()
    assert (gzip.decompress(raw) if gzipped else raw) == b"".join(texts)
    assert zlib.decompressobj(31).decompress(raw) == b"".join(texts) if gzipped else True
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match=str(tmp_path)), PieceWriter(tmp_path / "folder" / "no" / "piece", True):
        pass


def test_a_file_without_a_zero_is_put_beside_the_others() -> None:
    year = 31 * 10**15
    headers = {
        0: TimelineHeader(year, year + 5, None),
        1: TimelineHeader(None, 7, None),
        2: TimelineHeader(year, year + 9, None),
        3: TimelineHeader(None, year + 1000, None),  # of the clocks' own time, as traces with all digits are
        4: TimelineHeader(None, None, None),
    }
    placements, borrowed = place_files(headers, {2: ClockFit(0)})
    assert borrowed == (1,)
    assert {r: placements[r].place_one(h.first_ns) for r, h in headers.items() if h.first_ns is not None} == {
        0: 5, 1: 7, 2: 9, 3: 1000,
    }  # fmt: skip
    fitted, borrowed = place_files(headers, {1: ClockFit(year + 100)})
    assert (fitted[1].place_one(7), borrowed) == (107, ())


def test_zeros_are_not_mixed_where_nobody_has_one() -> None:
    placements, borrowed = place_files(
        {0: TimelineHeader(None, 5_000_001, None), 1: TimelineHeader(None, 9_000_000, None)}, {}
    )
    assert borrowed == ()
    assert [placements[r].place_one(t) for r, t in ((0, 5_000_001), (1, 9_000_000))] == [1, 4_000_000]
