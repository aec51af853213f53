"""What the history of a key says in words: each lasting change as a sentence, and the verdict over all keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from traceops.baseline.history import KeyHistory, LevelChange, Trend, too_few
from traceops.core.claims import first_phrase
from traceops.core.units import size_text
from traceops.render.cells import number
from traceops.render.document import Headline
from traceops.words.catalogue import texts

WORDS = texts("views", "history")
say = partial(first_phrase, "views", "history")
_HEADLINE = ("step_time", "profiled_step_time")  # the first that is known speaks for its key


def value_text(value: float | None, unit: str) -> str:
    """A number with its unit; bytes in the unit that suits."""
    if value is None:
        return "–"
    return size_text(value) if unit == "B" else f"{number(value).text} {unit}".rstrip()


def change_text(trend: Trend, change: LevelChange) -> str:
    """As "step time +7.2 % since commit abc1234 (2026-11-20)"."""
    return f"{trend.label} {step_text(trend, change)} since commit {change.since.label} ({change.since.date})"


def step_text(trend: Trend, change: LevelChange) -> str:
    """The change in percent of the level before; both levels where that was 0."""
    if change.change_pct is None:
        return f"from {value_text(change.before, trend.unit)} to {value_text(change.after, trend.unit)}"
    decimals = 1 if abs(change.change_pct) >= 0.1 else 2
    return f"{change.change_pct:+.{decimals}f} %"


def changes_of(history: KeyHistory) -> list[tuple[Trend, LevelChange]]:
    """All changes of a key, the latest first; of one commit in the order of the metrics."""
    found = [(trend, change) for trend in history.trends for change in trend.changes]
    return sorted(found, key=lambda pair: -pair[1].position)


def headline_trend(history: KeyHistory) -> Trend | None:
    """The trend of the step time, without the profiler where that is known."""
    trends = {trend.metric: trend for trend in history.trends}
    return next((trends[name] for name in _HEADLINE if name in trends), None)


def sparse_text(history: KeyHistory) -> str:
    """Why no change can be found yet, empty where one can."""
    trend = headline_trend(history) or next(iter(history.trends), None)
    missing = 0 if trend is None else too_few(trend)
    facts: dict[str, Any] = {"alone": len(history.samples) == 1, "no_times": trend is None, "missing": missing or None}
    return say("too_few", commits=len(history.commits), **facts)


def history_verdict(histories: Sequence[KeyHistory]) -> Headline:
    """One sentence over all keys: the latest lasting change of a step time, a slower one first."""
    latest = [
        (history, trend, trend.changes[-1])
        for history in histories
        if (trend := headline_trend(history)) is not None and trend.changes
    ]
    worse = [found for found in latest if found[2].verdict == "worse"]
    count = sum(len(trend.changes) for history in histories for trend in history.trends)
    if worse or latest:
        history, trend, change = max(worse or latest, key=lambda found: found[2].since.samples[0].entry.time_ns)
        key: dict[str, Any] = {"model": history.key.model, "branch": history.key.branch} if len(histories) > 1 else {}
        sentence = say("verdict", change=change_text(trend, change), more=count - 1 or None, **key)
        return Headline("error" if worse else "clear", sentence)
    sparse = [sparse_text(history) for history in histories]
    facts: dict[str, Any] = {"others": count or None, "all_sparse": all(sparse)}
    facts |= {"sparse_key": sparse[0]} if len(histories) == 1 else {}
    commits = sum(len(history.commits) for history in histories)
    return Headline("info" if count or all(sparse) else "clear", say("verdict", commits=commits, **facts))
