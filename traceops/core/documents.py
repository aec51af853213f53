"""The tool and schema version that every JSON document of ours names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.version import __version__

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
