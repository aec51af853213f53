"""A summary in a file is the summary: exactly it, and small; anything else is refused with its name."""

import functools
import pickle
import random
from datetime import datetime, timezone

import msgspec
import numpy as np
import pytest
from changed import replace
from isal import isal_zlib
from summary_folders import DATA, RUNS, assert_same, copied, report_text, to_summaries

from traceops.core.errors import InputError
from traceops.measure.host import HostSyncs
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping.summary_file import pack, read_packed, unpack, zipped
from traceops.traces.discover import discover
from traceops.traces.summary_header import FORMAT, MAGIC, SummaryHeader, read_header, split, with_header

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
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(part, changed):
    summary = summaries("ddp4")[0]
    if part == "comm.end":
        changed = summary.comm.end - 10**15
    elif part == "program.ready":
        changed = summary.program.ready * 4
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
