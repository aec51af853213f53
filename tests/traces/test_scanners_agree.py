"""The compiled scanner and pure Python give the same columns of whatever bytes: real, generated and damaged."""

import random
from pathlib import Path

import numpy as np
import pytest
from drawn import examples
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st
from json_reference import read_bytes
from trace_text import document, event

from traceops.traces.event_columns import NARROW, WIDE, native_columns
from traceops.traces.model import LEAST_FRAME_NS

DATA = Path(__file__).resolve().parents[1] / "data"
TRACES = sorted(DATA.rglob("*.json.gz"))
compiled_scanner = pytest.mark.skipif(native_columns(False) is None, reason="the compiled scanner was not built")
TEXTS = ("names", "cats", "shapes", "type_lists", "stride_lists", "concrete_lists", "comm")

# What breaks readers of JSON, put between and in place of the bytes of real events.
NASTY = [
    b'"', b"\\", b"\\u", b"\\ud83d", b"\\ud83d\\ude00", b"\\udc00", b"\\\\ud83d\\ude00",
    b"\\x", b"\\/", b"\\b", b"{", b"}",
    b"[", b"]", b",", b":", b"}, {", b'},\n {\n "', b"null", b"nul", b"true", b"NaN", b"-nan", b"inf",
    b"-Infinity", b"01", b"-", b"-0", b"1.", b".5", b"1e5", b"1E+999", b"1e-7", b"9" * 19, b"9" * 30,
    b"123456789012345678.25", b"0.0005", b"2.99951", b"8796093022208.123", b"4503599627370496.5", b"\x00",
    b"\x1f", b"\x7f", b"\x80", b"\xc3", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x9a\x80", b"\xff",
    b"\xef\xbb\xbf", b"\xe2\x80\xa8", b"\t", b"\r\n", b"\x0b", b'"ph": "X"', b'"ph": "i"', b'"ts": 7',
    b'"ts": "7.5"', b'"ts": null', b'"dur": -1', b'"dur": 72057594037.927936', b'"args": null',
    b'"dur": 500', b'"dur": 499.9995',
    b'"args": 3', b'"args": {"stream": "7"}', b'"tid": "stream 7"', b'"tid": " 7 "', b'"pid": "1_0"',
    b'"pid": 1.0', b'"pid": true', b'"cat": null', b'"cat": "python_function"', b'"cat": "Trac\\u0065"',
    b'"c\\u0061t": "kernel"', b'"name": 5', b'"Collective name": "x"', b'"Collective name": null',
    b'"In msg nelems": "12"', b'"Input Dims": [[1 ,2]]', b'"Input Dims": null',
    b'"Input type": ["float"]', b'"Input Strides": [[2, 1]]', b'"Concrete Inputs": ["", "[0, 1]"]',
    b'"External id": "12"', b'"External id": 1.5', b'"Sequence number": 4',
    b'"bytes": 64', b'"bytes": [64]', b'"grid": [1, 2, 3]',
    b'"Process Group Ranks": "[0, 1, ...]"', b'"stream": 1e3', b'"correlation": "a"', b"[" * 70 + b"]" * 70,
    b'{"a":' * 20 + b"1" + b"}" * 20, b'"' + b"k" * 300 + b'"',
]  # fmt: skip


def assert_same(load, data, chunk=None):
    compiled, plain = load(data, chunk, scanner="compiled"), load(data, chunk, scanner="plain")
    assert (compiled.damage, compiled.meta) == (plain.damage, plain.meta)
    one, other = compiled.events, plain.events
    for texts in TEXTS:
        assert getattr(one, texts) == getattr(other, texts), texts
    for column in (*WIDE, *NARROW):
        values, expected = getattr(one, column), getattr(other, column)
        assert values.dtype == expected.dtype, column
        np.testing.assert_array_equal(values, expected, column)
    assert compiled.frames.names == plain.frames.names
    for column in ("ts", "dur", "tid", "name"):
        values, expected = (getattr(trace.frames, column) for trace in (compiled, plain))
        np.testing.assert_array_equal(values, expected, column)


@compiled_scanner
@pytest.mark.parametrize("path", TRACES, ids=lambda path: str(path.relative_to(DATA)).split(".")[0])
def test_on_real_traces(load, path):
    assert_same(load, read_bytes(path))


@compiled_scanner
@pytest.mark.parametrize("path", [p for p in TRACES if p.stat().st_size < 100_000], ids=lambda p: p.parent.name)
def test_on_real_traces_with_damage(load, path):
    text = read_bytes(path)
    start = max(text.find(b'"traceEvents"'), 0)
    text = text[: start + 40_000]
    for seed in range(12):
        chosen = random.Random(seed)
        damaged = bytearray(text)
        for _ in range(chosen.choice((1, 3, 10))):
            at = chosen.randrange(start, len(damaged))
            damaged[at : at + chosen.choice((0, 1, 5, 400))] = chosen.choice(NASTY)
        assert_same(load, bytes(damaged), chosen.choice((None, 1000)))


values = st.sampled_from(
    ["1", "-1", "0", "-0", "null", "true", '""', '"7"', '"-7"', '"x7"', '" 7"', '"7_0"', '"+7"', '"é"',
     r'"\u0037"', "1.0", "1e2", "123456789012345678", "1234567890123456789", "4611686018427387904",
     "-4611686018427387905", "[]", "{}", "[1, [2]]"]
)  # fmt: skip
time = st.builds(
    "{}.{:0{}}".format,
    st.integers(0, 2**24) | st.integers(2**42, 2**44) | st.integers(0, 2**51),
    st.integers(0, 999) | st.integers(0, 10**9),
    st.sampled_from([3, 3, 4, 6, 12]),
)
times = time | st.sampled_from(
    ["null", '"5"', '"x"', "1e3", "-3.25", "NaN", "-Infinity", "1e999", "2305843009213693.951", "9e18", "0.0005",
     "0.0015", "-0.0005", "9007199254740992", "9007199254740993.5", "9999999999999999.9999", "99999999999999999"]
)  # fmt: skip
names = st.sampled_from(
    ['"gloo:all_reduce"', '"nccl:x"', '"größe"', r'"a\"b\\c\/\n\u00e9\ud83d\ude80\udbff\udfff"', r'"\ud800"', '""', "5"]
)
phases = st.sampled_from(['"i"', '"M"', r'"\u0058"', "null"])
cats = st.sampled_from(['"cpu_op"', '"python_function"', '"Trace"', "null", "4", r'"cpu\u005fop"'])
choices = {"name": names, "ts": times, "dur": times, "pid": values, "tid": values, "ph": phases, "cat": cats}
usual = {"name": '"k"', "ts": "12.5", "dur": "2.25", "pid": "1", "tid": "2", "ph": '"X"', "cat": '"kernel"'}

shapes = st.sampled_from(["[[1, 2], []]", "[[1,2]]", "[ ]", "null", '"text"', '[["a"]]', "[[3,[4, 5]]]", "7"])
texts = st.sampled_from(['"allreduce"', "null", "3", '"[0, 1]"', "[1, 0]", '"[0, ...]"', '"é"'])
fields = st.one_of(
    st.tuples(st.sampled_from(["stream", "correlation", "In msg nelems", "Group size", "Seq", "other"]), values),
    st.tuples(st.sampled_from(["External id", "Sequence number"]), values),
    st.tuples(st.sampled_from(["Input Dims", "Input type", "Input Strides", "Concrete Inputs"]), shapes),
    st.tuples(st.sampled_from(["Collective name", "dtype", "Process Group Ranks"]), texts),
)


@st.composite
def events(draw):
    """Mostly usual events: only where the compiled scanner reads one itself can the two disagree."""
    odd = draw(st.lists(st.sampled_from(sorted(choices)), max_size=2))
    parts = [f'"{key}": {draw(choices[key]) if key in odd else value}' for key, value in usual.items()]
    parts += [f'"{key}": {draw(time)}' for key in ("ts", "dur") if draw(st.booleans())]  # the last one counts
    if draw(st.booleans()):
        arguments = draw(st.lists(fields, max_size=3))
        parts.append('"args": {' + ", ".join(f'"{key}": {value}' for key, value in arguments) + "}")
    parts = draw(st.permutations(parts))
    if draw(st.integers(0, 9)) == 0:
        parts.pop()
    return "{" + draw(st.sampled_from([", ", ",", " ,\n"])).join(parts) + "}"


@compiled_scanner
@pytest.mark.slow
@given(st.lists(events(), min_size=1, max_size=6), st.sampled_from([",\n  ", ",", " , ", " ", ",,"]), st.booleans())
@example(["5", "[]", "null", '"x"', "{}", event()], ", ", False)
@examples(600, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_on_generated_events(load, texts, separator, absolute):
    first = [event(ts="1712195495406752.797")] if absolute else []
    assert_same(load, document([*first, *texts, event()], separator))


@compiled_scanner
@pytest.mark.slow
@given(
    st.lists(st.sampled_from(NASTY) | st.binary(max_size=6), max_size=8),
    st.integers(0, 10**6),
    st.sampled_from([None, 7, 64]),
)
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_on_bytes_put_into_events(load, pieces, seed, chunk):
    data = bytearray(
        document([event(name="é"), event(args='{"Input Dims": [[4]], "a": {"b": [1, "x"]}}'), event()] * 2).encode()
    )
    chosen = random.Random(seed)
    for piece in pieces:
        at = chosen.randrange(45, len(data))
        data[at : at + chosen.choice((0, 0, 1, 9))] = piece
    assert_same(load, bytes(data), chunk)


# Python frames that last long are kept beside the activities, by either scanner alike.


KERNEL = event()
LONG = event("train.py(12): collate", "python_function", "10.5", "500", "{}")
SHORT = event("train.py(30): step", "python_function", "11", "499.999", "{}")


@pytest.mark.usefixtures("either_scanner")
@pytest.mark.parametrize("chunk", [None, 100])
def test_long_frames_are_kept_and_no_activity_changes(load, chunk):
    later = event("nn.Module: Linear_0", "python_function", "600.001", "7500.25", "{}")
    trace = load(document([LONG, KERNEL, SHORT, later, LONG]), chunk)
    frames = trace.frames
    assert [frames.names[number] for number in frames.name] == [
        "train.py(12): collate", "nn.Module: Linear_0", "train.py(12): collate",
    ]  # fmt: skip
    assert frames.ts.tolist() == [10_500, 600_001, 10_500]
    assert frames.dur.tolist() == [LEAST_FRAME_NS, 7_500_250, LEAST_FRAME_NS]
    assert frames.tid.tolist() == [2, 2, 2]
    assert trace.meta.with_stack
    assert trace.events.names == ("k",)
    assert trace.events.index.tolist() == [1]  # counts events of all kinds


@pytest.mark.usefixtures("either_scanner")
def test_times_beyond_a_float_are_exact(load):
    frame = event("a.py(1): f", "python_function", "8796093022208.123", "600.5", "{}")
    trace = load(document([event(ts="8796093022208.123"), frame]))
    assert trace.frames.ts.tolist() == [8_796_093_022_208_123] == trace.events.ts.tolist()
    assert trace.frames.dur.tolist() == [600_500]


@pytest.mark.usefixtures("either_scanner")
@pytest.mark.parametrize(
    "frame",
    [
        SHORT,
        LONG.replace('"ph": "X"', '"ph": "B"'),
        LONG.replace('"ts": 10.5', '"ts": "later"'),
        LONG.replace('"dur": 500', '"dur": null'),
        LONG.replace('"dur": 500', '"dur": -500'),
        LONG.replace('"dur": 500', '"dur": 1e18'),
    ],
)
def test_what_is_short_or_has_no_time_is_left_out(load, frame):
    trace = load(document([KERNEL, frame]))
    assert len(trace.frames) == 0
    assert trace.meta.with_stack
    assert trace.damage == ()


def test_a_trace_without_stacks_has_none(load):
    trace = load(document([KERNEL]))
    assert len(trace.frames) == 0 == len(trace.frames.names)
    assert trace.frames.ts.dtype == np.int64
