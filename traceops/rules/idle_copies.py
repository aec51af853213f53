"""TO-I004: copies between host and device while no kernel runs, by what they are for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from traceops.across.copies import CHANGES, PURPOSES, ExposedCopies, Purpose
from traceops.across.rank_times import RankTimes
from traceops.core.arrays import mean_ms
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import who_of
from traceops.core.rule import Verdict, described
from traceops.core.step_words import StepWords
from traceops.core.text import short_name
from traceops.core.units import mean_count_text, ms_text, rate_text, size_text, stored
from traceops.fabric.reference import HostLink
from traceops.measure.copies import CopyKind
from traceops.rules.inputs import Inputs, why_incomplete
from traceops.rules.shared import work_ms

# What a finding about exposed copies says, and what its cure saves.


_MEMORY = {"pageable": "pageable ", "pinned": "pinned ", "unknown": ""}
_LONGEST = 60
_UNEVEN = 2.0  # times as many bytes as so many typical copies have: one of them has most


class Part(Struct, frozen=True):
    """A rank's copies of one purpose as a part of a step, ms."""

    copies: ExposedCopies
    ms: float
    step_ms: float

    @property
    def pct(self) -> float:
        return 100.0 * self.ms / self.step_ms if self.step_ms else 0.0

    @property
    def saved_ms(self) -> float:
        """What its cure takes away: what is left of it is the link's."""
        return max(self.ms - (self.copies.exposed_ms - self.copies.saved_ms), 0.0)


def impact_ms(hit: Sequence[Part], worst: Part, replayed_ms: float | None) -> float:
    """What a step gains: as the replay has it, or of one rank as far as its host keeps up. Never more than is exposed.

    The host cannot be quicker than its own work, nor does it wait in these copies any more.
    """
    saved = max(part.saved_ms for part in hit)
    if replayed_ms is not None:
        return stored(max(min(saved, replayed_ms), 0.0))
    host = worst.copies.host_ms
    if host is not None:
        own = min(host, max(worst.step_ms - worst.copies.blocked_ms, 0.0))
        saved = min(saved, worst.step_ms - own)
    return stored(max(saved, 0.0))


def message_of(worst: Part, ranks: Sequence[int], count: int, words: StepWords, saved: float) -> str:
    """What runs alone, for how long, what it is, and what would be left of it."""
    copies, first = worst.copies, worst.copies.kinds[0]
    up_to = "" if len(ranks) == 1 else "up to "
    one_way = "to the device" if copies.purpose == "input" else "to the host"
    way = "from and to the host" if copies.purpose == "offload" else one_way
    said = (
        f"On {who_of(ranks, count)} nothing runs but copies {way}: {up_to}{worst.ms:.2f} ms of {words.each} "
        f"({worst.pct:.0f} %). {_kind(first, copies, words)}"
    )
    more = [kind for kind in copies.kinds[1:] if mean_ms(kind.exposed_ns) >= 0.2 * worst.ms]
    if more:
        others = sum(mean_ms(kind.exposed_ns) for kind in copies.kinds[1:])
        said += f" Others take {others:.2f} ms."
    if copies.purpose == "offload":
        said += " What goes to the host comes back: it is offloaded."
    elif copies.sync_ms >= 0.01 * worst.step_ms:
        said += f" The device is idle for {copies.sync_ms:.2f} ms more because the host waits for them."
    left = max(worst.ms - saved, 0.0)
    if saved < 0.9 * worst.ms and copies.purpose != "offload":
        said += f" Beside the kernels {ms_text(left)} ms of {words.the} stay: {_why(copies)}."
    return said


def _why(copies: ExposedCopies) -> str:
    """Why not all of it can be saved."""
    if copies.saved_ms < 0.9 * copies.exposed_ms:
        return "the link to the host carries no more"
    return "hosts, or what ranks wait for, hold it up then"


def _kind(kind: CopyKind, copies: ExposedCopies, words: StepWords) -> str:
    """'1 copy of 64.0 MB a step from pageable memory in aten::to, at 7.8 GB/s.'"""
    number = mean_count_text(int(kind.count.sum()) / copies.steps)
    one = number == "1"
    whole = float(kind.total_bytes[kind.total_bytes >= 0].sum()) / copies.steps
    uneven = whole >= _UNEVEN * kind.size * float(kind.count.sum()) / copies.steps
    size = "" if kind.size < 0 or uneven else f" of {'' if one else 'typically '}{size_text(kind.size)}"
    of_all = f", {size_text(whole)} in all," if kind.size >= 0 and uneven else ""
    way = "from" if kind.direction == "to_device" else "to"
    memory = "host memory" if kind.memory == "unknown" else f"{kind.memory} memory"
    said = f"{number} cop{'y' if one else 'ies'}{size} {words.per}{of_all} {way} {memory}"
    if kind.operator:
        said += f" in {short_name(kind.operator, _LONGEST)}"
    if kind.region:
        said += f" (inside '{short_name(kind.region, _LONGEST)}')"
    gbs = kind.gbs
    said += f", at {rate_text(gbs)} GB/s." if gbs is not None else "."
    if gbs is not None and kind.memory == "pageable" and copies.link is not None and gbs < 0.8 * copies.link.gbs:
        then = float(kind.device_ns.sum()) * gbs / copies.link.gbs / copies.steps / 1e6
        they = "it" if one else "they"
        said += f" From pinned memory {they} would take {ms_text(then)} ms, at {_speed(copies.link)}."
    return said


def _speed(link: HostLink) -> str:
    """'48 GB/s, as PCIe 5.0 x16 gives'."""
    if link.source == "trace":
        return f"{link.gbs:.0f} GB/s, as pinned copies in these traces reach"
    return f"{link.gbs:.0f} GB/s, as PCIe {link.generation}.0 x{link.lanes} gives"


def evidence_of(worst: Part, own: Sequence[Part], words: StepWords, saved: float, bound: float) -> list[Evidence]:
    """The numbers behind it, of the worst rank."""
    copies, rank = worst.copies, worst.copies.rank
    found = [
        Evidence(Fact.EXPOSED_COPIES, stored(worst.ms), words.unit("ms"), rank=rank),
        Evidence(Fact.EXPOSED_COPIES_PCT, round(worst.pct, 1), "%", bound, rank=rank),
        Evidence(Fact.STEP, stored(worst.step_ms), "ms"),
        Evidence(Fact.SAVED_FROM_PINNED, saved, words.unit("ms")),
    ]
    if len(own) > 1:
        shares = sorted(part.pct for part in own)
        middle = shares[len(shares) // 2]
        found.append(Evidence(Fact.EXPOSED_COPIES_SPREAD, f"{shares[0]:.1f} / {middle:.1f} / {shares[-1]:.1f}", "%"))
    for kind in copies.kinds[:3]:
        way = "to the device" if kind.direction == "to_device" else "to the host"
        name = kind.region or kind.operator or "no operator"
        found.append(
            Evidence(
                Fact.COPIES,
                stored(mean_ms(kind.exposed_ns)),
                words.unit("ms"),
                rank=rank,
                subject=f"{_MEMORY[kind.memory]}copies {way} in {short_name(name, _LONGEST)}",
            )
        )
        if (gbs := kind.gbs) is not None:
            found.append(Evidence(Fact.THEIR_SPEED, round(gbs, 2), "GB/s", rank=rank))
    if copies.link is not None:
        found.append(Evidence(Fact.LINK_FROM_PINNED_MEMORY, round(copies.link.gbs, 1), "GB/s"))
    found.append(Evidence(Fact.HOST_IN_THESE_COPIES, stored(copies.blocked_ms), words.unit("ms"), rank=rank))
    return found


EXPOSED_COPIES = described("idle", "TO-I004")
RULES = (EXPOSED_COPIES,)

_BOUNDS = (5.0, 10.0, 20.0)
_LEAST_GAIN_PCT = 3.0  # of the step, by the replay: copies that cost less are a remark
_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_MOST: dict[Purpose, Severity] = {"offload": "warning"}
_CAPTURED = "a CUDA graph is captured here: what is launched into it does not run, so an exposed copy says nothing"


def judge_copies(inputs: Inputs) -> Verdict:
    """What exposed copies cost of the step: a finding for each purpose that they have."""
    run = inputs.run
    judged = [times for times in run.ranks if times.summary.on_gpu]
    if not judged:
        return EXPOSED_COPIES.not_evaluated("the traces hold no GPU activity")
    if any(times.summary.captures_graphs for times in judged):
        return EXPOSED_COPIES.not_evaluated(_CAPTURED)
    by_rank = {times.summary.rank: times for times in judged if not times.summary.incomplete}
    if not by_rank:
        return EXPOSED_COPIES.not_evaluated(why_incomplete(judged))
    parts = {
        purpose: [
            _part(one, by_rank[one.rank], inputs)
            for one in run.copies
            if one.purpose == purpose and one.rank in by_rank
        ]
        for purpose in PURPOSES
    }
    findings = [_judged(inputs, purpose, own) for purpose, own in parts.items() if own]
    found = tuple(one for one in findings if one is not None)
    if found:
        return EXPOSED_COPIES.verdict(*found)
    most = max((part.pct for own in parts.values() for part in own), default=0.0)
    return EXPOSED_COPIES.clear(f"at most {most:.1f} % of {run.step_words.the} (bound {_BOUNDS[0]:g} %)")


def _part(one: ExposedCopies, times: RankTimes, inputs: Inputs) -> Part:
    """A rank's copies as a part of the step that is told: without the profiler they take as long as that has room for.

    Links are as fast without it: a step that has no room for copies of pinned memory is none that goes on like that.
    """
    light = inputs.undisturbed.step_ms if inputs.undisturbed is not None else None
    plain = min((known for known in (inputs.unprofiled_ms, light) if known), default=one.step_ms)
    other = work_ms(times) - one.exposed_ms
    if plain >= one.step_ms or plain <= other:
        return Part(one, one.exposed_ms, one.step_ms)
    if one.kinds[0].memory == "pinned":
        return Part(one, one.exposed_ms, min(max(plain, other + one.exposed_ms), one.step_ms))
    fits = one.exposed_ms <= plain - other
    return Part(one, one.exposed_ms if fits else one.exposed_ms * plain / one.step_ms, plain)


def _judged(inputs: Inputs, purpose: Purpose, own: Sequence[Part]) -> Finding | None:
    worst = max(own, key=lambda part: part.pct)
    severity = severity_of(worst.pct, *_BOUNDS)
    if severity is None:
        return None
    cause = _cause(worst.copies)
    if purpose in _MOST and severity != "info":
        severity = "info" if worst.copies.kinds[0].memory == "pinned" else _MOST[purpose]
    hit = [part for part in own if part.pct >= max(_BOUNDS[0], _ALSO * worst.pct)]
    ranks = [part.copies.rank for part in hit]
    damaged = any(times.summary.damage for times in inputs.run.ranks if times.summary.rank in ranks)
    replayed = inputs.run.replay.what_if.saved_ns(CHANGES[purpose]) if inputs.run.replay is not None else None
    saved = impact_ms(hit, worst, None if replayed is None else replayed / 1e6)
    if replayed is not None and 100 * saved < _LEAST_GAIN_PCT * worst.step_ms:
        severity = "info"
    return EXPOSED_COPIES.finding(
        severity,
        "medium" if damaged else "high",
        message_of(worst, ranks, len(inputs.run.ranks), inputs.run.step_words, saved),
        evidence_of(worst, own, inputs.run.step_words, saved, _BOUNDS[0]),
        ranks=ranks,
        impact_ms=saved,
        cause=cause,
    )


def _cause(copies: ExposedCopies) -> str:
    """The key of the advice, by what most of the exposed time is."""
    if copies.purpose != "input":
        return copies.purpose
    return "pinned_input" if copies.kinds[0].memory == "pinned" else "pageable_input"
