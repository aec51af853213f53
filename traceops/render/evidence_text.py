"""Lines of files that findings quote, in words."""

from __future__ import annotations

from traceops.core.findings import Evidence


def place_text(evidence: Evidence) -> str:
    """'log.txt:132', or the file alone; empty for a number."""
    if evidence.file is None:
        return ""
    return evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"


def quote_text(evidence: Evidence) -> str:
    """'log.txt:132  NCCL INFO …', without the tabs of a matrix."""
    value = "" if evidence.value is None else " ".join(str(evidence.value).split())
    return f"{place_text(evidence)}  {value}".rstrip()
