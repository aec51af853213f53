"""Perfetto's native format: the same events as in the traces, in an order that is said, and counters that are true."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from perfetto_reading import Row, rows_of
from small_traces import HOST, training, write_run, x
from timeline_reading import ns, read_timeline

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.timeline import write_timeline
from traceops.timeline.choose import find_named
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"


def write(folder: Path, output: Path, **options: object) -> dict[int, Row]:
    found = discover(str(folder))
    write_timeline(found, found.windows[-1], output, **options)  # type: ignore[arg-type]
    return rows_of(output)


def below(rows: dict[int, Row], *names: str) -> dict[int, Row]:
    """The rows below the one that is reached by these names from the top; {0: …} for none."""
    parent = 0
    for name in names:
        (parent,) = (uuid for uuid, row in rows.items() if row.parent == parent and row.name == name)
    return {uuid: row for uuid, row in rows.items() if row.parent == parent}


def in_order(rows: dict[int, Row]) -> list[str]:
    assert len({row.order for row in rows.values()}) == len(rows), "two rows have one place"
    return [row.name for row in sorted(rows.values(), key=lambda row: row.order)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, Row], Path]:
    """Twelve ranks, of which rank 2 comes 200 µs late; odd events on the last one."""
    folder = tmp_path_factory.mktemp("small")
    world = range(12)
    traces = [training(rank, world, late_us=200.0 if rank == 2 else 0.0) for rank in world]
    memory = {"Device Type": 1, "Device Id": 3, "Bytes": 512, "Addr": 7}
    traces[11] += [
        x("begins alone", 1200.0, 0.0, ph="B", tid=5),
        x("begins alone", 1300.0, 0.0, ph="E", tid=5),
        x("first", 1000.0, 100.0, tid=6),
        x("overlaps", 1050.0, 100.0, tid=6, args={"shape": [[2, 3], []], "deep": {"a": 1}, "nan": "nan"}),
        x("moment", 1010.0, 0.0, ph="i", tid=6),
        *(
            {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": HOST, "tid": 1, "ts": at, "s": "t",
             "args": {**memory, "Total Allocated": allocated, "Total Reserved": 4096}}
            for at, allocated in ((1001.0, 512), (1002.0, 0))
        ),
    ]  # fmt: skip
    write_run(folder / "run", traces)
    return write(folder / "run", folder / "t.pftrace.gz", ranks=[0, 2, 10, 11]), folder


def test_rows_stand_in_an_order_that_is_said(small: tuple[dict[int, Row], Path]) -> None:
    rows, _ = small
    assert all(row.explicit for row in rows.values())
    names = in_order(below(rows))
    assert names == ["findings of traceops", "rank 00", "rank 02", "rank 10", "rank 11"]
    assert names == sorted(names), "the page sorts the outermost rows by name"
    assert in_order(below(rows, "rank 10")) == [
        "steps",
        "wait and transfer",
        "bus bandwidth while transferring",
        "came later than the first, at each collective",
        "python",
        "GPU 10",
    ]
    assert in_order(below(rows, "rank 10", "GPU 10")) == ["stream 7 · compute", "stream 19 · communication"]


def test_what_a_rank_waited_and_what_its_link_gave(small: tuple[dict[int, Row], Path]) -> None:
    rows, _ = small

    def counter(rank: int, name: str) -> Row:
        (row,) = (row for row in below(rows, f"rank {rank:02}").values() if row.name.startswith(name))
        return row

    late, early = counter(2, "came later"), counter(10, "came later")
    assert late.unit == "ms"
    assert [value for _, value in late.values] == [0.2, 0.2, 0.2]
    assert [value for _, value in early.values] == [0.0, 0.0, 0.0]
    link = counter(10, "bus bandwidth")
    # 1 MB in the 180 µs of the transfer, though this rank was in the collective for 380 µs
    assert link.unit == "GB/s"
    assert [round(value, 3) for _, value in link.values] == [round(1e6 / 180e3 * 2 * 11 / 12, 3), 0.0] * 3
    waits = below(rows, "rank 10")
    (row,) = (row for row in waits.values() if row.name == "wait and transfer")
    assert [(end - start, name) for start, end, name, *_ in row.slices] == [
        (200_000, "wait for rank 2"),
        (180_000, "transfer allreduce 1.0 MB"),
    ] * 3


def test_kinds_of_events_that_are_no_slices(small: tuple[dict[int, Row], Path]) -> None:
    rows, _ = small
    host = below(rows, "rank 11", "python")
    by_name = {row.name: row for row in host.values()}
    assert [name for *_, name, _, _, _ in by_name["thread 5"].slices] == ["begins alone"]
    assert by_name["thread 5"].slices[0][1] - by_name["thread 5"].slices[0][0] == 100_000
    assert [row[2] for row in by_name["thread 6"].slices] == ["first"]
    assert [name for _, name in by_name["thread 6"].instants] == ["moment"]
    (overlapping,) = by_name["thread 6 (2)"].slices
    assert overlapping[2] == "overlaps"
    assert overlapping[4] == {"shape": "[[2,3],[]]", "deep": {"a": 1}, "nan": "nan"}
    memory = by_name["memory allocated · GPU 3"]
    assert memory.unit == 3  # bytes
    assert [value for _, value in memory.values] == [512.0, 0.0]
    assert [value for _, value in by_name["memory reserved · GPU 3"].values] == [4096.0, 4096.0]


def test_arrows_lead_from_launch_to_kernel_and_from_the_late_rank(small: tuple[dict[int, Row], Path]) -> None:
    rows, _ = small
    ends: dict[int, list[str]] = {}
    for row in rows.values():
        for _, _, name, _, _, flows in row.slices:
            for flow in flows:
                ends.setdefault(flow, []).append(name)
    assert sorted(map(tuple, map(sorted, ends.values()))) == sorted(
        [("cudaLaunchKernel", "gemm")] * 12
        + [("cudaLaunchKernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")] * 12
        + [("transfer allreduce 1.0 MB", "transfer allreduce 1.0 MB")] * 3
    )


@pytest.mark.parametrize("name", ["straggler_gloo2", "hsdp4"])
def test_it_has_the_events_that_the_json_has(name: str, tmp_path: Path) -> None:
    rows = write(DATA / name, tmp_path / "t.pftrace", jobs=1, ranks=[1])
    found = discover(str(DATA / name))
    write_timeline(found, found.windows[-1], tmp_path / "t.json", jobs=1, ranks=[1])
    other = read_timeline(tmp_path / "t.json")
    for rank, events in other.by_rank.items():
        expected = sorted(
            (ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event["name"], event.get("cat", ""))
            for event in events
            if event["ph"] == "X"
        )
        (top,) = (uuid for uuid, row in rows.items() if row.parent == 0 and row.name.split(" · ")[0] == f"rank {rank}")
        groups = {uuid for uuid, row in rows.items() if row.parent == top}
        own = [row for row in rows.values() if row.parent in groups]
        assert sorted(part[:4] for row in own for part in row.slices) == expected
        assert sum(len(row.instants) for row in own) == sum(event["ph"] == "i" for event in events)


def test_several_hosts_are_rows_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceops.timeline.write._host", lambda found, summary, header: f"n{summary.rank // 2}")
    write_run(tmp_path / "run", [training(rank, range(4)) for rank in range(4)])
    rows = write(tmp_path / "run", tmp_path / "t.pftrace")
    assert in_order(below(rows)) == ["findings of traceops", "host n0", "host n1"]
    assert in_order(below(rows, "host n1")) == ["rank 2", "rank 3"]


def test_around_a_finding_are_those_it_names_and_one_that_waits(tmp_path: Path) -> None:
    rows = write(DATA / "slow_loader4", tmp_path / "t.pftrace", around="to-s001", jobs=1)
    shown = [row.name.split(" · ")[0] for row in rows.values() if row.parent == 0]
    assert "rank 1" in shown  # the late one
    assert 3 <= len(shown) <= 5
    steps = [part[2] for row in rows.values() if row.name == "steps" for part in row.slices]
    assert len(set(steps)) == 1
    findings = below(rows, "findings of traceops")
    assert in_order(findings)[0].startswith("TO-S001")


def test_findings_are_called_by_rule_and_place() -> None:
    def finding(rule: str, message: str) -> Finding:
        return Finding(rule, "info", "high", "Title", message, (Evidence(Fact.OTHER, 1, subject="x"),))

    own = [finding("TO-S001", "one"), finding("TO-C001", "two"), finding("TO-S001", "three")]
    assert find_named("TO-S001", own).message == "one"
    assert find_named("to-s001.2", own).message == "three"
    assert find_named("TO-C001#1", own).message == "two"
    for name, words in (("TO-S001.3", "TO-S001, TO-C001"), ("TO-X009", "has no finding"), ("slow", "is no finding")):
        with pytest.raises(UsageError, match=words):
            find_named(name, own)
    with pytest.raises(UsageError, match="none at all"):
        find_named("TO-S001", [])


def test_a_large_timeline_is_told_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", [training(0), training(1)])
    monkeypatch.setattr("traceops.cli.view.LARGE_BYTES", 1)
    output = tmp_path / "t.pftrace"
    assert main(["view", str(tmp_path / "run"), "-q", "-o", str(output), "--steps", "4"]) == 0
    said = capsys.readouterr()
    assert said.out == f"{output}\n"
    assert "for 2 ranks, 1 step;" in said.err
    assert "--around FINDING" in said.err


def _processor(folder: Path, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "trace_processor_shell"
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


def test_a_query_goes_to_the_processor_with_the_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", [training(0), training(1)])
    tool = _processor(tmp_path / "bin", 'cat "$2"; head -c 1 "$3" >/dev/null && echo "read $(basename $3)"\n')
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("TRACE_PROCESSOR", raising=False)
    assert main(["query", str(tmp_path / "run"), "select 1;", "--ranks", "1"]) == 0
    assert capsys.readouterr().out == "select 1;\nread timeline.pftrace\n"
    made = tmp_path / "mine.pftrace.gz"
    made.write_bytes(b"x")
    monkeypatch.setenv("TRACE_PROCESSOR", str(_processor(tmp_path / "named", 'echo "no such table: x" >&2; exit 1\n')))
    assert main(["query", str(made), "select x"]) == 3
    assert "no such table: x" in capsys.readouterr().err
    assert main(["query", str(tmp_path / "none.pftrace"), "select x"]) == 3


def test_without_a_processor_it_says_where_to_get_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    small: tuple[dict[int, Row], Path],
) -> None:
    made = str(small[1] / "t.pftrace.gz")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TRACE_PROCESSOR", raising=False)
    monkeypatch.setitem(__import__("sys").modules, "perfetto", None)
    assert main(["query", made, "select 1"]) == 2
    assert "get.perfetto.dev" in capsys.readouterr().err
    monkeypatch.setenv("TRACE_PROCESSOR", str(tmp_path / "nothing"))
    assert main(["query", made, "select 1"]) == 2
    assert "TRACE_PROCESSOR names" in capsys.readouterr().err


def test_perfettos_own_messages_read_it(small: tuple[dict[int, Row], Path]) -> None:
    trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    import gzip

    rows, folder = small
    read = trace.Trace.FromString(gzip.decompress((folder / "t.pftrace.gz").read_bytes()))
    described = [packet.track_descriptor for packet in read.packet if packet.HasField("track_descriptor")]
    assert {(own.uuid, own.parent_uuid, own.name, own.sibling_order_rank) for own in described} == {
        (uuid, row.parent, row.name, row.order) for uuid, row in rows.items()
    }
    assert {own.child_ordering for own in described} == {trace.TrackDescriptor.EXPLICIT}
    assert {own.sibling_merge_behavior for own in described} == {trace.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE}
    kinds = [packet.track_event.type for packet in read.packet if packet.HasField("track_event")]
    slices = sum(len(row.slices) for row in rows.values())
    assert kinds.count(trace.TrackEvent.TYPE_SLICE_BEGIN) == slices == kinds.count(trace.TrackEvent.TYPE_SLICE_END)
    assert kinds.count(trace.TrackEvent.TYPE_COUNTER) == sum(len(row.values) for row in rows.values())
