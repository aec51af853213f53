"""`replace` for structs and dataclasses alike."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def replace(record: T, /, **changes: Any) -> T:
    """The record with these fields changed."""
    change: Any = msgspec.structs.replace if isinstance(record, msgspec.Struct) else dataclasses.replace
    changed: T = change(record, **changes)
    return changed
