"""Loaded columns equal what json.loads finds, whatever the layout, the packing and however the bytes arrive."""

import gzip
import itertools
import json
import sys
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from drawn import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from json_reference import COMM_KEYS, loaded_rows, read_bytes, reference_rows
from trace_text import document, event

from traceops.core.errors import InputError
from traceops.traces.event_columns import native_columns
from traceops.traces.kineto import load_trace
from traceops.traces.model import parse_ranks
from traceops.traces.source import AT_LEAST, filesystem

pytestmark = pytest.mark.usefixtures("either_scanner")

DATA = Path(__file__).resolve().parents[1] / "data"
TRACES = sorted(DATA.rglob("*.json.gz"))
SMALL = [path for path in TRACES if path.parent.name in ("amd", "cpu_only")]
named = pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(DATA)).split(".")[0])


@lru_cache(maxsize=1)
def reference_of(path):
    return reference_rows(read_bytes(path))


@pytest.mark.parametrize("either_scanner", ["compiled", "plain"], indirect=True)  # one after the other
@named
def test_real_trace_has_the_rows_of_the_file_to_the_nanosecond(path, either_scanner):
    rows, comm = reference_of(path)
    trace = load_trace(str(path))
    assert trace.damage == ()
    assert loaded_rows(trace.events) == rows
    collectives = {
        row: {key: getattr(args, field) for key, field in COMM_KEYS.items()}
        for row, args in trace.events.comm.items()
        if rows[row][2] == "kernel" or rows[row][1] == "record_param_comms"
    }
    assert collectives == comm


def test_collectives_know_their_global_ranks():
    events = load_trace(str(DATA / "hsdp4/rank_3.pt.trace.json.gz")).events
    members = {args.group_ranks for args in events.comm.values() if args.group_ranks}
    assert {(2, 3), (1, 3)} <= members
    assert parse_ranks("[0, 1, 2, ...]") is None


def test_members_of_a_large_group_come_from_the_header_where_the_event_cuts_them_off(load):
    def collective(name, size):
        ranks = '"Process Group Ranks": "[0, 1, ...]"'
        return event(args=f'{{"Collective name": "x", "Process Group Name": "{name}", "Group size": {size}, {ranks}}}')

    config = [
        {"pg_name": name, "ranks": list(range(size))} for name, size in (("0", 64), ("1", 32), ("2", 8), ("2", 9))
    ]
    info = json.dumps({"rank": 0, "pg_config": config})
    events = [collective("0", 64), collective("1", 32), collective("1", 31), collective("2", 8), collective("7", 8)]
    for text in (
        f'{{"distributedInfo": {info}, "traceEvents": [{", ".join(events)}]}}',
        f'{{"traceEvents": [{", ".join(events)}], "distributedInfo": {info}}}',
    ):
        members = [args.group_ranks for args in load(text).events.comm.values()]
        assert members == [tuple(range(64)), tuple(range(32)), None, None, None]


def test_metadata_of_a_real_trace():
    meta = load_trace(str(DATA / "hsdp4/rank_3.pt.trace.json.gz")).meta
    assert (meta.rank, meta.world_size, meta.backend, meta.device) == (3, 4, "nccl", "NVIDIA H200")
    assert meta.nccl_version == "2.28.9"
    assert (2, 3) in {group.ranks for group in meta.groups}


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("chunk", [1, 7, 100, 4096])
def test_rows_do_not_depend_on_chunk_boundaries(load, path, chunk):
    data = read_bytes(path)
    whole, pieces = load(data), load(data, chunk)
    assert (pieces.damage, pieces.meta) == (whole.damage, whole.meta)
    assert_same_events(pieces.events, whole.events)


@pytest.mark.parametrize("chunk", [1, 2, 3, 50])
def test_characters_of_several_bytes_survive_chunk_boundaries_beside_a_damaged_event(load, chunk):
    good = event(name="größe→🚀")
    text = document([good, "{broken}", good, event(name="é" * 40), good])
    trace = load(text, chunk)
    assert [row[1] for row in loaded_rows(trace.events)] == ["größe→🚀"] * 2 + ["é" * 40, "größe→🚀"]
    assert trace.damage == ("1 event is not readable",)


@pytest.mark.parametrize("chunk", [1, 13, None])
def test_collectives_keep_their_arguments_beside_a_damaged_event(load, chunk):
    gloo = event(name="gloo:all_reduce", cat="user_annotation", args='{"Input Dims": [[4, 5], [2]]}')
    nccl = event(args='{"Collective name": "allreduce", "In msg nelems": 9, "Process Group Ranks": "[1, 3]"}')
    whole = load(document([gloo, nccl, gloo])).events.comm
    beside = load(document([gloo, "{broken}", event(), gloo, nccl, gloo]), chunk).events.comm
    assert [args.elements_in for args in whole.values()] == [22, 9, 22]
    assert list(beside.values())[-3:] == list(whole.values())


@pytest.mark.parametrize("lead", range(12))
def test_long_events_beside_a_damaged_one_are_whole(load, lead):
    name = "n" * lead + r"\ud83d\ude80" * 2000
    trace = load(document(["{broken}", event(), event(name=name), event()]))
    assert [row[1] for row in loaded_rows(trace.events)] == ["k", "n" * lead + "🚀" * 2000, "k"]


@pytest.mark.parametrize("chunk", [1, 13, None])
def test_absolute_times_stay_exact_beside_a_damaged_event(load, chunk):
    exact = event(ts="1712195495406752.797", dur="0.001")
    trace = load(document([exact, "{broken}", exact, exact]), chunk)
    assert trace.events.ts.tolist() == [1712195495406752797] * 3
    assert trace.events.dur.tolist() == [1] * 3


@given(
    times=st.lists(
        st.integers(0, 2**41) | st.integers(2**42, 2**43) | st.integers(2**43, 2**51), min_size=1, max_size=20
    ),
    fraction=st.integers(0, 999),
)
@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_times_of_any_size_are_exact_to_the_nanosecond(load, times, fraction):
    times.sort(reverse=True)
    trace = load(document([event(ts=f"{us}.{fraction:03}") for us in times]))
    assert trace.events.ts.tolist() == [us * 1000 + fraction for us in times]


def test_digits_beyond_nanoseconds_are_rounded(load):
    for ts, ns in {"1.0004": 1000, "1.0006": 1001, "1712195495406752.7966": 1712195495406752797}.items():
        assert load(document([event(ts=ts)])).events.ts.tolist() == [ns]


def test_absolute_times_are_exact_though_the_first_event_is_at_zero(load):
    first = '{"ph": "M", "name": "process_name", "ts": 0, "pid": 1, "args": {"name": "python"}}'
    trace = load(document([first, event(ts="1712195495406752.797")]))
    assert trace.events.ts.tolist() == [1712195495406752797]


@pytest.mark.parametrize("chunk", [5, None])
def test_separators_inside_strings_and_nested_lists_do_not_split_events(load, chunk):
    nested = '{"list": [{"ph": "X", "a": 1},\n  {\n    "ph": "X"}, {"ph": [{"a": 1}, {"a": 2}]}], "stream": 7}'
    tricky = [
        event(name=r"},\n  {\n    \"ph\""), event(name="},{'ph'"), event(args=nested), event(name="}], ["),
        event(args='{"stream": 7, "text": "}, {\\"ph\\": \\"X\\"}]"}'), event(args='{"stream": 7, "empty": [{}, {}]}'),
    ]  # fmt: skip
    for separator in (",", ",\n  ", " ,\n\n "):
        text = document(tricky * 3, separator)
        trace = load(text, chunk)
        assert trace.damage == ()
        assert loaded_rows(trace.events) == reference_rows(text)[0]


def test_array_form_and_trailing_metadata_and_compact_layout(load):
    events = [json.loads(event(name=f"k{i}", ts=str(i))) for i in range(5)]
    meta = {"distributedInfo": {"rank": 3, "pg_config": [{"pg_name": "0", "ranks": [1, 3]}]}, "baseTimeNanoseconds": 77}
    compact = json.dumps({"traceEvents": events, **meta}, separators=(",", ":"))
    for text in (compact, json.dumps({"schemaVersion": 1, "traceEvents": events, **meta}, indent=1)):
        trace = load(text)
        assert (trace.damage, trace.meta.rank, trace.meta.groups[0].ranks) == ((), 3, (1, 3))
        assert loaded_rows(trace.events) == reference_rows(text)[0]
    for text in (json.dumps(events), json.dumps(events)[:-1]):  # Chrome allows leaving out the last bracket
        assert len(load(text).events) == 5


def test_empty_lists_of_events_are_no_damage(load):
    for text in ('{"traceEvents": []}', '{"traceEvents":[\n], "x": 1}', "[]"):
        trace = load(text)
        assert (len(trace.events), trace.damage) == (0, ())


def test_python_frames_are_left_out_but_remembered(load):
    trace = load(document([event(cat="python_function"), event(), event(cat="Trace")]))
    assert (len(trace.events), trace.meta.with_stack) == (1, True)


NAMES = st.text(max_size=8) | st.sampled_from(['},\n  {\n    "ph"', "}, {", "\\", '"', "]}", "ProfilerStep#3"])
SCALARS = st.none() | st.integers(-(2**60), 2**60) | NAMES
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES.filter(lambda k: k != "ph"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
TIMES = st.integers(0, 10**15).map(lambda ns: ns / 1000)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXMis"), "name": NAMES, "ts": TIMES},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", "Trace", "python_function", ""]),
        "dur": TIMES, "pid": st.integers(0, 10**6) | st.just("Spans"), "tid": st.integers(0, 2**40),
        "args": st.dictionaries(st.sampled_from(["a", "stream", "External id"]), st.integers(-1, 2**31), max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "},{"]), VALUES, max_size=3),
    },
)  # fmt: skip
SPACE = st.text(" \n\t\r", max_size=3)


@st.composite
def documents(draw, latest_base=10**18):
    """JSON text of random events with random whitespace, in either form, metadata before or behind."""
    space = draw(st.lists(SPACE, min_size=1, max_size=5))
    gaps = (space[i % len(space)] for i in range(10**9))
    events = draw(st.lists(EVENTS, max_size=12))
    escape = draw(st.booleans())
    body = "[" + next(gaps) + ",".join(next(gaps) + _spaced(e, gaps, escape) + next(gaps) for e in events) + "]"
    if draw(st.booleans()):
        return body
    meta = {"baseTimeNanoseconds": draw(st.integers(0, latest_base)), "distributedInfo": {"rank": 1, "pg_config": [{}]}}
    entries = [f'"traceEvents"{next(gaps)}:{next(gaps)}{body}']
    entries += [f"{json.dumps(key)}:{next(gaps)}{_spaced(value, gaps, True)}" for key, value in meta.items()]
    if draw(st.booleans()):
        entries.reverse()
    return "{" + next(gaps) + ("," + next(gaps)).join(entries) + next(gaps) + "}" + next(gaps)


def _spaced(value, gaps, escape):
    if isinstance(value, dict):
        keys = (json.dumps(key, ensure_ascii=escape) + next(gaps) + ":" + next(gaps) for key in value)
        items = [key + _spaced(inner, gaps, escape) for key, inner in zip(keys, value.values(), strict=True)]
        return "{" + next(gaps) + f",{next(gaps)}".join(items) + next(gaps) + "}"
    if isinstance(value, list):
        return "[" + f"{next(gaps)},".join(_spaced(v, gaps, escape) for v in value) + "]"
    return json.dumps(value, ensure_ascii=escape)


@pytest.mark.slow
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=documents(), chunk=st.sampled_from([1, 3, 17, 1000]))
def test_any_layout_gives_the_rows_of_json_loads(load, text, chunk):
    trace = load(text, chunk)
    assert trace.damage == ()
    assert loaded_rows(trace.events) == reference_rows(text)[0]


@pytest.mark.slow
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=documents(latest_base=0), chunk=st.sampled_from([3, 1000]), data=st.data())
def test_a_file_cut_anywhere_gives_the_rows_before_the_cut(load, text, chunk, data):
    encoded = text.encode()
    cut = data.draw(st.integers(0, len(encoded)))
    trace = load(encoded[:cut], chunk)
    rows, found = reference_rows(text)[0], loaded_rows(trace.events)
    assert found == rows[: len(found)]
    if len(found) < len(rows):
        assert trace.damage


def assert_same_events(one, other):
    assert loaded_rows(one) == loaded_rows(other)
    assert one.comm == other.comm
    for column in ("index", "ts", "dur", "stream"):
        assert getattr(one, column).dtype == np.int64


def test_copies_keep_their_bytes_where_operators_have_shapes_and_kernels_a_grid(load):
    text = document(
        [
            event("Memcpy HtoD", "gpu_memcpy", args='{"bytes": 4096, "stream": 7}'),
            event("gemm", args='{"bytes": 8, "grid": [2,1,1]}'),
            event("aten::mm", "cpu_op", args='{"grid": [1,1,1], "Input Dims": [[3]], "bytes": 9}'),
            event("hipMemcpyAsync", "cuda_runtime", args='{"size": "2560", "kind": "1"}'),
            event("hipMemcpy", "cuda_runtime", args='{"bytes": 16, "size": "2560"}'),
        ]
    )
    events = load(text).events
    assert [events.shapes[at] for at in events.shape] == ["4096", "[2,1,1]", "[[3]]", '"2560"', "16"]


def test_operators_keep_their_inputs_types_strides_and_values_and_their_numbers(load):
    arguments = (
        '{"External id": 12, "Sequence number": 5, "Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"],'
        ' "Input Strides": [[3, 1], []], "Concrete Inputs": ["", "1"]}'
    )
    events = load(document([event("aten::sum", "cpu_op", args=arguments), event("k", args='{"External id": "12"}')]))
    events = events.events
    assert events.external.tolist() == [12, 12] and events.sequence.tolist() == [5, -1]
    assert events.types.tolist() == events.strides.tolist() == events.concrete.tolist() == [0, -1]
    assert events.type_lists == ('["float", "Scalar"]',) and events.stride_lists == ("[[3, 1], []]",)
    assert events.concrete_lists == ('["", "1"]',)


def test_a_scanner_compiled_of_another_version_is_not_used(monkeypatch):
    _native = pytest.importorskip("traceops.traces._native")
    monkeypatch.setattr(_native, "LAYOUT", 1)
    assert native_columns(False) is None


# The same rows whether the file is plain, gzip, misnamed, in several members, padded or remote.


AMD = next((Path(__file__).resolve().parents[1] / "data/hta/amd").glob("*.gz"))


@pytest.fixture(scope="module")
def text():
    return read_bytes(AMD)


def members(data, *cuts):
    edges = [0, *cuts, len(data)]
    return b"".join(gzip.compress(data[a:b]) for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize(
    "pack",
    [
        lambda text: text,
        gzip.compress,
        lambda text: gzip.compress(text, 0),
        lambda text: members(text, 10, 5000, 5000, 60000),
        lambda text: gzip.compress(text) + b"\0" * 700,
        lambda text: b"\xef\xbb\xbf" + text,
    ],
    ids=["plain", "gzip", "stored", "members", "padded", "byte order mark"],
)
@pytest.mark.parametrize("name", ["rank_0.json", "rank_0.json.gz", "trace"])
@pytest.mark.parametrize("chunk", [1, 999, None])
def test_packing_and_name_do_not_matter(load, text, pack, name, chunk):
    expected, trace = load(text), load(pack(text), chunk, name)
    assert trace.damage == ()
    assert loaded_rows(trace.events) == loaded_rows(expected.events)
    assert len(expected.events) == 112


def test_size_is_the_size_of_the_file_on_disk():
    assert load_trace(str(AMD)).size_bytes == AMD.stat().st_size


def test_a_small_file_that_unpacks_to_much_is_read_in_small_pieces_and_not_all(load, monkeypatch):
    from traceops.traces import source

    sizes = []
    original = source.chunks
    monkeypatch.setattr(
        "traceops.traces.kineto.chunks", lambda file: (sizes.append(len(c)) or c for c in original(file))
    )
    load(gzip.compress(b'{"traceEvents": [' + b" " * 50_000_000 + b"]}"))
    assert AT_LEAST < sum(sizes) < 50_000_000
    assert max(sizes) <= 4 << 20


@pytest.mark.parametrize("cut", [1, 2, 5, 9, 10, 11, 300, 3000, 6000, -9, -8, -5, -1])
def test_a_cut_gzip_gives_the_events_before_the_cut(load, text, cut):
    packed = gzip.compress(text, mtime=0)
    whole, trace = loaded_rows(load(text).events), load(packed[:cut])
    rows = loaded_rows(trace.events)
    base = load(text).events.ts[0] - trace.events.ts[0] if rows else 0  # the zero may stand behind the cut
    assert [row[:3] for row in rows] == [row[:3] for row in whole[: len(rows)]]
    assert [row[3] + base for row in rows] == [row[3] for row in whole[: len(rows)]]
    assert trace.damage
    readable = zlib.decompressobj(31).decompress(packed[:cut])
    assert len(rows) >= readable.count(b'"ph": "X"') - 3  # the last may be cut, one is the profiler's own


def test_flipped_bits_in_gzip_are_said(load, text):
    packed = bytearray(gzip.compress(text, mtime=0))
    for at in (30, len(packed) // 2, len(packed) - 6):
        broken = bytes(packed[:at]) + bytes([packed[at] ^ 0xFF]) + bytes(packed[at + 1 :])
        assert load(broken).damage


def test_other_bytes_behind_gzip_are_said_and_the_events_kept(load, text):
    trace = load(gzip.compress(text) + b"hello")
    assert len(trace.events) == 112
    assert trace.damage == ("other bytes follow the end of the gzip stream",)


def test_the_error_names_a_file_that_cannot_be_opened(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=path.name):
            load_trace(str(path))


def test_remote_files_are_read_through_fsspec(text):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://run/rank_0.json.gz", "wb") as file:
        file.write(gzip.compress(text))
    assert len(load_trace("memory://run/rank_0.json.gz").events) == 112
    with pytest.raises(InputError, match="rank_9"):
        load_trace("memory://run/rank_9.json.gz")


@pytest.mark.parametrize(
    ("path", "asks"), [("s3://bucket/run", "fsspec s3fs (traceops's extra [s3])"), ("https://host/run", "aiohttp")]
)
def test_what_a_store_needs_is_a_command_that_can_be_pasted(monkeypatch, path, asks):
    """It was "pip install fsspec aiohttp, s3fs or gcsfs"."""
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError) as raised:
        filesystem(path)
    assert asks in str(raised.value)
