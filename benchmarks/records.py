"""Tables of records: JSON lines whose patterns may name what verdicts have in common, as {CLEAN} (patterns.json)."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
_NAME = re.compile(r"\{([A-Z][A-Z_0-9]+)\}")


@cache
def patterns() -> dict[str, str]:
    """The patterns that several records share, by name: the place to follow when a verdict is worded anew."""
    text = Path(__file__).with_name("patterns.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, str])


def read_records(path: Path, kind: type[T]) -> tuple[T, ...]:
    """One `kind` per line of the file. Raises KeyError for a name that patterns.json lacks, or msgspec's errors."""
    decoder = msgspec.json.Decoder(kind)

    def pattern(found: re.Match[str]) -> str:
        return json.dumps(patterns()[found[1]], ensure_ascii=False)[1:-1]

    with path.open(encoding="utf-8") as lines:
        return tuple(decoder.decode(_NAME.sub(pattern, line)) for line in lines)
