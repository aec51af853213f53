"""Claims on overlap, and what exposed transfer costs a step: how much shorter the replay is without it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from traceops.across.communication import CallTimes, exposed_shares
from traceops.across.cross_rank import CrossRank
from traceops.across.links import collective_bytes
from traceops.across.replay.what_if import HOST_IN_TIME, NO_COMMUNICATION
from traceops.across.undisturbed import Undisturbed
from traceops.core.arrays import median
from traceops.core.claims import Claim
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Severity, severity_of
from traceops.core.units import stored
from traceops.core.words import WINDOW, Role, StepWords


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed transfer and step of the recorded steps, ms, where a claim is about steps without the profiler."""

    exposed: float
    step: float


class FreeTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """How much shorter the step is in a replay where the transfer is free. best: with no host late, too."""

    shorter: str
    saved: float
    best: float | None = None


class OverlapClaim(Claim, frozen=True):
    family = "overlap"


class Exposed(OverlapClaim, frozen=True, kw_only=True):
    """Transfer that no computation hides. unsized: collectives of unknown size. passes: backward passes of a step, in
    each of which gradients are reduced."""

    core_pct: float | None = None
    exposed: float
    pct: float
    step: float
    unsized: float | None = None
    passes: int | None = None
    by_role: Mapping[Role, float] = {}
    recorded: Recorded | None = None
    free: FreeTransfer | None = None


class ManySmall(OverlapClaim, frozen=True, kw_only=True):
    """Many collectives whose time latency sets."""

    core_pct: float | None = None
    count: float
    median: float
    takes: float
    exposed: float
    pct: float
    recorded: Recorded | None = None
    free: FreeTransfer | None = None


class ManyCalls(OverlapClaim, frozen=True, kw_only=True):
    """Gradients in calls that cost more than their bytes. fixed: of a call; per_mb: on top, where it matters."""

    core_pct: float | None = None
    op: str
    calls: float
    size: float
    takes: float
    sizes: tuple[int, int]
    fixed: float
    per_mb: float | None = None
    fewest: int
    largest: int
    left: float
    saved: float
    recorded: Recorded | None = None


class StartsLate(OverlapClaim, frozen=True, kw_only=True):
    """Gradients that are transferred once backward is over. saved: of the step at most, where backward hides them."""

    core_pct: float | None = None
    exposed: float
    pct: float
    step: float
    late_pct: float
    collectives: float
    saved: float
    saved_in_time: float | None = None
    recorded: Recorded | None = None


LEAST_GAIN_PCT = 3.0  # of the step: of less, exposed transfer is a remark
_ALIKE = 0.05  # of the transfer: less makes no difference that is worth a word


def alike(ms: float, of_ms: float) -> bool:
    """Whether a step that is shorter by `ms` is so by as much as the transfer `of_ms`, near enough."""
    return ms >= (1 - _ALIKE) * of_ms


class Gain(Struct, frozen=True):
    """ms that a step would be shorter without a transfer, which is `of_ms` exposed. ms: as hosts were recorded, where
    the replay holds, or with none late, where that is known of the step without the profiler; else the transfer itself.
    best_ms: with no host late, where that is clearly more; a profiler slows hosts. replayed: the replay says so."""

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
    where they were seen to run ahead: one that keeps up with a step is not known to keep up with a shorter one."""
    saved = None if run.replay is None else run.replay.what_if.saved_ns(NO_COMMUNICATION)
    if run.replay is None or saved is None:
        return Gain(exposed_ms, exposed_ms, None, False)
    gain = min(exposed_ms, max(saved, 0.0) / 1e6)
    if (ends := run.replay.what_if.range_ns(NO_COMMUNICATION)) is None:
        return Gain(gain, exposed_ms, None, True)
    hosts = run.replay.what_if.saved_ns(HOST_IN_TIME)
    if in_time and hosts is not None:
        alone = run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns) - max(hosts, 0.0) - ends[0]
        alone = min(exposed_ms, max(gain, alone / 1e6))
        sure = alone if left_ms is None else min(alone, max(gain, left_ms))
        return Gain(sure, exposed_ms, alone if alone - sure > _ALIKE * exposed_ms else None, True)
    best = min(exposed_ms, (run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns) - ends[0]) / 1e6)
    return Gain(gain, exposed_ms, best if best - gain > _ALIKE * exposed_ms else None, True)


def graded(severity: Severity, gain: Gain, step_ms: float, bounds: tuple[float, float, float]) -> Severity:
    """A severity by the share of the step, lowered to that of what the step would save: percent for each severity.
    Where hosts bound the step it counts how much shorter it is with none late, as a profiler slows them; but where next
    to nothing is saved with hosts as they are, all of it is a remark. A remark stays one, however little is saved."""
    if gain.ms < LEAST_GAIN_PCT / 100 * step_ms:
        return "info"
    saved_ms = gain.ms if gain.best_ms is None else gain.best_ms
    by_gain = severity_of(100.0 * saved_ms / step_ms, *bounds) if step_ms else None
    return "info" if by_gain is None else min(severity, by_gain, key=SEVERITIES.index)


def free_transfer(gain: Gain) -> FreeTransfer | None:
    """What the replay gives without the transfer that was named; None where it is hidden, or not replayed."""
    if not gain.replayed or f"{gain.of_ms:.2f}" == "0.00":
        return None
    if not gain.is_less:
        return FreeTransfer(shorter="as_much", saved=gain.ms)
    shorter = "not" if f"{gain.ms:.2f}" == "0.00" else "less"
    return FreeTransfer(
        shorter=shorter if gain.best_ms is None else f"{shorter}_by_hosts", saved=gain.ms, best=gain.best_ms
    )


def gain_evidence(gain: Gain, words: StepWords) -> tuple[Evidence, ...]:
    """The same as proof: the impact of the finding, and what may come on top."""
    named = ((Fact.SAVED_WITHOUT_IT, gain.ms), (Fact.SAVED_WITHOUT_IT_AND_NO_HOST_LATE, gain.best_ms))
    known = [(fact, ms) for fact, ms in named if ms is not None and gain.replayed]
    return tuple(Evidence(fact, stored(ms), words.unit("ms")) for fact, ms in known)


_UNMATCHED = 0.2  # of the exposed communication of a light window: beyond that it does not tell transfer from waiting
_IN_TIME_PCT = 3.0  # of the step: a device that is idle for less does not wait for its host


class Basis(Struct, frozen=True):
    """The step, ms, and its exposed transfer, ms, median over ranks. shares: percent of the step by rank. recorded:
    what the traces show, where the step is the undisturbed one. in_time: whether no device waits for its host in it,
    though hosts may be late in the recorded steps. left_ms: what is sure to be left of it beyond the time that its
    hosts need, None where nobody timed them."""

    step_ms: float
    exposed_ms: float
    shares: Mapping[int, float]
    recorded: Recorded | None = None
    in_time: bool = False
    left_ms: float | None = None

    @property
    def pct(self) -> float:
        """The transfer's part of the step."""
        return float(median(list(self.shares.values())))

    def gain(self, run: CrossRank, ms: float) -> Gain:
        """What this step gains without `ms` of transfer."""
        return gain_of(run, ms, in_time=self.in_time, left_ms=self.left_ms)

    def evidence(self, words: StepWords) -> tuple[Evidence, ...]:
        """The same as numbers."""
        if self.recorded is None:
            return ()
        recorded = Evidence(Fact.RECORDED, stored(self.recorded.exposed), words.unit("ms"))
        return Evidence(Fact.STEP, stored(self.step_ms), "ms", subject=words.noun), recorded


def basis_of(run: CrossRank, undisturbed: Undisturbed | None, host_ms: float | None) -> Basis | None:
    """None without a step. host_ms: what hosts were seen to need for a step at most, without the profiler."""
    if not (shares := exposed_shares(run)):
        return None
    recorded = float(median([times.mean_ms("comm_transfer") for times in run.ranks]))
    if undisturbed is None or not _tells(undisturbed, run):
        return Basis(run.step_ms, recorded, shares)
    step, idle = undisturbed.step_ms, max(one.idle_ms for one in undisturbed.ranks)
    shares = {one.rank: 100 * one.transfer_ms / step for one in undisturbed.ranks}
    exposed = float(median([one.transfer_ms for one in undisturbed.ranks]))
    in_time, left = 100 * idle / step < _IN_TIME_PCT, None if host_ms is None else max(step - host_ms, 0.0)
    return Basis(step, exposed, shares, Recorded(exposed=recorded, step=run.step_ms), in_time, left)


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


class Calls(Struct, frozen=True):
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

    def claim(self, words: StepWords, recorded: Recorded | None) -> ManyCalls:
        """What they take, why, and what fewer would take."""
        times = self.times
        left = times.in_fewest_ms
        assert left is not None and times.fixed_ms is not None and times.ms_per_byte is not None
        per_mb = times.ms_per_byte * 1e6
        return ManyCalls(
            window=words is WINDOW,
            op=times.op,
            calls=times.calls,
            size=times.size,
            takes=times.ms,
            sizes=(times.least_bytes, times.most_bytes),
            fixed=times.fixed_ms,
            per_mb=per_mb if per_mb * times.most_bytes / 1e6 >= 0.05 * left else None,
            fewest=times.fewest,
            largest=times.most_bytes,
            left=left,
            saved=self.saved_ms,
            recorded=recorded,
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


# What TO-O001 says of the collectives that carry it: how many they are, and in how many passes.

MANY = 20  # small collectives a step


def passes_that_reduce(run: CrossRank) -> int | None:
    """In how many backward passes DDP reduces gradients, where one step of the optimizer follows several."""
    seen = {(times.summary.backward.passes, times.summary.backward.reduced) for times in run.ranks}
    passes, reduced = next(iter(seen))
    return None if len(seen) > 1 or passes < 2 or reduced < passes else passes


def of_unknown_size(run: CrossRank) -> float | None:
    """How many collectives there are a step, where nothing shows whether they are small (TO-O002)."""
    matched, first = run.matching.collectives, run.ranks[0]
    count = sum(first.summary.rank in c.group for c in matched) / max(len(first.duration), 1)
    return None if count < MANY or any(collective_bytes(c) for c in matched) else count
