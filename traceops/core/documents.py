"""What every JSON document of ours shares: tool, schema version, meanings, unusable files, no secrets, its text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from traceops.core.redaction import redact_text, redact_value
from traceops.version import __version__
from traceops.words.catalogue import texts

T = TypeVar("T")

# Of report.json, hang.json, compare.json and doctor.json: what version 2 changed is in docs/formats.md.
SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
SchemaVersion = Annotated[int, Meta(extra_json_schema={"const": SCHEMA_VERSION})]


class Tool(msgspec.Struct, frozen=True):
    """What wrote the document."""

    name: Annotated[str, Meta(extra_json_schema={"const": "traceops"})] = "traceops"
    version: str = __version__


def meanings(kind: type) -> dict[str, str]:
    """What the fields of a document's record mean, by name, as words/fields.ini has it; a base's fields are its own."""
    return {name: said for one in reversed(kind.__mro__) for name, said in texts("fields", one.__name__).items()}


class FileProblem(msgspec.Struct, frozen=True):
    """A file that could not be used, or only in part, and why."""

    file: str
    problem: str


def file_problems(problems: Iterable[tuple[str, str]]) -> tuple[FileProblem, ...]:
    """(file, what is wrong with it) as a document lists them."""
    return tuple(FileProblem(file, problem) for file, problem in problems)


def redact_fields(value: T, *names: str) -> T:
    """The same with every text in it redacted, in these fields only where some are named; itself if nothing changed."""
    return cast(T, _redacted(value, names))


def _redacted(value: Any, names: tuple[str, ...] = ()) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, msgspec.Struct):
        changed = _changed(value, names or value.__struct_fields__)
        return msgspec.structs.replace(value, **changed) if changed else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = _changed(value, names or tuple(field.name for field in dataclasses.fields(value)))
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        return _kept({key: redact_value(item, key) if isinstance(item, str) else _redacted(item)
                      for key, item in value.items()}, value)  # fmt: skip
    if type(value) in (tuple, list):
        if value and all(isinstance(item, str) for item in value):
            return _kept(type(value)(redact_value(value)), value)
        made = type(value)(map(_redacted, value))
        return value if all(new is old for new, old in zip(made, value, strict=True)) else made
    return value


def _changed(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    made = {name: (getattr(value, name), _redacted(getattr(value, name))) for name in names}
    return {name: new for name, (old, new) in made.items() if new is not old and new != old}


def _kept(made: Any, before: Any) -> Any:
    return before if made == before else made


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
        return msgspec.json.encode(well_formed(msgspec.to_builtins(document, enc_hook=_plain)))


def _plain(value: Any) -> Any:
    if callable(item := getattr(value, "item", None)):  # a number of NumPy
        return item()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")


def well_formed(value: Any) -> Any:
    """The same with question marks for halves of surrogate pairs: file names may hold them, and UTF-8 may not."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {well_formed(str(key)): well_formed(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [well_formed(item) for item in value]
    return value
