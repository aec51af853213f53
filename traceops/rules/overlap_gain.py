"""What exposed transfer costs a step: how much shorter the replay is without it, and how much hosts decide of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traceops.across.call_times import CallTimes, call_times
from traceops.across.communication import exposed_shares
from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.across.replay.what_if import HOST_IN_TIME, NO_COMMUNICATION
from traceops.across.undisturbed import Undisturbed
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Severity, severity_of
from traceops.core.step_words import StepWords
from traceops.core.units import digits_text, ms_text, size_range_text, size_text, stored
from traceops.measure.exchanges import BACKWARD, FORWARD
from traceops.measure.phases import AFTER, UPDATED

LEAST_GAIN_PCT = 3.0  # of the step: of less, exposed transfer is a remark
_ALIKE = 0.05  # of the transfer: less makes no difference that is worth a word


def alike(ms: float, of_ms: float) -> bool:
    """Whether a step that is shorter by `ms` is so by as much as the transfer `of_ms`, near enough."""
    return ms >= (1 - _ALIKE) * of_ms


@dataclass(frozen=True)
class Gain:
    """ms that a step would be shorter without a transfer, which is `of_ms` exposed.

    ms: as hosts were recorded, where the replay holds, or with none late, where that is known of the step without the
    profiler; else the transfer itself. best_ms: with no host late, where that is clearly more; a profiler slows hosts.
    replayed: the replay says so.
    """

    ms: float
    of_ms: float
    best_ms: float | None
    replayed: bool

    @property
    def is_less(self) -> bool:
        """Whether the step would be shorter by clearly less than the transfer."""
        return not alike(self.ms, self.of_ms)


def gain_of(run: CrossRank, exposed_ms: float, *, in_time: bool = False, left_ms: float | None = None) -> Gain:
    """What a step gains without this transfer: not more than the transfer, nor than the replay saves without any.

    in_time: whether no host is late in the step that this is about. left_ms: what hosts leave of such a step at most,
    where they were seen to run ahead: one that keeps up with a step is not known to keep up with a shorter one.
    """
    saved = None if run.what_if is None else run.what_if.saved_ns(NO_COMMUNICATION)
    if run.what_if is None or saved is None:
        return Gain(exposed_ms, exposed_ms, None, False)
    gain = min(exposed_ms, max(saved, 0.0) / 1e6)
    ends = run.what_if.range_ns(NO_COMMUNICATION)
    if ends is None:
        return Gain(gain, exposed_ms, None, True)
    hosts = run.what_if.saved_ns(HOST_IN_TIME)
    if in_time and hosts is not None:
        alone = run.what_if.mean_ns(run.what_if.replayed_ns) - max(hosts, 0.0) - ends[0]
        alone = min(exposed_ms, max(gain, alone / 1e6))
        sure = alone if left_ms is None else min(alone, max(gain, left_ms))
        return Gain(sure, exposed_ms, alone if alone - sure > _ALIKE * exposed_ms else None, True)
    best = min(exposed_ms, (run.what_if.mean_ns(run.what_if.replayed_ns) - ends[0]) / 1e6)
    return Gain(gain, exposed_ms, best if best - gain > _ALIKE * exposed_ms else None, True)


def graded(severity: Severity, gain: Gain, step_ms: float, bounds: tuple[float, float, float]) -> Severity:
    """A severity by the share of the step, lowered to that of what the step would save: percent for each severity.

    Where hosts bound the step it counts how much shorter it is with none late, as a profiler slows them; but where
    next to nothing is saved with hosts as they are, all of it is a remark. A remark stays one, however little is saved.
    """
    if gain.ms < LEAST_GAIN_PCT / 100 * step_ms:
        return "info"
    saved_ms = gain.ms if gain.best_ms is None else gain.best_ms
    by_gain = severity_of(100.0 * saved_ms / step_ms, *bounds) if step_ms else None
    return "info" if by_gain is None else min(severity, by_gain, key=SEVERITIES.index)


def gain_text(gain: Gain, words: StepWords) -> str:
    """A sentence, behind a space: what the transfer that was named costs; none where it is hidden, or nobody knows."""
    if not gain.replayed or f"{gain.of_ms:.2f}" == "0.00":
        return ""
    if not gain.is_less:
        return f" Replayed with free communication, {words.the} is about as much shorter."
    shorter = "no shorter" if f"{gain.ms:.2f}" == "0.00" else f"only {gain.ms:.2f} ms shorter"
    bound = (
        "other things bound it too"
        if gain.best_ms is None
        else f"hosts bound it too, and with none of them late it is up to {gain.best_ms:.2f} ms shorter"
    )
    return f" Replayed with free communication, {words.the} is {shorter}: {bound}."


def step_left(gain: Gain, step_ms: float) -> str:
    """'84.5 ms', or '84.5 ms (80.1 with hosts in time)': what is left of a step without the transfer."""
    left = f"{ms_text(max(step_ms - gain.ms, 0.0))} ms"
    if gain.best_ms is None:
        return left
    return f"{left} ({ms_text(max(step_ms - gain.best_ms, 0.0))} with hosts in time)"


def gain_evidence(gain: Gain, words: StepWords) -> tuple[Evidence, ...]:
    """The same as proof: the impact of the finding, and what may come on top."""
    best = (
        ()
        if gain.best_ms is None
        else (Evidence(Fact.SAVED_WITHOUT_IT_AND_NO_HOST_LATE, stored(gain.best_ms), words.unit("ms")),)
    )
    return (Evidence(Fact.SAVED_WITHOUT_IT, stored(gain.ms), words.unit("ms")), *best) if gain.replayed else ()


# Which step exposed transfer is a part of: the recorded one, or the one without the profiler where that is known.


_UNMATCHED = 0.2  # of the exposed communication of a light window: beyond that it does not tell transfer from waiting
_IN_TIME_PCT = 3.0  # of the step: a device that is idle for less does not wait for its host


@dataclass(frozen=True)
class Basis:
    """The step, ms, and its exposed transfer, ms, median over ranks. shares: percent of the step by rank.

    recorded_ms: the exposed transfer of the recorded steps, where the step is the undisturbed one, else None. in_time:
    whether no device waits for its host in it, though hosts may be late in the recorded steps. left_ms: what is sure
    to be left of it beyond the time that its hosts need, None where nobody timed them.
    """

    step_ms: float
    exposed_ms: float
    shares: Mapping[int, float]
    recorded_ms: float | None = None
    recorded_step_ms: float = 0.0
    in_time: bool = False
    left_ms: float | None = None

    @property
    def pct(self) -> float:
        """The transfer's part of the step."""
        return float(np.median(list(self.shares.values())))

    def of_step(self, words: StepWords) -> str:
        """'each 82.4 ms step'."""
        return words.each_of(f"{ms_text(self.step_ms)} ms")

    @property
    def note(self) -> str:
        """Whose step it is, as a sentence behind a space; '' of the recorded one."""
        if self.recorded_ms is None:
            return ""
        return (
            f" That is of a step without the profiler, by the light window; the traces show {self.recorded_ms:.2f} of "
            f"{self.recorded_step_ms:.2f} ms."
        )

    def evidence(self, words: StepWords) -> tuple[Evidence, ...]:
        """The same as numbers."""
        if self.recorded_ms is None:
            return ()
        recorded = Evidence(Fact.RECORDED, stored(self.recorded_ms), words.unit("ms"))
        return Evidence(Fact.STEP, stored(self.step_ms), "ms"), recorded


def basis_of(run: CrossRank, undisturbed: Undisturbed | None, host_ms: float | None) -> Basis | None:
    """None without a step. host_ms: what hosts were seen to need for a step at most, without the profiler."""
    shares = exposed_shares(run)
    if not shares:
        return None
    recorded = float(np.median([times.mean_ms("comm_transfer") for times in run.ranks]))
    if undisturbed is None or not _tells(undisturbed, run):
        return Basis(run.step_ms, recorded, shares)
    step = undisturbed.step_ms
    exposed = {one.rank: one.transfer_ms for one in undisturbed.ranks}
    idle = max(one.idle_ms for one in undisturbed.ranks)
    return Basis(
        step,
        float(np.median(list(exposed.values()))),
        {rank: 100 * ms / step for rank, ms in exposed.items()},
        recorded,
        run.step_ms,
        100 * idle / step < _IN_TIME_PCT,
        None if host_ms is None else max(step - host_ms, 0.0),
    )


def _tells(undisturbed: Undisturbed, run: CrossRank) -> bool:
    """Whether the light window has all ranks, and tells transfer from waiting."""
    if {one.rank for one in undisturbed.ranks} != {times.summary.rank for times in run.ranks}:
        return False
    unmatched = sum(one.unmatched_ms for one in undisturbed.ranks)
    exposed = unmatched + sum(one.transfer_ms + one.wait_ms for one in undisturbed.ranks)
    return unmatched <= _UNMATCHED * exposed


# Gradients in more calls than their bytes need: said where the run's own calls show what a call costs.


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
            Evidence(Fact.CALLS, round(times.calls, 1), words.per),
            Evidence(Fact.TRANSFER_OF_THEM, stored(times.ms), words.unit("ms")),
            Evidence(Fact.OWN_TIME_PER_CALL, stored(times.fixed_ms or 0.0), "ms"),
            Evidence(Fact.WITH_FEWEST_CALLS, stored(times.in_fewest_ms or 0.0), words.unit("ms")),
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


# What TO-O001 tells of the collectives behind it: how many they are, where in the step, and in how many passes.


MANY = 20  # small collectives a step
_PASSES = {FORWARD: "in forward", BACKWARD: "in backward", AFTER: "behind backward", UPDATED: "behind the optimizer"}


def in_each_pass(run: CrossRank) -> str:
    """That DDP reduces gradients in each of several backward passes that one step of the optimizer follows."""
    seen = {(times.summary.backward.passes, times.summary.backward.reduced) for times in run.ranks}
    passes, reduced = next(iter(seen))
    if len(seen) > 1 or passes < 2 or reduced < passes:
        return ""
    return (
        f" Gradients are reduced in each of the {passes} backward passes of a step: with no_sync() around all but the "
        f"last it would be 1/{passes} of that."
    )


def _where(run: CrossRank) -> str:
    """In which pass the collectives of the first rank are called, behind a colon, where backward is seen."""
    first = run.ranks[0]
    phase = first.summary.comm.phase[first.summary.comm.step >= 0]
    steps = max(len(first.duration), 1)
    parts = [
        f"{count / steps:.0f} {said}"
        for number, said in _PASSES.items()
        if (count := int((phase == number).sum())) >= steps
    ]
    return f": {', '.join(parts)}" if (phase == BACKWARD).any() and parts else ""


def of_unknown_size(run: CrossRank) -> str:
    """That it comes in many collectives, where nothing says whether they are small (TO-O002)."""
    matched = run.matching.collectives
    first = run.ranks[0]
    count = sum(first.summary.rank in c.group for c in matched) / max(len(first.duration), 1)
    if count < MANY or any(collective_bytes(c) for c in matched):
        return ""
    return (
        f" It comes in {count:.0f} collectives {run.step_words.per}{_where(run)}. The traces do not say how large they "
        "are (traceops run and record_shapes=True do): latency sets the time of small ones, and fewer, larger ones "
        "cost less."
    )
