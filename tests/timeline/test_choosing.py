"""--ranks and --steps show what they name and nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from small_traces import DEVICE, HOST, arrow, kernel, launch, timeline_of, training, write_run, write_trace, x
from timeline_reading import check_rank, is_note, ns, read

from traceops.core.errors import UsageError
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.timeline.choose import listed
from traceops.timeline.write import FINDINGS_PID, write_timeline
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"


def test_only_chosen_ranks_are_shown_and_still_compared_with_all(tmp_path: Path) -> None:
    timeline, written = timeline_of(DATA / "slow_gpu4", tmp_path / "t.json.gz", ranks=[3, 1])
    assert written.ranks == (1, 3)
    assert {timeline.rank_of(pid) for pid in timeline.titles} == {None, 1, 3}
    for file in discover(str(DATA / "slow_gpu4")).windows[-1].files:
        if file.rank in (1, 3):
            check_rank(timeline, file.rank, Path(file.path))
    names = {event["name"] for event in timeline.added_slices("rank 1 · overview", "wait and transfer")}
    assert "wait for rank 2" in names


def test_ranks_and_steps_that_are_not_there(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [training(r, (0, 1, 2)) for r in range(3)])
    with pytest.raises(UsageError, match=r"no trace of ranks 3-4, 9, only of ranks 0-2"):
        timeline_of(tmp_path / "run", tmp_path / "out" / "t.json", ranks=[0, 3, 4, 9])
    with pytest.raises(UsageError, match=r"do not hold step 7, only steps 4-6"):
        timeline_of(tmp_path / "run", tmp_path / "out" / "t.json", steps=[5, 7])
    write_run(tmp_path / "bare", [[x("a", 1.0, 2.0)]])
    with pytest.raises(UsageError, match="mark no steps"):
        timeline_of(tmp_path / "bare", tmp_path / "out" / "t.json", steps=[0])
    assert not (tmp_path / "out").exists()
    assert listed("rank", []) == "ranks "


@pytest.mark.parametrize("steps", [[4], [5], [6], [4, 5], [4, 6], [4, 5, 6]])
def test_steps_of_a_known_run(steps: list[int], tmp_path: Path) -> None:
    # On the host step k runs from 1000 (k - 3) for 800 µs, on the device it ends at 900.
    paths = write_run(tmp_path / "run", [training(0), training(1, late_us=150)])
    timeline, _ = timeline_of(tmp_path / "run", tmp_path / "t.json", steps=steps)
    for rank, path in enumerate(paths):
        chosen = [
            event for event in read(path)["traceEvents"] if event["ph"] != "M" and int(event["ts"]) // 1000 + 3 in steps
        ]
        late = [e for e in chosen if e["ph"] in "sf"]  # flow events come last, for they hang on others
        chosen = [e for e in chosen if e["ph"] not in "sf"] + late
        ordered = timeline.by_rank[rank]
        flows = sorted((e for e in ordered if e["ph"] in "sf"), key=lambda e: (ns(e["ts"]), e["ph"]))
        timeline.by_rank[rank] = [e for e in ordered if e["ph"] not in "sf"] + flows
        expected = chosen[: -len(late)] + sorted(late, key=lambda e: (ns(e["ts"]), e["ph"]))
        check_rank(timeline, rank, path, expected)
        shown = timeline.added_slices(f"rank {rank} · overview", "steps")
        assert [e["name"] for e in shown] == [f"step {number}" for number in steps]
        transfers = timeline.added_slices(f"rank {rank} · overview", "wait and transfer")
        assert len([e for e in transfers if e["name"].startswith("transfer")]) == len(steps)


def test_what_hangs_on_a_steps_edges(tmp_path: Path) -> None:
    def begin(phase: str, ts: float, **fields: object) -> dict:
        return {"ph": phase, "cat": "c", "name": "pair", "pid": HOST, "tid": 9, "ts": ts, **fields}

    host = {"pid": HOST, "tid": 1}
    events = [
        x("ProfilerStep#1", 1000.0, 1000.0, cat="user_annotation"),
        x("ProfilerStep#2", 2000.0, 1000.0, cat="user_annotation"),
        *launch(1900.0, 1), *kernel("runs over", 1950.0, 150.0, 1),  # step 1 on the device ends at 2100
        *launch(2100.0, 2), *kernel("second", 2500.0, 900.0, 2),  # step 2 at 3400
        x("spans both", 500.0, 3000.0, pid=HOST, tid=2),
        x("ends as it begins", 1500.0, 500.0, pid=HOST, tid=3),
        x("begins as it ends", 3400.0, 10.0, pid=HOST, tid=3),
        x("point at the start", 2000.0, 0.0, pid=HOST, tid=3),
        x("point at the end", 3400.0, 0.0, pid=HOST, tid=4),
        {"ph": "i", "name": "before", "ts": 1999.999, "s": "t", **host},
        {"ph": "i", "name": "inside", "ts": 2000.001, "s": "t", **host},
        {"ph": "C", "name": "counter", "ts": 3399.999, "pid": HOST, "args": {"v": 1}},
        {**arrow("s", 500.0, 77), "pid": HOST, "tid": 2}, {**arrow("f", 2600.0, 77), "pid": DEVICE, "tid": 7},
        {**arrow("s", 1500.0, 78), "pid": HOST, "tid": 3}, {**arrow("f", 2700.0, 78), "pid": DEVICE, "tid": 7},
        begin("B", 100.0), begin("B", 1990.0), begin("E", 2005.0), begin("E", 1000.0),
        begin("b", 1.0, id=1), begin("b", 2.0, id=2), begin("e", 1500.0, id=1), begin("e", 9000.0, id=2),
        begin("n", 2001.0, id=1), begin("B", 3399.0), begin("b", 3500.0, id=5),
    ]  # fmt: skip
    path = write_trace(tmp_path / "rank_0.json", events, 0, 1)
    timeline, _ = timeline_of(path, tmp_path / "out" / "t.json", steps=[2])
    zero = ns(1000) + 1_700_000_000_000_000_000 - timeline.base_ns
    kept = {(e["ph"], e["name"], (ns(e["ts"]) - zero) / 1000 + 1000) for e in timeline.by_rank[0]}
    assert kept == {
        ("X", "ProfilerStep#2", 2000.0),
        ("X", "cudaLaunchKernel", 2100.0),
        ("X", "runs over", 1950.0),
        ("X", "second", 2500.0),
        ("X", "spans both", 500.0),
        ("X", "point at the start", 2000.0),
        ("i", "inside", 2000.001),
        ("C", "counter", 3399.999),
        ("s", "ac2g", 2100.0), ("f", "ac2g", 2500.0),  # both ends inside
        ("s", "ac2g", 500.0), ("f", "ac2g", 2600.0),  # begins with a slice that reaches into the step
        ("B", "pair", 1990.0), ("E", "pair", 2005.0), ("B", "pair", 3399.0),
        ("b", "pair", 2.0), ("e", "pair", 9000.0), ("n", "pair", 2001.0),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ddp4", "hta/amd", "runs/zero3"])
def test_steps_of_real_runs(name: str, tmp_path: Path) -> None:
    files = discover(str(DATA / name)).windows[-1].files
    whole = summarize(files[-1])
    step = int(whole.step_numbers[-1])
    timeline, written = timeline_of(DATA / name, tmp_path / "t.json.gz", steps=[step])
    for file in files:
        summary = summarize(file)
        document = read(Path(file.path))
        base = document["baseTimeNanoseconds"]
        (mark,) = (
            e for e in document["traceEvents"]
            if e.get("name") == f"ProfilerStep#{step}" and e["cat"] == "user_annotation"
        )  # fmt: skip
        first = base + ns(mark["ts"])
        at = summary.step_numbers.tolist().index(step)
        last = max(first + ns(mark["dur"]), int(summary.step_edges[at + 1]))
        expected = [
            event
            for event in document["traceEvents"]
            if event["ph"] not in "Msf" and not is_note(event)
            and base + ns(event["ts"]) < last
            and (base + ns(event["ts"]) + ns(event.get("dur", 0)) > first or base + ns(event["ts"]) >= first)
        ]  # fmt: skip
        flows = [event for event in timeline.by_rank[file.rank] if event["ph"] in "sf"]
        timeline.by_rank[file.rank] = [e for e in timeline.by_rank[file.rank] if e["ph"] not in "sf"]
        assert 0 < len(expected) < len(document["traceEvents"])
        check_rank(timeline, file.rank, Path(file.path), expected)
        starts = {(event["pid"], event["tid"], ns(event["ts"])) for event in timeline.by_rank[file.rank]}
        ends: dict[object, set[str]] = {}
        for event in flows:
            assert (event["pid"], event["tid"], ns(event["ts"])) in starts
            ends.setdefault((event["cat"], event["id"]), set()).add(event["ph"])
        assert all(phases == {"s", "f"} for phases in ends.values())
        assert bool(flows) == any(e["ph"] == "s" for e in document["traceEvents"])
    assert written.duration_ns > 0


def test_found_steps_can_be_chosen_too(tmp_path: Path) -> None:
    from generated_run import Size, ddp, simulate
    from unmarked import as_is, write_unmarked

    run = simulate(ddp(steps=6, size=Size(kernel_us=30.0)), 2, seed=1)
    folder = write_unmarked(run, tmp_path / "run", as_is)
    timeline, _ = timeline_of(folder, tmp_path / "t.json", steps=[2, 3])
    for rank in (0, 1):
        shown = timeline.added_slices(f"rank {rank} · overview", "steps")
        assert [e["name"] for e in shown] == ["step 2", "step 3"]
    timeline_of(folder, tmp_path / "whole.json")
    assert (tmp_path / "t.json").stat().st_size < 0.7 * (tmp_path / "whole.json").stat().st_size


RUNS = sorted(
    {path.parent.relative_to(DATA).as_posix() for path in DATA.glob("*/rank_*.pt.trace.json.gz")}
    | {path.parent.relative_to(DATA).as_posix() for path in DATA.glob("hta/*/*.json*")}
)
SAID = ("title", "message", "severity", "confidence", "cause", "impact_ms")


@pytest.mark.usefixtures("kept_summaries")
@pytest.mark.parametrize("run", RUNS)
def test_view_shows_exactly_what_analyze_finds(run: str, tmp_path: Path) -> None:
    found = discover(str(DATA / run))
    written = write_timeline(found, found.windows[-1], tmp_path / "timeline.json.gz", jobs=1)
    shown = [
        [event["name"].split()[0], *(event["args"].get(key) for key in (*SAID, "ranks", "steps"))]
        for event in json.loads(gzip.decompress(written.path.read_bytes()))["traceEvents"]
        if event["pid"] == FINDINGS_PID and event["ph"] == "X"
    ]
    expected = [
        [finding.rule, *(getattr(finding, key) for key in SAID), list(finding.ranks), list(finding.steps)]
        for finding in analyze(DATA / run, jobs=1).findings
    ]
    assert sorted(shown, key=str) == sorted(expected, key=str)
