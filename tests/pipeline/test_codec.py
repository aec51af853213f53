"""What the codec writes it reads back, and whatever else it is given is a ValueError."""

from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import Struct, field
from numpy.typing import NDArray

from traceops.pipeline.mapping import summary_file
from traceops.pipeline.mapping.summary_file import decode, encode


class Call(Struct, frozen=True):
    op: str
    ranks: tuple[int, ...] | None = None
    sequence: int | None = None


class Everything(Struct, frozen=True):
    times: NDArray[np.int64]
    codes: NDArray[np.uint8]
    shares: NDArray[np.float64]
    calls: tuple[Call | None, ...] = ()
    names: tuple[tuple[str, float], ...] = ()
    kind: Literal["a", "b"] = "a"
    columns: dict[str, list[Any]] | None = None
    buckets: dict[str, NDArray[np.int64]] = field(default_factory=dict)


NONE = np.zeros(0, np.int64)
CALLS = (Call("all_reduce", (0, 1), 7), None, Call("broadcast"))


def everything(times=NONE, **fields):
    return Everything(times, np.arange(3, dtype=np.uint8), np.array([0.1, np.nan]), **fields)


@given(arrays.arrays(np.int64, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)))
def test_every_array_of_integers_comes_back(times):
    again = decode(encode(everything(times)), Everything, {}).times
    assert (again.dtype, again.shape) == (times.dtype, times.shape)
    assert (again == times).all()
    assert again.flags.writeable


@given(
    arrays.arrays(np.int64, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0)), st.integers(0, 63), st.booleans()
)
def test_the_compiled_passes_write_and_read_what_numpy_does(times, bits, growing):
    times = np.asarray(times >> bits)
    value = everything(times.cumsum(axis=0) if growing and times.ndim else times)
    compiled = encode(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary_file, "native", None)
        assert encode(value) == compiled
        plain = decode(compiled, Everything, {}).times
    assert (decode(compiled, Everything, {}).times == plain).all()
    assert (plain == value.times).all()


def test_growing_times_take_little_room():
    times = 1_790_000_000_000_000_000 + np.cumsum(np.arange(1000, dtype=np.int64) % 90)
    assert len(encode(everything(times))) < 1000 * 1.5


def test_all_kinds_of_values_come_back():
    value = everything(
        calls=CALLS,
        names=(("ä\n", 0.5), ("", -0.0)),
        kind="b",
        columns={"a": [1, 2.5, None, "x", True]},
        buckets={"comm": np.array([[1, 2], [3, 4]])},
    )
    again = decode(encode(value), Everything, {})
    for name in ("calls", "names", "kind", "columns"):
        assert repr(getattr(again, name)) == repr(getattr(value, name))
    assert (again.buckets["comm"] == value.buckets["comm"]).all()
    assert np.array_equal(again.shares, value.shares, equal_nan=True)


def test_equal_parts_are_one_object():
    data = encode(everything(calls=CALLS, names=(("some name", 1.0),)))
    seen = {}
    one, two = (decode(data, Everything, seen, frozenset({Call})) for _ in range(2))
    assert one.calls[0] is two.calls[0]
    assert one.names[0][0] is two.names[0][0]
    assert decode(data, Everything, {}).calls[0] is not one.calls[0]


def test_half_a_surrogate_pair_in_a_name_is_replaced():
    assert decode(encode(everything(names=(("rank_\udcff", 1.0),))), Everything, {}).names == (("rank_?", 1.0),)


def test_what_has_no_word_in_a_file_is_a_mistake_that_shows():
    with pytest.raises(TypeError, match="object"):
        encode(everything(columns={"a": [object()]}))


def packed(**changed):
    return msgspec.msgpack.encode({**msgspec.msgpack.decode(encode(everything(calls=CALLS))), **changed})


@pytest.mark.parametrize(
    "times",
    [
        [[3], "<i8", None, b"\0" * 16],
        [[2], "<i8", None, b"\0" * 24],
        [[-1], "<i8", None, b""],
        [[1 << 60, 0], "<i8", [0], b""],
        [[(1 << 64) - 1, 0], "<i8", None, b""],
        [[1 << 40], "|i1", [0], b""],
        [[1, 1 << 40], "|i1", [0], b""],
        [[], "|i1", [0], b""],
        [[2], "<f8", None, b"\0" * 16],
        [[2], "|O", None, b"\0" * 16],
        [[2], "<i8", ["x"], b"\0" * 8],
        [[2], "<i8", [(1 << 64) - 1], b"\0" * 8],
        [[2], "<i8", None, "text"],
        "text",
        None,
        [],
    ],
)
def test_an_array_that_lies_of_itself_is_refused(times):
    with pytest.raises(ValueError):
        decode(packed(times=times), Everything, {})


@pytest.mark.parametrize(
    "changed",
    [
        {"calls": [{"op": 5}]},
        {"calls": [{"op": "x", "ranks": [True]}]},
        {"calls": [{}]},
        {"calls": 3},
        {"kind": "c"},
        {"names": [["x"]]},
        {"columns": [1]},
        {"buckets": {"a": [1]}},
        {"buckets": {5: None}},
    ],
)
def test_values_of_the_wrong_type_are_refused(changed):
    with pytest.raises(ValueError):
        decode(packed(**changed), Everything, {})


@given(st.binary(max_size=200))
def test_any_other_bytes_are_refused(data):
    with pytest.raises(ValueError):
        decode(data, Everything, {})
