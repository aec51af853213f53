"""What the history of a key says in words: each lasting change as a sentence, and the verdict over all keys."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.baseline.history import KeyHistory, LevelChange, Trend, too_few
from traceops.core.units import size_text
from traceops.render.cells import number
from traceops.render.document import Headline

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
    if len(history.samples) == 1:
        return "One capture so far: there is nothing to compare it with yet."
    trend = headline_trend(history) or next(iter(history.trends), None)
    if trend is None:
        return "Its captures hold no times, so there is nothing to compare."
    missing = too_few(trend)
    if not missing:
        return ""
    return (
        f"{len(history.commits)} commit{'' if len(history.commits) == 1 else 's'} so far: a lasting change cannot be "
        f"told from noise before {missing} more {'is' if missing == 1 else 'are'} there."
    )


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
        where = f" in {history.key.model} on {history.key.branch}" if len(histories) > 1 else ""
        others = f"; {count - 1} more change{'' if count == 2 else 's'} below" if count > 1 else ""
        text = change_text(trend, change)
        return Headline("error" if worse else "clear", f"{text[:1].upper()}{text[1:]}{where}{others}.")
    if count:
        return Headline("info", f"Step times hold their level; {count} other change{'' if count == 1 else 's'} below.")
    if all(sparse_text(history) for history in histories):
        if len(histories) == 1:
            return Headline("info", sparse_text(histories[0]))
        return Headline("info", "Too few captures of each key to tell a change from noise yet.")
    commits = sum(len(history.commits) for history in histories)
    return Headline("clear", f"No lasting change in {commits} commits.")
