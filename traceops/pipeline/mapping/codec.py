"""Frozen dataclasses of numbers, text, tuples and arrays as MessagePack, read back by their types."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

_LEAVES = frozenset({int, float, bool, bytes, type(None), np.ndarray})  # nothing in them is shared or replaced
_NARROWER = (np.dtype(np.int8), np.dtype(np.int16), np.dtype(np.int32))


class _PackedArray(msgspec.Struct, array_like=True):
    """An array: `data` in C order in `dtype`, differences to the row before if there is a `first` row."""

    shape: tuple[int, ...]
    dtype: str
    first: tuple[int, ...] | None
    data: bytes


def encode(value: Any) -> bytes:
    """A dataclass as bytes. Raises TypeError where it holds what MessagePack has no word for."""
    try:
        return _encoder().encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, from a file's name for instance
        return _encoder().encode(_replace(copy.deepcopy(value), _well_formed))


def decode(data: bytes | memoryview, kind: type[T], seen: dict[Any, Any], shared: frozenset[type] = frozenset()) -> T:
    """What `encode` made of a `kind`, every value checked against its type.

    Text and instances of the `shared` types that equal one in `seen` are that one: many decoded with one
    `seen` take little memory. Raises ValueError where the bytes are anything else.
    """
    try:
        value = _decoder(cast(Any, kind)).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    unpacked: T = _replace(value, seen.setdefault, shared)
    return unpacked


@functools.cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_pack)


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_unpack)


def _pack(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _pack_array(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written to a summary")


def _pack_array(array: NDArray[Any]) -> _PackedArray:
    """In the narrowest integers that hold it, or else its differences along the first axis: times only grow."""
    if array.dtype == np.int64 and array.ndim and array.size:
        low, high = int(array.min()), int(array.max())
        for dtype in _NARROWER:
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return _PackedArray(array.shape, dtype.str, None, array.astype(dtype).tobytes())
        steps = np.diff(array, axis=0)  # wraps around where it overflows, and so does the sum
        low, high = (int(steps.min()), int(steps.max())) if steps.size else (0, 0)
        for dtype in _NARROWER:
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                first = tuple(array[0].ravel().tolist())
                return _PackedArray(array.shape, dtype.str, first, steps.astype(dtype).tobytes())
    return _PackedArray(array.shape, array.dtype.str, None, array.tobytes())


def _unpack(kind: type, packed: Any) -> Any:
    if get_origin(kind) is not np.ndarray:
        raise NotImplementedError(f"{kind} in a summary")
    dtype: np.dtype[Any] = np.dtype(get_args(get_args(kind)[1])[0])
    array = msgspec.convert(packed, _PackedArray)
    if array.dtype not in _stored_as(dtype) or (array.first is not None and not array.shape):
        raise ValueError(f"an array of {array.dtype!r:.20} where {dtype} belongs")
    stored = np.dtype(array.dtype)
    shape = array.shape if array.first is None else (array.shape[0] - 1, *array.shape[1:])
    if min(shape, default=0) < 0 or math.prod(shape) * stored.itemsize != len(array.data):
        raise ValueError("an array of another size than it says")
    values = np.frombuffer(array.data, stored).reshape(shape).astype(dtype)
    if array.first is None:
        return values
    first = np.array(array.first, dtype=dtype).reshape(1, *array.shape[1:])
    return np.concatenate((first, values)).cumsum(axis=0, dtype=dtype)


def _stored_as(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return (dtype.str, *(narrow.str for narrow in _NARROWER)) if dtype == np.int64 else (dtype.str,)


def _replace(value: Any, known: Callable[[Any, Any], Any], shared: frozenset[type] = frozenset()) -> Any:
    """The value with `known(part, part)` in place of each text, tuple of integers and instance of the shared types.

    Dataclasses are changed in place: nobody else has them yet.
    """
    kind: Any = type(value)
    if kind in _LEAVES:
        return value
    if kind is str or (kind is tuple and value and type(value[0]) is type(value[-1]) is int):
        return known(value, value)
    if kind is tuple or kind is list:
        return kind([_replace(item, known, shared) for item in value])
    if kind is dict:
        return {known(key, key): _replace(item, known, shared) for key, item in value.items()}
    if kind in shared and (same := known(value, value)) is not value:
        return same
    for name in _field_names(kind):
        item = getattr(value, name)
        own = type(item)
        if own not in _LEAVES:
            object.__setattr__(value, name, known(item, item) if own is str else _replace(item, known, shared))
    return value


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    if not is_dataclass(kind):  # where the types allow anything, a file may have what we never write
        raise ValueError(f"a value of the kind {kind.__name__} is in it")
    return tuple(field.name for field in fields(kind))


def _well_formed(part: Any, _: Any) -> Any:
    return part.encode("utf-8", "replace").decode() if isinstance(part, str) else part
