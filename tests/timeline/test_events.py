"""Every event of the sources is on the timeline, unchanged but for time, process and ids."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from small_traces import BASE, HOST, arrow, kernel, launch, timeline_of, training, write_run, write_trace, x
from timeline_reading import check_rank, is_note, ns, read

from traceops.timeline.reader import Placement
from traceops.timeline.tracks import PartTask, ShownRank, write_part
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"
RUNS = [
    "ddp4",
    "hsdp4",
    "slow_loader4",
    "runs/zero3",
    "runs/pytorch_hsdp",
    "hta/pair",
    "hta/amd",
    "hta/cpu_only",
    "hta/ns",
]


@pytest.mark.parametrize("name", RUNS)
def test_real_traces_are_all_there(name: str, tmp_path: Path) -> None:
    timeline, written = timeline_of(DATA / name, tmp_path / "timeline.json.gz")
    files = discover(str(DATA / name)).windows[-1].files
    for file in files:
        moved = check_rank(timeline, file.rank, Path(file.path))
        assert len(moved) == 1, "one clock, one offset"
        assert abs(moved.pop()) < (100_000 if len(files) > 1 else 1)
    kept = sum(len(own) for own in (*timeline.by_rank.values(), *timeline.metadata.values()))
    titles = 2 * sum(timeline.rank_of(pid) is not None for pid in timeline.titles)
    titles -= 2 * sum("overview" in title for title in timeline.titles.values())
    assert written.events == kept
    assert titles > 0
    assert written.problems == ()


def test_every_rank_has_processes_of_its_own_in_order(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [training(0), training(1, late_us=100)])
    timeline, _ = timeline_of(tmp_path / "run", tmp_path / "t.json")
    order = {
        event["pid"]: event["args"]["sort_index"]
        for event in read(tmp_path / "t.json")["traceEvents"]
        if event["name"] == "process_sort_index"
    }
    assert [timeline.titles[pid] for pid in sorted(order, key=lambda pid: order[pid])] == [
        "traceops findings",
        *(f"rank {rank} · {what}" for rank in (0, 1) for what in ("overview", "python", f"GPU {rank}")),
    ]
    assert timeline.tracks(timeline.pid_of("rank 1 · GPU 1"))[7] == "stream 7 "


def test_files_with_zeros_of_their_own_lie_on_one_time(tmp_path: Path) -> None:
    # The same moments, told from zeros that differ by 2 s and 7 ns.
    moved = [{**event, "ts": round(event["ts"] + 2_000_000.007, 3)} for event in training(1)]
    paths = write_run(tmp_path / "run", [training(0), moved], [BASE, BASE - 2_000_000_007])
    timeline, _ = timeline_of(tmp_path / "run", tmp_path / "t.json")
    for rank, path in enumerate(paths):
        assert check_rank(timeline, rank, path) == {0}
    starts = [[ns(e["ts"]) for e in timeline.by_rank[rank]] for rank in (0, 1)]
    assert starts[0] == starts[1]
    assert starts[0][0] + timeline.base_ns == BASE + 1_000_000


def test_more_digits_than_a_double_holds(tmp_path: Path) -> None:
    text = '[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1712195495501688.123,"dur":0.001}, '
    text += '{"ph":"X","cat":"cpu_op","name":"b","pid":1,"tid":1,"ts":"1712195495501688.124","dur":7}]'
    path = write_trace(tmp_path / "rank_0.json", text, 0, 1, base=None)
    timeline, _ = timeline_of(path, tmp_path / "out" / "t.json")
    assert [ns(e["ts"]) + timeline.base_ns for e in timeline.by_rank[0]] == [1712195495501688123, 1712195495501688124]


def test_a_clock_that_runs_fast_keeps_slices_nested(tmp_path: Path) -> None:
    class Fast:
        def correct(self, t: np.ndarray) -> np.ndarray:
            return t + np.rint(1e-4 * (t - BASE)).astype(np.int64) + 5_000

    inner = [x("outer", 100.0, 50_000.0), x("inner", 40_000.0, 10_100.0, args={"a": 1}), x("point", 60_000.0, 0.0)]
    path = write_trace(tmp_path / "rank_0.json", inner, 0, 1)
    shown = ShownRank(0, Placement(BASE, Fast(), BASE))
    task = PartTask(str(path), 0, shown, 1, None, tmp_path / "piece", False)
    part = write_part(task)
    events = json.loads("[" + (tmp_path / "piece").read_text().rstrip(",\n") + "]")
    spans = {e["name"]: (ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X"}
    assert spans == {"outer": (105_010, 50_005_000), "inner": (40_009_000, 10_101_010), "point": (60_011_000, 0)}
    assert (part.first_ns, part.last_ns) == (105_010, 60_011_000)


def test_ids_of_ranks_are_kept_apart_and_forms_are_kept(tmp_path: Path) -> None:
    def events(rank: int) -> list[dict]:
        ids = [5, "5", "0x5", 1 << 63, -3, 4_000_000_000, 2.5]
        own = [{**arrow("s", 10.0 + rank, i), "pid": HOST, "tid": 1} for i in ids]
        own += [{"ph": p, "cat": "c", "name": "n", "id": "0xabc", "pid": 1, "tid": 1, "ts": 5.0} for p in "bne"]
        own += [{"ph": "b", "cat": "c", "name": "n", "id2": {"global": "0x1", "local": "0x2"}, "pid": 1, "ts": 5.0}]
        own += [{"ph": "C", "name": "memory", "id": 1, "pid": 1, "ts": 6.0, "args": {"bytes": 7}}]
        own += [x("bound", 1.0, 1.0, bind_id="0x5", flow_out=True)]
        return own

    paths = write_run(tmp_path / "run", [events(0), events(1)])
    timeline, _ = timeline_of(tmp_path / "run", tmp_path / "t.json")  # checks that no two ranks share an id
    for rank, path in enumerate(paths):
        assert check_rank(timeline, rank, path) == {0}
    written = timeline.by_rank[1]
    assert [type(e["id"]) for e in written[:3]] == [int, str, str]
    assert written[2]["id"] == written[-1]["bind_id"]
    assert set(written[10]["id2"]) == {"global", "local"}
    assert timeline.by_rank[0][-2]["id"] == written[-2]["id"] == 1


@pytest.mark.parametrize("number", range(2))
def test_odd_events_survive(tmp_path: Path, number: int) -> None:
    odd = [
        x("no process", 1.0, 1.0),
        x("text", 2.0, 1.0, pid="Spans", tid="a thread"),
        x("negative", 3.0, 1.0, pid=-1, tid=-7),
        x("fraction", 4.0, 1.0, pid=1.5),
        x("null", 4.0, 1.0, pid=None),
        x('quote " \\ \n \u2028 </script> ü 🚀', 5.0, 1.0, args={"ü\n": ["🚀", {"deep": [None, True, 1e-300]}]}),
        x("huge", 6.0, 1.0, args={"n": 123456789012345678901234567890, "m": -(1 << 70)}),
        x("no duration", 7.0, 1.0),
        x("more", 8.0, 1.0, tts=3.25, sf=7, cname="good", unknown={"a": [1]}),
        {"ph": "i", "name": "instant", "pid": HOST, "tid": 1, "ts": 9.0, "s": "t"},
        {"ph": "C", "name": "counter", "pid": HOST, "ts": 10, "args": {"bytes": 5, "other": 1.5}},
        {"ph": "B", "name": "begin", "pid": HOST, "tid": 2, "ts": 11.0},
        {"ph": "E", "pid": HOST, "tid": 2, "ts": 12.0, "name": ""},
    ]
    del odd[0]["pid"], odd[7]["dur"]
    if number:  # so many processes that a rank's block of numbers is too small
        odd += [x("many", 20.0, 1.0, pid=10_000 + i) for i in range(1500)]
    paths = write_run(tmp_path / "run", [odd, odd])
    timeline, written = timeline_of(tmp_path / "run", tmp_path / "t.json.gz")
    for rank, path in enumerate(paths):
        assert check_rank(timeline, rank, path) == {0}
    assert "rank 1 · Spans" in timeline.titles.values()
    assert written.problems == ()


def test_numbers_json_does_not_have_become_text(tmp_path: Path) -> None:
    text = '[{"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":1.001,"dur":2.002,"args":{"bw":nan,"x":-inf,'
    text += '"y":inf,"n":NaN,"d":1.2300,"long":0.12345678901234567890,"z":12345678901234567890123}},\n'
    text += '{"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":nan,"dur":2.0},\n'
    text += '{"ph":"X","cat":"kernel","name":"c","pid":0,"tid":7,"ts":5.0,"dur":-2.0},\n'
    text += '{"ph":"X","cat":"kernel","name":"d","pid":0,"tid":7,"ts":1e300,"dur":2.0},\n'
    text += '{"ph":"X","cat":"kernel","name":"e","pid":0,"tid":7,"ts":9.0,"dur":2.0}]'
    path = write_trace(tmp_path / "rank_0.json", text, 0, 1)
    timeline, written = timeline_of(path, tmp_path / "out" / "t.json")
    first, last = timeline.by_rank[0]
    assert {k: str(v) for k, v in first["args"].items()} == {
        "bw": "NaN", "x": "-Infinity", "y": "Infinity", "n": "NaN", "d": "1.2300",
        "long": "0.12345678901234567890", "z": "12345678901234567890123",
    }  # fmt: skip
    assert (ns(first["ts"]) + timeline.base_ns - BASE, last["name"]) == (1001, "e")
    assert written.problems == ((str(path), "3 events are without a valid time"),)


def test_the_profilers_own_span_is_left_out_where_it_stretches_the_timeline(tmp_path: Path) -> None:
    own = [x("PyTorch Profiler (0)", 999.0, 3_000.0, cat="Trace", pid="Spans", tid="PyTorch Profiler")]
    end = [{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9_000_000.0}]
    path = write_trace(tmp_path / "rank_0.json", own + training(0, (0,)) + end, 0, 1)
    timeline, written = timeline_of(path, tmp_path / "out" / "t.json")
    assert [e["name"] for e in timeline.by_rank[0] if is_note(e)] == ["PyTorch Profiler (0)"]
    assert written.duration_ns < 10_000_000
    check_rank(timeline, 0, path)


def test_a_damaged_file_beside_good_ones(tmp_path: Path) -> None:
    good, bad, empty = write_run(tmp_path / "run", [training(r, (0, 1, 2)) for r in range(3)])
    document = json.loads(bad.read_text())
    bad.write_text(bad.read_text()[:-700])  # also without the zero of its times
    empty.write_bytes(b"")
    timeline, written = timeline_of(tmp_path / "run", tmp_path / "t.json.gz")
    assert check_rank(timeline, 0, good) == {0}
    kept = len(timeline.by_rank[1])
    expected = [e for e in document["traceEvents"] if e["ph"] != "M"][:kept]
    assert 15 < kept < len([e for e in document["traceEvents"] if e["ph"] != "M"])
    assert [(e["name"], ns(e["ts"])) for e in timeline.by_rank[1]] == [
        (e["name"], ns(e["ts"]) + BASE - timeline.base_ns) for e in expected
    ]
    assert any("rank 1" in note for note in written.notes)
    assert {Path(path).name for path, _ in written.problems} == {"rank_1.json", "rank_2.json"}


def test_bytes_that_are_no_utf8_do_not_reach_the_output(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "rank_0.json", [x("ab", 1.0, 1.0), x("cd\\ud800", 2.0, 1.0)], 0, 1)
    path.write_bytes(path.read_bytes().replace(b"ab", b"a\xff").replace(b"\\\\ud800", b"\\ud800"))
    timeline, _ = timeline_of(path, tmp_path / "out" / "t.json")
    assert [event["name"] for event in timeline.by_rank[0]] == ["a\ufffd", "cd\ufffd"]


def test_chromes_array_form(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps([*launch(1.0, 3), *kernel("k", 9.0, 2.0, 3)]))
    timeline, _ = timeline_of(path, tmp_path / "out" / "t.json")
    assert check_rank(timeline, 0, path) == {0}
    assert "rank 0 · GPU 0" in timeline.titles.values()


def test_it_is_one_gzip_member(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [training(0), training(1)])
    timeline_of(tmp_path / "run", tmp_path / "t.json.gz", jobs=2)
    raw = (tmp_path / "t.json.gz").read_bytes()
    assert raw.count(b"\x1f\x8b\x08\x00\x00") == 1
    assert json.loads(gzip.decompress(raw))["traceEvents"]
