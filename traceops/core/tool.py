"""Who wrote a document, as every JSON document of ours says."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from traceops.version import __version__


class Tool(msgspec.Struct, frozen=True):
    """What wrote the document."""

    name: Annotated[str, Meta(extra_json_schema={"const": "traceops"})] = "traceops"
    version: str = __version__
