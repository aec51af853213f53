"""Gradients in more calls than their bytes need: said where the run's own calls show what a call costs."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.across.call_times import CallTimes, call_times
from traceops.across.cross_rank import CrossRank
from traceops.core.findings import Evidence
from traceops.core.step_words import StepWords
from traceops.core.units import digits_text, ms_text, size_range_text, size_text, stored

_FIXED_SHARE = 0.5  # of the calls' time: from here on calls cost more than bytes
_FEWER = 2  # times as many calls as the largest size needs: less is no trouble of the buckets
_SEVERAL = 8  # calls a step: fewer of them are nobody's small buckets
_NO_BUCKET = 8_000_000  # bytes: of calls as large as this the link sets the time


@dataclass(frozen=True)
class Calls:
    """The calls of a run's gradients, and what is sure to be saved of `exposed_ms` with the fewest of them, ms."""

    times: CallTimes
    exposed_ms: float

    @property
    def saved_ms(self) -> float:
        """At least, as nothing may hide what is left; 0.0 where fewer calls would hardly take less."""
        times = self.times
        left, share = times.in_fewest_ms, times.fixed_share
        if left is None or share is None or share < _FIXED_SHARE or times.calls < _FEWER * times.fewest:
            return 0.0
        return max(self.exposed_ms - left, 0.0)

    def said(self, words: StepWords) -> str:
        """What they take, why, and what fewer would take, as a finding says it."""
        times = self.times
        left = times.in_fewest_ms
        assert left is not None and times.fixed_ms is not None and times.ms_per_byte is not None
        per_mb = times.ms_per_byte * 1e6
        more = f" and {ms_text(per_mb)} ms for each MB" if per_mb * times.most_bytes / 1e6 >= 0.05 * left else ""
        way = _cure(times.op)
        fewest = "one call" if times.fewest == 1 else f"{times.fewest} calls"
        return (
            f"{times.calls:.0f} calls of {times.op} {words.per} reduce {size_text(times.size)} of gradients in "
            f"{ms_text(times.ms)} ms. By their sizes ({size_range_text(times.least_bytes, times.most_bytes)}) each "
            f"call takes {ms_text(times.fixed_ms)} ms{more}: the number of calls sets the time, not their bytes. "
            f"In {fewest} of {size_text(times.most_bytes)} ({way}) they would take {ms_text(left)} ms, so "
            f"{words.each} would be at least {ms_text(self.saved_ms)} ms shorter, even if nothing hides them."
        )

    def evidence(self, words: StepWords) -> tuple[Evidence, ...]:
        """The same as numbers."""
        times = self.times
        return (
            Evidence("calls", round(times.calls, 1), words.per),
            Evidence("their transfer", stored(times.ms), words.unit("ms")),
            Evidence("each call's own time", stored(times.fixed_ms or 0.0), "ms"),
            Evidence("with the fewest calls", stored(times.in_fewest_ms or 0.0), words.unit("ms")),
        )


def calls_of(run: CrossRank, exposed_ms: float) -> Calls | None:
    """None where no call of gradients has a size."""
    times = call_times(run)
    return None if times is None else Calls(times, exposed_ms)


def of_one_size(run: CrossRank) -> str:
    """Behind a space: small calls whose sizes do not tell whether the call or the link sets their time."""
    times = call_times(run)
    if times is None or times.fixed_ms is not None or times.calls < _SEVERAL:
        return ""
    typical = times.size / times.calls
    if typical >= _NO_BUCKET or times.fewest * _FEWER <= times.calls:
        return ""
    gbs = times.size / times.ms / 1e6
    return (
        f" Gradients come in {times.calls:.0f} calls of {size_text(typical)}, {ms_text(times.ms / times.calls)} ms "
        f"each ({digits_text(gbs, 2)} GB/s). All are about as large, so the traces do not tell whether the number of "
        f"calls or the link sets their time: larger ones ({_cure(times.op)}) show it."
    )


def _cure(op: str) -> str:
    """What makes calls larger: DDP all-reduces, FSDP reduces and scatters."""
    return "larger FSDP units" if "scatter" in op else "bucket_cap_mb"
