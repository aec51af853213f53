"""The evidence of a finding in lines: its numbers, and the lines of files that it quotes."""

from __future__ import annotations

from collections import Counter

from traceops.core.findings import Evidence, Finding
from traceops.core.short_text import short_name
from traceops.core.units import as_measured

_MOST_NAME = 40
_MOST_VALUE = 100
_MOST_QUOTES = 4
_MOST_QUOTE = 160


def place_text(evidence: Evidence) -> str:
    """'log.txt:132', or the file alone; empty for a number."""
    if evidence.file is None:
        return ""
    return evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"


def value_text(evidence: Evidence) -> str:
    """The value without its unit."""
    value = evidence.value
    return str(as_measured(value) if isinstance(value, float) else value)


def quote_text(evidence: Evidence) -> str:
    """'log.txt:132  NCCL INFO …', without the tabs of a matrix."""
    value = "" if evidence.value is None else " ".join(str(evidence.value).split())
    return f"{place_text(evidence)}  {value}".rstrip()


def evidence_lines(finding: Finding) -> list[str]:
    """The numbers in one line, then the lines of files that the finding quotes, each cut to what a line holds."""
    numbers = [e for e in finding.evidence if e.value is not None and e.file is None]
    metrics = Counter(e.metric for e in numbers)
    shown = [_evidence(e, of_several=metrics[e.metric] > 1) for e in numbers]
    quotes = [quote_text(e) for e in finding.evidence if e.file is not None]
    lines = ["; ".join(shown)] if shown else []
    lines += [f"{q[:_MOST_QUOTE]}{'…' if len(q) > _MOST_QUOTE else ''}" for q in quotes[:_MOST_QUOTES]]
    if len(quotes) > _MOST_QUOTES:
        more = len(quotes) - _MOST_QUOTES
        lines.append(f"… and {more} more line{'' if more == 1 else 's'} in the report")
    return lines


def _evidence(evidence: Evidence, *, of_several: bool) -> str:
    """Metric, value and unit; a long name of a kernel or region shortened, the page has all of it.

    of_several: other evidence has the same metric, so the rank is said.
    """
    if isinstance(evidence.grown, str):
        usual = "" if evidence.peers is None else f", peers {as_measured(evidence.peers):g}"
        return f"grew: {_short(evidence.grown)} {value_text(evidence)} {evidence.unit}{usual}"
    value = value_text(evidence)
    if len(value) > _MOST_VALUE and isinstance(evidence.value, str):
        value = f"{value[:_MOST_VALUE]}…"
    rank = f" (rank {evidence.rank})" if of_several and evidence.rank is not None else ""
    return f"{evidence.metric} {value}{' ' + evidence.unit if evidence.unit else ''}{rank}"


def _short(name: str) -> str:
    """A kernel without return type and parameters; of other names the beginning and the end."""
    if "<" in name or len(name) <= _MOST_NAME:
        return short_name(name, _MOST_NAME)
    return f"{name[: _MOST_NAME * 2 // 3]}…{name[-(_MOST_NAME // 3) :]}"
