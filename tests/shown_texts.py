"""The texts in a document, in its blocks, or in a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec


def texts(value: Any, but: tuple[type, ...] = ()) -> Iterator[str]:
    """Every text in it, at any depth. but: what is left out with all that it holds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, but):
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item, but)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item, but)
    elif isinstance(value, msgspec.Struct):
        yield from texts([getattr(value, name) for name in value.__struct_fields__], but)
    elif is_dataclass(value):
        yield from texts([getattr(value, field.name) for field in fields(value)], but)
