"""Ranks that a log has lines of, whatever they say: who printed a step is not without any evidence."""

from __future__ import annotations

import re
from collections.abc import Collection

from traceops.hangs.evidence import LogEvent
from traceops.traces.text_lines import blocks

# Only torch's own prefix, '[rank3]:', behind a time or a host at most: it counts the ranks of the job.
_LINE = re.compile(rb"(?:^|\r)(?:[\w./:+-]{1,60} ){0,2}\[rank(\d{1,7})\]:? ?([^\r\n]{1,400})", re.MULTILINE)
_WORD = b"[rank"
_MOST = 1 << 12  # ranks


def last_lines(path: str, known: Collection[int]) -> tuple[LogEvent, ...]:
    """The last line of each rank that is not known, as 'said', in order.

    Raises InputError where the file cannot be read.
    """
    found: dict[int, tuple[int, str]] = {}
    for number, block in blocks(path):
        if _WORD not in block:
            continue
        line, at = number, 0
        for match in _LINE.finditer(block):
            rank = int(match[1])
            if rank not in known and (rank in found or len(found) < _MOST):
                line, at = line + block.count(b"\n", at, match.start(1)), match.start(1)
                found[rank] = line, match[2].decode(errors="replace").strip()
    return tuple(LogEvent("said", rank, path, *found[rank]) for rank in sorted(found))
