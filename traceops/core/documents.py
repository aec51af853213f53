"""What every JSON document of ours shares: the tool and schema version it names, unusable files, no secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from traceops.core.redaction import redact_text, redact_value
from traceops.version import __version__

T = TypeVar("T")

# Of report.json, hang.json, compare.json and doctor.json: what version 2 changed is in docs/formats.md.
SCHEMA_VERSION = 2
READABLE_VERSIONS = (1, 2)
SchemaVersion = Annotated[int, Meta(extra_json_schema={"const": SCHEMA_VERSION})]


class Tool(msgspec.Struct, frozen=True):
    """What wrote the document."""

    name: Annotated[str, Meta(extra_json_schema={"const": "traceops"})] = "traceops"
    version: str = __version__


# A file that could not be used, as our JSON documents list it.


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
