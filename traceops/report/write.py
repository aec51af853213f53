"""Rows and JSON as our files hold them."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
import numpy as np

# Control characters that JSON need not escape, and that steer a terminal all the same.
_LATE_CONTROL = re.compile(b"\x7f|\xc2[\x80-\x9f]")

Row = TypeVar("Row", bound=msgspec.Struct)


def copied(kind: type[Row], record: Any, **more: Any) -> Row:
    """A row of `kind` with what `record` calls by the same names, and more."""
    shared = {name: getattr(record, name) for name in kind.__struct_fields__ if hasattr(record, name)}
    return kind(**(shared | more))


def json_text(document: Any) -> str:
    """A struct, dataclass or plain objects as indented JSON; null for what is no finite number."""
    return json_document(document).decode()


def json_document(document: Any) -> bytes:
    """The same in UTF-8, as files hold it."""
    text = msgspec.json.format(json_bytes(document), indent=1)
    return _LATE_CONTROL.sub(lambda found: b"\\u%04x" % found[0][-1], text) + b"\n"


def json_bytes(document: Any) -> bytes:
    """JSON in one line."""
    try:
        return msgspec.json.encode(document, enc_hook=_plain)
    except UnicodeEncodeError:  # halves of a surrogate pair, from a name in a trace
        return msgspec.json.encode(_encodable(msgspec.to_builtins(document, enc_hook=_plain)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")


def _encodable(value: Any) -> Any:
    """With question marks for what UTF-8 cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    return value
