"""A damaged file gives what is readable in it and says what is not; damage costs only itself."""

import json

import msgspec
import numpy as np
import pytest
from drawn import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from json_reference import loaded_rows
from trace_text import document, event

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.pipeline.analyze import analyze
from traceops.traces.event import decode_events
from traceops.traces.kineto import load_trace
from traceops.traces.scan import MORE

pytestmark = pytest.mark.usefixtures("either_scanner")


@pytest.mark.parametrize(
    "data",
    [
        b"", b" \n ", b"\x1f\x8b", b"hello", b"\x00" * 100, b"<html></html>", b"{}", b"null", b"{", b"[", b"{[}",
        b'{"a": 1}', b'{"traceEvents": null}', b'{"traceEvents": {"ph": "X"}}', b"\xff\xfe{\x00}\x00", b"PK\x03\x04",
        b'{"traceEvents"', b'{"traceEvents": [', b'{"traceEvents": [{', b"[" * 200_000, b'{"a":' * 200_000,
        b'{"traceEvents": [' + b"[" * 200_000, b'{"traceEvents": [' + b'{"a":' * 200_000,
    ],
    ids=lambda data: repr(data[:28]),
)  # fmt: skip
def test_what_is_no_trace_gives_no_events_and_says_so(load, data):
    trace = load(data)
    assert len(trace.events) == 0
    assert trace.damage


def test_each_cut_keeps_the_whole_events_before_it(load):
    events = [event(name=f"k{i}", args='{"list": [{"a": 1}, {"b": "}, {"}], "stream": 1}') for i in range(4)]
    text = document(events)
    whole = loaded_rows(load(text).events)
    ends = [text.index(e) + len(e) for e in events]
    for cut in range(len(text)):
        trace = load(text[:cut])
        complete = sum(end <= cut for end in ends)
        assert loaded_rows(trace.events) == whole[:complete], cut
        if cut <= ends[-1]:
            assert trace.damage, cut


BROKEN = {
    "a missing brace": '{"ph": "X", "name": "x"',
    "a missing quote": '{"ph": "X", "name": "x, "cat": "kernel", "ts": 1, "dur": 1}',
    "no JSON": "garbage",
    "a control character": '{"ph": "X", "name": "a\nb", "cat": "kernel", "ts": 1, "dur": 1}',
    "a bad escape": '{"ph": "X", "name": "C:\\new\\q", "cat": "kernel", "ts": 1, "dur": 1}',
    "an unclosed list": '{"ph": "X", "name": "x", "cat": "kernel", "ts": 1, "dur": 1, "args": {"a": [1, 2}}',
    "an unclosed list of objects": '{"ph": "X", "name": "x", "cat": "kernel", "ts": 1, "dur": 1, "args": {"a": [{}}',
    "a number of 6000 digits": '{"ph": "X", "name": "x", "cat": "kernel", "ts": 1, "dur": %s}' % ("9" * 6000),
    "10,000 lists": '{"ph": "X", "name": "x", "args": {"a": %s}}' % ("[" * 10_000 + "]" * 10_000),
    "a list": "[1, 2]",
    "a time that is a list": event(ts="[1]"),
    "a category that is a list": '{"ph": "X", "name": "x", "cat": ["kernel"], "ts": 1, "dur": 1}',
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("chunk", [1, 64, None])
@pytest.mark.parametrize("separator", [",", ",\n  "])
def test_a_damaged_event_costs_itself_and_at_most_the_next(load, broken, chunk, separator):
    good = [event(name=f"k{i}") for i in range(40)]
    text = document([*good[:20], broken, *good[20:]], separator)
    trace = load(text, chunk)
    names = [row[1] for row in loaded_rows(trace.events)]
    assert [name for name in names if name in ("k20", "x")] in ([], ["k20"])
    assert [name for name in names if name != "k20"] == [f"k{i}" for i in range(40) if i != 20]
    assert any("1 event is" in line for line in trace.damage)


def test_a_megabyte_of_damaged_events_between_good_ones(load):
    good = event()
    for broken in ("{broken}", '{"ph": }', '{"ph": "X", "args": {"l": [{"ph": 1}, ', "},{"):
        text = document([good, *[broken] * (1_000_000 // len(broken)), good, good])
        trace = load(text)
        assert {row[1] for row in loaded_rows(trace.events)} <= {"k", ""}
        assert sum(row[1] == "k" for row in loaded_rows(trace.events)) >= 2
        assert trace.damage


def test_names_of_many_megabytes(load):
    for name in ("n" * 20_000_000, r"},\n  {\n    \"ph\": " * 500_000, "}, {" * 2_000_000):
        trace = load(document([event(), event(name=name), event()]))
        assert (len(trace.events), trace.damage) == (3, ())
        assert len(trace.events.names[1]) == len(json.loads(f'"{name}"'))


@pytest.mark.slow
def test_a_huge_damaged_event_made_of_separators(load):
    junk = '{"ph": "X", "name": ' + "x" + '}, {"ph": ' * 100_000
    trace = load(document([event(), junk, event(), event()], ",\n  "))
    assert len(trace.events) >= 2
    assert trace.damage


def test_separators_nested_in_a_damaged_event_take_no_time_without_end(load):
    for unit in ('{},{"a":[', '{"ph":"i"},{"ph":"i"},{"a":[', '{"b":1},{"b":1},{"a":['):
        junk = '{"ph": "X", "args": {"a": [' + unit * (1_000_000 // len(unit))
        trace = load(document([event(), junk, *[event()] * 1000]))
        assert 900 < len(trace.events) <= 1001  # what lies close behind may be taken for a part of it
        assert trace.damage


@pytest.mark.parametrize("text", ["n", "🚀", r"\n", "}, {", "[", "],", '"}, {"a": ['], ids=repr)
def test_an_event_that_no_memory_could_hold_costs_itself(load, monkeypatch, text):
    monkeypatch.setattr("traceops.traces.scan._BUFFER_LIMIT", 100_000)
    huge = f'{{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "name": "{text * (1_000_000 // len(text))}"}}'
    trace = load(document([event(), huge, event(), event()]), 10_000)
    assert {row[1] for row in loaded_rows(trace.events)} <= {"k", ""}
    assert len(trace.events) >= 2
    assert trace.damage


def test_an_event_given_up_piece_by_piece_is_counted_once(load, monkeypatch):
    monkeypatch.setattr("traceops.traces.scan._BUFFER_LIMIT", 100_000)
    lists = f'{{"args": {{"a": [{",".join(["[]"] * 300_000)}]}}}}'
    objects = '{"a":' * 200_000 + "}" * 200_000
    for huge in (event(name="n" * 1_000_000), event(ts="7" * 1_000_000), lists, objects):
        trace = load(document([event(), huge, event(), "{broken}", event()]), 10_000)
        assert (len(trace.events), trace.damage) == (3, ("2 events are not readable",))


def test_a_file_that_is_damaged_without_end_is_given_up(load, monkeypatch):
    monkeypatch.setattr("traceops.traces.scan._HOPELESS", -(1 << 26) + 100_000)
    for junk in ("[]", '{"ph": }'):
        trace = load(document([event(), *[junk] * 100_000, event()]))
        assert trace.events.ts.tolist() == [1500]
        assert any("was not read" in line for line in trace.damage)


def test_empty_events_are_read_as_they_come(load):
    decode = msgspec.json.Decoder(list[dict]).decode
    assert decode_events(decode, b"{},{ },{}, {", False) == ([{}, {}], 7, MORE)


def test_numbers_that_are_none(load):
    times = dict.fromkeys(["NaN", "Infinity", "-Infinity", "nan", "inf", "-inf", "null", '"x"', "1e400", "[]"], 0)
    times |= {'"4.5"': 4500, "4": 4000, "4.0e0": 4000, '"4"': 4000}
    for written, ns in times.items():
        for ts, dur in ((written, "2.0"), ("2.0", written)):
            trace = load(document([event(name="a"), event(name="b", ts=ts, dur=dur), event(name="c")]))
            rows = loaded_rows(trace.events)
            assert [row[1] for row in rows] == (["a", "b", "c"] if ns else ["a", "c"]), (ts, dur)
            if ns:
                assert ns in rows[1][3:5]
                assert not trace.damage
            elif (ts, dur) != ("2.0", "null"):  # an event without a duration is no activity
                assert trace.damage, (ts, dur)


def test_an_infinite_bandwidth_costs_nothing(load):
    for written in ("inf", "-inf", "nan", "-nan", "NaN", "Infinity"):
        args = f'{{"stream": 7, "memory bandwidth (GB/s)": {written}, "correlation": 3}}'
        trace = load(document([event(), event(args=args), event(args=args), event()]))
        assert (trace.damage, trace.events.stream.tolist()) == ((), [7] * 4)


def test_many_numbers_that_are_none_in_one_event(load):
    for written in ("inf", "-inf", "nan", "-nan"):
        many = ", ".join([f'{written}, "{written} \\" {written}"'] * 10_000)
        args = f'{{"a": [{many}], "stream": {written}, "correlation": 3}}'
        good = [event(name=f"{written} {i}") for i in range(20)]
        trace = load(document([event(args=args), *good, event(args=args), event()]))
        assert trace.damage == ()
        assert [row[1] for row in loaded_rows(trace.events)] == ["k", *(f"{written} {i}" for i in range(20)), "k", "k"]
        assert trace.events.correlation.tolist() == [3] * 23
        assert trace.events.stream.tolist() == [-1, *[7] * 20, -1, 7]


def test_negative_durations_are_left_out_and_counted(load):
    trace = load(document([event(), event(dur="-0.001"), event(dur="0")]))
    assert trace.events.dur.tolist() == [2250, 0]
    assert trace.damage == ("1 event is without a valid time",)


@pytest.mark.parametrize("exact", [False, True])
def test_times_beyond_any_clock_are_left_out_and_never_wrap(load, exact):
    first = "1712195495406752.797" if exact else "1.5"
    huge = ["4e15", "9e15", "8999999999999999", "1e18", "-9e15", "1e300", "9" * 25, "9" * 400]
    lengths = [t for t in huge if "-" not in t] + ["100000000000000"]  # three years
    events = [event(ts=first), *[event(ts=t) for t in huge], *[event(dur=t) for t in lengths]]
    text = '{"baseTimeNanoseconds": 1790857026000000000, ' + document(events)[1:]
    trace = load(text)
    assert len(trace.events) == 1
    assert (trace.events.end >= trace.events.ts).all()
    assert trace.damage == (f"{len(events) - 1} events are without a valid time",)


def test_fields_of_odd_types_cost_at_most_what_they_say(load):
    odd = {
        '{"stream": "7", "correlation": "3"}': (7, 3), '{"stream": 7.0, "correlation": 3.0}': (7, 3),
        '{"stream": [7], "correlation": 3}': (-1, 3), '{"stream": null, "correlation": null}': (-1, -1),
        '{"stream": 7, "correlation": 3, "dtype": 5, "Group size": "x"}': (7, 3), "null": (-1, -1), "[]": (-1, -1),
        '"text"': (-1, -1), f'{{"stream": {10**30}, "correlation": {10**30}}}': (-1, -1),
        '{"stream": true, "correlation": 3}': (-1, 3),
    }  # fmt: skip
    for args, expected in odd.items():
        trace = load(document([event(), event(args=args), event()]))
        assert len(trace.events) == 3, args
        assert (trace.events.stream[1], trace.events.correlation[1]) == expected, args
        assert trace.events.stream.tolist()[::2] == [7, 7]


@pytest.mark.parametrize(
    "field", ['"pid": 1.5', '"pid": null', '"pid": [1]', '"tid": "x"', '"tid": 1e30', '"name": 5', '"name": null',
              '"name": {"a": 1}', '"pid": true', '"tid": 18446744073709551615'],
)  # fmt: skip
def test_an_event_with_a_field_of_odd_type_keeps_its_time(load, field):
    odd = f'{{"ph": "X", "cat": "kernel", "ts": 1, "dur": 2, {field}, "args": {{"stream": 7}}}}'
    trace = load(document([event(), odd, event()]))
    assert trace.events.dur.tolist() == [2250, 2000, 2250]
    assert trace.events.stream.tolist() == [7, 7, 7]


def test_collective_arguments_of_odd_sizes(load):
    for dims in ("[[1e30]]", "[[99999999999, 99999999999, 99999999999]]", f"[[{10**30}]]", "[[-1, 5]]", "{}", '"x"',
                 "[" * 600 + "]" * 600, "[[0, 4]]", "[[NaN]]"):  # fmt: skip
        trace = load(document([event(name="gloo:all_reduce", cat="user_annotation", args=f'{{"Input Dims": {dims}}}')]))
        assert len(trace.events) == 1, dims
        for args in trace.events.comm.values():
            assert args.elements_in is None or 0 < args.elements_in < 2**63, dims
    comm = f'"Collective name": "allreduce", "In msg nelems": {10**30}, "Seq": {10**25}'
    comm = f'{{{comm}, "Process Group Ranks": "[{10**25}]"}}'
    (args,) = load(document([event(args=comm)])).events.comm.values()
    np.array([args.elements_in or 0, args.sequence or 0, *(args.group_ranks or ())], dtype=np.int64)


def test_text_that_no_file_could_hold_is_replaced(load):
    trace = load(document([event(), event(name=r"a\ud800b\udc00c\ud83d\ude80"), event()]))
    assert trace.events.names[1] == "a\ufffdb\ufffdc🚀"
    trace = load(document([event(), event(name="a@b"), event()]).encode().replace(b"@", b"\xff\xc3"))
    assert (trace.events.names[1], trace.damage) == ("a\ufffd\ufffdb", ())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\\ud83d\ude00", "\\ud83d\ufffd"),  # the first backslash is itself escaped: what follows is half a pair
        (r"\\\ud83d\ude00", "\\😀"),
        (r"\ud83d\\ude00", "\ufffd\\ude00"),
        (r"\ude00\ud83d\ud83d\ude00\ude00", "\ufffd\ufffd😀\ufffd"),
        (r"\"\ud83d", '"\ufffd'),
    ],
)
@pytest.mark.parametrize("chunk", [None, 7])
def test_half_a_pair_of_surrogates_beside_escapes(load, either_scanner, written, read, chunk):
    whole = event(name="whole")
    text = document([whole, event(name=written), whole])
    text = text[:-1] + f', "note": "{written}", "distributedInfo": {{"rank": 3}}}}'
    trace = load(text, chunk)
    assert [trace.events.names[n] for n in trace.events.name] == ["whole", read, "whole"]
    assert (trace.meta.rank, trace.damage) == (3, ())


def test_the_last_of_duplicate_keys_counts(load):
    trace = load(document([event()[:-1] + ', "name": "second", "ts": 9}']))
    assert (trace.events.names, trace.events.ts.tolist()) == (("second",), [9000])


def test_metadata_of_odd_types_or_damaged_does_not_cost_the_events(load):
    for meta in (
        '"distributedInfo": [1]', '"distributedInfo": {"rank": "x", "world_size": 2.5, "pg_config": 3}',
        '"deviceProperties": [[]], "host_name": 7', '"baseTimeNanoseconds": -5', '"baseTimeNanoseconds": 1e30',
        f'"baseTimeNanoseconds": {10**30}', '"distributedInfo": {"pg_config": [{"ranks": [1, "x"]}, 5]}',
    ):  # fmt: skip
        for text in (f'{{{meta}, "traceEvents": [{event()}]}}', f'{{"traceEvents": [{event()}], {meta}}}'):
            trace = load(text)
            assert (trace.damage, trace.events.ts.tolist(), trace.meta.rank) == ((), [1500], None), text
    for broken in ('"host": broken', '"a": %s' % ("9" * 6000), '"a": %s' % ("[" * 100_000)):
        for text in (f'{{{broken}, "traceEvents": [{event()}]}}', f'{{"traceEvents": [{event()}], {broken}}}'):
            trace = load(text)
            assert trace.events.ts.tolist() == [1500]
            assert any("metadata" in line for line in trace.damage)


def test_a_windows_path_as_torch_writes_it_is_no_damage(load):
    """'The trace is damaged: check the disk's free space' was said of each trace from Windows."""
    trace = load(
        rf'{{"traceEvents": [{event()}], "traceName": "C:\Users\me\trace.json", "distributedInfo": {{"rank": 3}}}}'
    )
    assert (trace.damage, trace.meta.rank) == ((), 3)


@examples(200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 3000), junk=st.binary(max_size=30), removed=st.integers(0, 40), chunk=st.sampled_from([11, 500])
)
def test_bytes_overwritten_anywhere_leave_events_elsewhere_alone(load, at, junk, removed, chunk):
    names = [f"kernel_{i}" for i in range(25)]
    data = document([event(name=name) for name in names]).encode()
    broken = data[:at] + junk + data[at + removed :]
    found = {row[1] for row in loaded_rows(load(broken, chunk).events)}
    touched = (at - 130, at + removed + 260)  # the events there, one before and one behind
    if at > 60:  # in front of it stands the header
        safe = {n for n in names if not touched[0] < data.index(n.encode() + b'"') < touched[1]}
        if b"]" not in junk and b'"' not in junk:  # an early end of the list ends the events, in any reader
            assert safe <= found


@pytest.mark.parametrize(
    ("name", "head", "said"),
    [
        ("trace.json", b"\x80\x04\x95}(\x8c\x08segments", "read it with traceops memory"),
        ("snapshot.html", b"<html>import {add_local_files} from 'MemoryViz.js'", "with traceops memory"),
        ("trace.json", b"SQLite format 3\x00", "as nsys exports; read it with nsys stats"),
        ("run.nsys-rep", b"\x01\x02", "read it with nsys stats"),
        ("run.qdrep", b"\x01\x02", "read it with nsys stats"),
    ],
    ids=["snapshot", "its page", "nsys's database", "nsys", "old nsys"],
)
def test_another_tools_file_is_named_with_the_way_on(tmp_path, name, head, said):
    path = tmp_path / name
    path.write_bytes(head + bytes(200))
    for read in (analyze, diagnose):
        with pytest.raises(InputError, match=said):
            read(str(path))


def test_the_gpus_name_is_read_under_both_keys(tmp_path):
    for key in ("deviceProperties", "computeProperties"):
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({key: [{"id": 0, "name": "NVIDIA A100"}], "traceEvents": []}))
        assert load_trace(str(path)).meta.device == "NVIDIA A100"
