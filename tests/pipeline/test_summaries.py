"""Summaries in files: exactly what was measured, and beside or in place of traces they give the same report."""

import functools
import gzip
import json
import pickle
import random
import shutil
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import numpy as np
import pytest
from changed import replace
from isal import isal_zlib
from summary_folders import DATA, RUNS, assert_same, copied, report_text, to_summaries

from traceops.cli import main
from traceops.core.errors import InputError, UsageError
from traceops.measure.host import HostSyncs
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import ranks as mapping
from traceops.pipeline.mapping.ranks import write_summary
from traceops.pipeline.mapping.summary_file import pack, read_packed, unpack, zipped
from traceops.traces.discover import discover
from traceops.traces.windows import FORMAT, MAGIC, SummaryHeader, read_header, split, with_header


def trace(folder, rank):
    return folder / f"rank_{rank}.pt.trace.json.gz"


def summary(folder, rank):
    return folder / f"rank_{rank}.summary.msgpack.gz"


def write_summaries(folder):
    for file in discover(str(folder)).windows[-1].files:
        write_summary(file)


def shifted(path, ns=10**9):
    """The trace with its clock moved: other bytes that are as good a trace."""
    raw = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(
        gzip.compress(json.dumps({**raw, "baseTimeNanoseconds": raw["baseTimeNanoseconds"] + ns}).encode())
    )


def test_some_ranks_as_summaries_give_the_same_report(ddp):
    from_traces = report_text(ddp)
    to_summaries(ddp, ranks=(0, 2))
    assert report_text(ddp) == from_traces


def test_summaries_in_other_folders_and_under_other_names_give_the_same_report(ddp):
    from_traces = report_text(ddp)
    for rank, path in enumerate(to_summaries(ddp)):
        target = ddp / "deep" / f"rank_{rank}" / "host.summary.msgpack.gz"
        target.parent.mkdir(parents=True)
        path.rename(target)
    assert report_text(ddp) == from_traces


def test_one_summary_is_one_rank(ddp):
    path = to_summaries(ddp)[2]
    found = discover(str(path))
    assert [(file.rank, file.summarized) for file in found.windows[0].files] == [(2, True)]
    assert analyze(path).run.ranks_present == (2,)


def test_a_summary_beside_its_trace_is_used_as_long_as_it_is_of_those_bytes(ddp, monkeypatch):
    write_summaries(ddp)
    from_both = report_text(ddp)
    parsed = []
    monkeypatch.setattr(mapping, "_POOL_WORTH_BYTES", 1 << 40)  # all in this process
    summarize = mapping.summarize
    monkeypatch.setattr(
        mapping, "summarize", lambda file, *options: parsed.append(file.rank) or summarize(file, *options)
    )
    assert report_text(ddp) == from_both
    assert parsed == []
    shifted(trace(ddp, 3))
    analyze(ddp)
    assert parsed == [3]
    monkeypatch.setattr("traceops.pipeline.mapping.ranks.__version__", "0.0.0")
    parsed.clear()
    analyze(ddp)
    assert sorted(parsed) == [0, 1, 2, 3]


def test_summaries_apart_from_their_traces_are_known_as_theirs(ddp):
    write_summaries(ddp)
    (ddp / "summaries").mkdir()
    for rank in range(4):
        summary(ddp, rank).rename(ddp / "summaries" / f"{rank}.summary.msgpack.gz")
    found = discover(str(ddp))
    assert found.problems == ()
    [window] = found.windows
    assert [Path(file.path).name for file in window.files] == [trace(ddp, rank).name for rank in range(4)]
    assert all(file.summary for file in window.files)


@pytest.mark.parametrize("content", [b"", b"no summary", None], ids=["empty", "text", "cut"])
def test_a_bad_summary_costs_its_rank_where_there_is_no_trace_and_nothing_else(ddp, content):
    path = summary(ddp, 1)
    write_summaries(ddp)
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    assert report_text(ddp).count("TO-V002") == 1  # the check, clear
    trace(ddp, 1).unlink()
    report = analyze(ddp)
    assert report.run.ranks_present == (0, 2, 3)
    [finding] = [f for f in report.findings if f.rule == "TO-V002"]
    assert str(path) in finding.message
    assert "make it anew" in finding.message


def test_a_bad_trace_is_named_and_its_summary_used(ddp):
    write_summaries(ddp)
    trace(ddp, 1).write_bytes(b"")
    report = analyze(ddp)
    assert report.run.ranks_present == (0, 1, 2, 3)
    [finding] = [f for f in report.findings if f.rule == "TO-V002"]
    assert str(trace(ddp, 1)) in finding.message


def test_damage_of_a_trace_is_told_by_its_summary(ddp):
    path = trace(ddp, 3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    from_traces = report_text(ddp)
    to_summaries(ddp)
    assert report_text(ddp) == from_traces
    assert "cut off" in from_traces


def test_windows_of_summaries_are_those_of_their_traces(ddp):
    for path in list(ddp.iterdir()):
        shutil.copy(path, ddp / path.name.replace(".pt.", ".window_1.pt."))
        path.rename(ddp / path.name.replace(".pt.", ".window_0.pt."))
        shifted(ddp / path.name.replace(".pt.", ".window_1.pt."))
    before = discover(str(ddp))
    to_summaries(ddp, ranks=(0, 3))
    after = discover(str(ddp))
    assert [w.index for w in after.windows] == [w.index for w in before.windows] == [0, 1]
    assert [w.started_ns for w in after.windows] == [w.started_ns for w in before.windows]


def test_a_second_summary_of_a_rank_is_named(ddp):
    to_summaries(ddp)
    shutil.copy(summary(ddp, 1), ddp / "copy.rank_1.summary.msgpack.gz")
    [(path, what)] = discover(str(ddp)).problems
    assert path.endswith("rank_1.summary.msgpack.gz")
    assert "second trace of rank 1" in what


def test_summary_of_a_run_with_another_world_size_is_left_out(ddp, tmp_path):
    to_summaries(ddp)
    other = copied("runs/zero3", tmp_path)
    for path in other.rglob("*.gz"):
        raw = json.loads(gzip.decompress(path.read_bytes()))
        raw["distributedInfo"]["world_size"] = 8
        path.write_bytes(gzip.compress(json.dumps(raw).encode()))
    [stray, *_] = to_summaries(other)
    shutil.copy(stray, ddp)
    [(path, what)] = discover(str(ddp)).problems
    assert Path(path).name == stray.name
    assert "of a run with 8 ranks" in what


def manifest(folder, steps):
    windows = [{"trace": trace(folder, 0).name, "complete": False, "steps": steps}]
    (folder / "run.json").write_text(json.dumps({"ranks": [{"rank": 0, "windows": windows}]}))


def test_steps_that_were_recorded_whole_are_in_the_summary(ddp):
    manifest(ddp, [3, 4])
    from_traces = report_text(ddp)
    assert json.loads(from_traces)["ranks"][0]["steps"] == 2
    to_summaries(ddp)
    assert report_text(ddp) == from_traces


def test_a_summary_made_before_run_json_told_of_the_steps_is_not_used(ddp):
    to_summaries(ddp)
    manifest(ddp, [3, 4])
    [(path, what)] = discover(str(ddp)).problems
    assert path == str(summary(ddp, 0))
    assert "whole steps; make it anew" in what
    for rank in (1, 2, 3):
        summary(ddp, rank).unlink()
    with pytest.raises(InputError, match=r"rank_0.*whole steps; make it anew"):
        analyze(ddp)


def test_a_trace_that_says_nothing_of_its_rank(tmp_path, ddp):
    raw = json.loads(gzip.decompress(trace(ddp, 0).read_bytes()))
    del raw["distributedInfo"]
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "some.pt.trace.json").write_text(json.dumps(raw))
    from_trace = report_text(folder)
    assert "says nowhere which rank it is" in from_trace
    to_summaries(folder)
    assert report_text(folder) == from_trace


def test_a_trace_that_is_still_written_gets_no_summary(ddp, monkeypatch):
    [file, *_] = discover(str(ddp)).windows[0].files
    summarize = mapping.summarize

    def grow(file, *options):
        with Path(file.path).open("ab") as growing:
            growing.write(b"\0")
        return summarize(file, *options)

    monkeypatch.setattr(mapping, "summarize", grow)
    with pytest.raises(InputError, match="still being written"):
        write_summary(file)
    assert sorted(path.name for path in ddp.iterdir()) == [trace(ddp, rank).name for rank in range(4)]


def test_comparing_folders_of_summaries(tmp_path, capsys):
    base, head = copied("slow_gpu4", tmp_path / "a"), copied("ddp4", tmp_path / "b")
    args = ["compare", str(base), str(head), "-o", str(tmp_path / "out"), "--format", "json", "-q", "--force"]
    main(args)
    from_traces = capsys.readouterr().out
    to_summaries(base)
    to_summaries(head)
    main(args)
    assert capsys.readouterr().out == from_traces


def test_a_timeline_needs_the_traces(ddp, tmp_path, capsys):
    to_summaries(ddp, ranks=(1, 2))
    target = tmp_path / "out.json"
    assert main(["view", str(ddp), "-o", str(target)]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "ranks 1-2: there is only a summary" in said
    assert str(summary(ddp, 1)) in said
    assert main(["view", str(ddp), "-o", str(target), "--ranks", "0,3", "-q"]) == 0
    assert target.is_file()


# A summary in a file is the summary: exactly it, and small; anything else is refused with its name.


HEADER = SummaryHeader("1.0", "code", "rank_0.json", "digest", 0, "metadata", 0, 4, 5, None)


@functools.cache
def summaries(name):
    return [summarize(file) for file in discover(str(DATA / name)).windows[-1].files]


@pytest.fixture(scope="module")
def packed():
    return pack(HEADER, summaries("ddp4")[0])


@pytest.mark.parametrize("name", RUNS)
def test_every_summary_comes_back_exactly(name):
    seen = {}
    for summary in summaries(name):
        header, again = unpack(pack(HEADER, summary), seen)
        assert header == HEADER
        assert_same(summary, again)


@pytest.mark.parametrize("name", RUNS)
def test_summaries_give_the_report_that_the_traces_give(name, tmp_path):
    folder = copied(name, tmp_path)
    from_traces = report_text(folder)
    to_summaries(folder)
    assert report_text(folder) == from_traces


def test_a_summary_is_smaller_than_its_pickle_and_shares_what_ranks_have_in_common():
    first, second = summaries("fsdp2_4")[:2]
    assert len(first.detail) < 30_000  # is zipped already
    bare = replace(first, detail=b"")
    assert len(zipped(pack(HEADER, bare))) < len(pickle.dumps(bare)) / 3
    seen = {}
    one, two = (unpack(pack(HEADER, summary), seen)[1] for summary in (first, second))
    assert one.comm.args[0] is two.comm.args[0]
    assert one.kernels[0].name is next(k.name for k in two.kernels if k.name == one.kernels[0].name)


def test_any_cut_of_the_file_is_refused_by_name(tmp_path, packed):
    whole = zipped(packed)
    path = tmp_path / "rank_0.summary.msgpack.gz"
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"rank_0\.summary\.msgpack\.gz.*make it anew"):
            read_header(str(path))
            read_packed(str(path))


def test_any_changed_byte_is_refused_or_read_as_what_it_says(packed):
    """A checksum finds accidents; this is what somebody wrote on purpose."""
    choose = random.Random(3)
    for _ in range(400):
        data = bytearray(packed)
        for _ in range(choose.randrange(1, 4)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        try:
            unpack(bytes(data), {})
        except ValueError as error:
            assert "make it anew" in str(error)


@pytest.mark.parametrize(
    ("part", "changed"),
    [
        ("rank", -1),
        ("step_edges", np.array([3, 2, 1, 0])),
        ("comm.step", np.array([9])),
        ("comm.end", None),
        ("comm.name", ()),
        ("program.join_comm", np.array([5])),
        ("program.times", np.zeros(0, np.int64)),
        ("program.ready", None),
        ("program.syncs", HostSyncs(*(np.zeros((0, 0), np.int64) for _ in range(4)))),
        ("program.syncs_before", np.array([1 << 40])),
        ("meta.world_size", 1 << 60),
        ("hta.overlap", {"rank": [0], "share": []}),
        ("program.own", np.zeros((2, 3), np.int64)),
        ("program.painted", np.zeros((3, 7), np.uint8)),
        ("ledger.buckets", {}),
        ("ledger.duration", np.zeros(1, np.int64)),
        ("inventory.step_bytes", np.zeros(9, np.int64)),
        ("backward.device_end", np.zeros(0, np.int64)),
        ("kernels", None),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(part, changed):
    summary = summaries("ddp4")[0]
    if part == "comm.end":
        changed = summary.comm.end - 10**15
    elif part == "program.ready":
        changed = summary.program.ready * 4
    elif part == "kernels":
        changed = (replace(summary.kernels[0], count=0), *summary.kernels[1:])
    owner, _, name = part.rpartition(".")
    if owner:
        broken = replace(summary, **{owner: replace(getattr(summary, owner), **{name: changed})})
    else:
        broken = replace(summary, **{name: changed})
    with pytest.raises(ValueError, match="does not fit"):
        unpack(pack(HEADER, broken), {})


@pytest.mark.parametrize("cell", [[1], {}, [[[None]]], b"x", datetime(2026, 1, 1, tzinfo=timezone.utc)])
def test_cells_of_tables_that_we_never_write_are_refused(packed, cell):
    header, body = split(packed)
    summary = msgspec.msgpack.decode(body)
    column = next(iter(summary["hta"]["overlap"].values()))
    column[0] = cell
    with pytest.raises(ValueError, match="it cannot be read as a summary"):
        unpack(with_header(header, msgspec.msgpack.encode(summary)), {})


def test_a_file_that_unzips_without_end_is_refused(tmp_path, packed, monkeypatch):
    monkeypatch.setattr("traceops.pipeline.mapping.summary_file._LARGEST", 1 << 20)
    path = tmp_path / "rank_0.summary.msgpack.gz"
    path.write_bytes(isal_zlib.compress(packed + bytes(4 << 20), 1, 31))
    with pytest.raises(InputError, match="larger than any summary"):
        read_packed(str(path))


def test_another_format_is_named_and_never_read(ddp):
    path, *_ = to_summaries(ddp)
    other = replace(read_header(str(path)), format=FORMAT + 1, version="9.9")
    path.write_bytes(zipped(with_header(other, bytes(split(read_packed(str(path)))[1]))))
    report = analyze(ddp)
    assert report.run.ranks_present == (1, 2, 3)
    [finding] = [f for f in report.findings if f.rule == "TO-V002"]
    assert str(path) in finding.message
    assert f"format {FORMAT + 1}, by traceops 9.9" in finding.message
    assert "traceops run --summarize" in finding.message


@pytest.mark.parametrize(
    "changed", [{"rank": 1 << 40}, {"rank_inside": -1}, {"world_size": 0}, {"started_ns": 1 << 62}]
)
def test_a_header_that_cannot_be_is_refused(tmp_path, packed, changed):
    path = tmp_path / "rank_0.summary.msgpack.gz"
    path.write_bytes(zipped(with_header(replace(HEADER, **changed), bytes(split(packed)[1]))))
    with pytest.raises(InputError, match="a rank or a time that cannot be"):
        discover(str(path))


def test_only_foreign_files_of_that_name_is_an_error_that_names_them(tmp_path):
    for rank, content in enumerate((b"", b"{}", MAGIC, zipped(MAGIC + b"\xff\xff\xff\xff"))):
        (tmp_path / f"rank_{rank}.summary.msgpack.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"(?s)rank_0.*rank_1.*rank_2.*rank_3"):
        discover(str(tmp_path))
