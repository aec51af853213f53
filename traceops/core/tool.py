"""The tool and schema version that every JSON document of ours names."""

from __future__ import annotations

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
