"""Facts about a run that the rules of the fabric need besides its evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traceops.core.findings import SEVERITIES, Evidence, Severity
from traceops.core.step_words import STEP, StepWords
from traceops.fabric.model import Measured, Quote

_MOST_HOSTS = 4


@dataclass(frozen=True)
class Circumstances:
    """device: name of the GPUs as the traces say. slow: how severe TO-C001 found the measured bandwidth, None if well.

    exposed_pct: of the step that is transfer which nothing hides. hung: ranks wait in a collective. lost_ms: a step,
    against the reference; saved: the evidence of that. measured: between GPUs, by the doctor.
    words: what to call the step.
    """

    device: str | None = None
    slow: Severity | None = None
    exposed_pct: float | None = None
    hung: bool = False
    lost_ms: float | None = None
    saved: tuple[Evidence, ...] = ()
    measured: tuple[Measured, ...] = ()
    words: StepWords = STEP


def quoted(quotes: Iterable[Quote], metric: str = "it says", most: int = 3) -> list[Evidence]:
    """Lines of files as evidence, equal texts once."""
    once = {quote.text: quote for quote in reversed(list(quotes))}
    return [
        Evidence(metric, quote.text, file=quote.path, line=quote.line) for quote in list(reversed(once.values()))[:most]
    ]


def hosts_text(hosts: Iterable[str | None], before: str) -> str:
    """`` on a``, `` of a, b and 998 more hosts``; empty where no host is named."""
    named = list(dict.fromkeys(host for host in hosts if host))
    if not named:
        return ""
    shown = named if len(named) <= _MOST_HOSTS else named[: _MOST_HOSTS - 1]
    more = f" and {len(named) - len(shown)} more hosts" if len(shown) < len(named) else ""
    return f" {before} {', '.join(shown)}{more}"


def at_least(severity: Severity, other: Severity | None) -> Severity:
    """The more severe of two."""
    return severity if other is None else max(severity, other, key=SEVERITIES.index)
