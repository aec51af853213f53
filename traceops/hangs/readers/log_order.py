"""Whether the lines of a log stand newest first, as stores of logs print them: then no traceback reads right."""

from __future__ import annotations

import re
from itertools import pairwise

NEWEST_FIRST = (
    "has its newest line first: read it oldest first (gcloud logging read --order=asc; where each message is one line, "
    "tac FILE turns it round)"
)
# A time with its second's parts: of whole seconds many lines have the same.
_TIME = re.compile(
    rb"^[^\n\r]{0,60}?\b(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?:Z|[+-]\d\d:?\d\d|\b)", re.MULTILINE
)
_FEWEST = 5  # times that differ from the one before
_SHARE = 0.9


def is_newest_first(head: bytes) -> bool:
    """Whether nearly each time in the lines of a log's begin is before the one above it."""
    times = [(match[1], match[2], (match[3] or b"").ljust(9, b"0")) for match in _TIME.finditer(head)]
    moves = [after < before for before, after in pairwise(times) if after != before]
    return len(moves) >= _FEWEST and sum(moves) >= _SHARE * len(moves) and times[-1] < times[0]
