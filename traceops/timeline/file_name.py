"""What a timeline's file is called: a part of a run has a name of its own, beside the whole one."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from traceops.core.rank_text import runs_of
from traceops.timeline.around import finding_name

FILE_NAME = "timeline.pftrace.gz"
_STEM, _ENDING = "timeline", ".pftrace.gz"
_LONGEST = 60  # characters of a list


def file_name(around: str | None, ranks: Sequence[int] | None, steps: Sequence[int] | None) -> str:
    """'timeline.TO-S001.pftrace.gz', 'timeline.ranks_0_4-7.steps_5.pftrace.gz'."""
    parts = [] if around is None else [finding_name(around)]
    parts += [] if ranks is None else [f"ranks_{_listed(ranks)}"]
    parts += [] if steps is None else [f"steps_{_listed(steps)}"]
    return f"{'.'.join((_STEM, *parts))}{_ENDING}"


def _listed(numbers: Sequence[int]) -> str:
    runs = runs_of(numbers)
    text = "_".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return text if len(text) <= _LONGEST else f"{len(set(numbers))}_{zlib.crc32(text.encode()):08x}"
