"""The few wire types of protocol buffers that a Perfetto trace needs [protobuf.dev, encoding]."""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_WRAP = 1 << 64
_double = struct.Struct("<d").pack
_fixed64 = struct.Struct("<Q").pack


def varint(value: int) -> bytes:
    """An integer as base 128, lowest first; negative ones as two's complement of 64 bits, as int64 asks."""
    if 0 <= value < 128:
        return _SHORT[value]
    value %= _WRAP
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = tuple(bytes((value,)) for value in range(128))


def key(field: int, wire: int) -> bytes:
    """What stands before a field's value."""
    return varint(field << 3 | wire)


def number(field: int, value: int) -> bytes:
    """A field of an integer, bool or enum type."""
    return key(field, _VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return key(field, _FIXED64) + _fixed64(value % _WRAP)


def double(field: int, value: float) -> bytes:
    """A field of type double."""
    return key(field, _FIXED64) + _double(value)


def data(field: int, value: bytes) -> bytes:
    """A field of bytes, or of a message that was encoded."""
    return key(field, _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of text; halves of surrogate pairs, which UTF-8 does not have, become question marks."""
    return data(field, value.encode("utf-8", "replace"))
