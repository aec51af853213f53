"""TO-I004: copies between host and device while no kernel runs, by what they are for."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.copies import CHANGES, PURPOSES, ExposedCopies, Purpose
from traceops.across.rank_times import RankTimes
from traceops.core.arrays import mean_ms
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, severity_of
from traceops.core.rule import Bounds, Verdict, described
from traceops.core.text import short_name
from traceops.core.units import stored
from traceops.core.words import WINDOW, StepWords
from traceops.rules.inputs import Inputs, why_incomplete
from traceops.rules.shared import work_ms

EXPOSED_COPIES = described("idle", "TO-I004")
RULES = (EXPOSED_COPIES,)


class CopyBounds(Bounds, frozen=True):
    """Percent of the step."""

    words = "idle_copies"
    exposed_pct: tuple[float, float, float] = (5.0, 10.0, 20.0)
    gain_pct: float = 3.0
    most_of_step_pct: float = 50.0  # offloading from pinned memory is a choice, but not one that fills the step


BOUNDS = CopyBounds()
_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_MEMORY = {"pageable": "pageable ", "pinned": "pinned ", "unknown": ""}
_LONGEST = 60
_UNEVEN = 2.0  # times as many bytes as so many typical copies have: one of them has most


class ExposedCopying(Claim, frozen=True, kw_only=True):
    """Copies while no kernel runs; ms of one step. most: of several ranks. way: to_device, to_host or both. count
    copies of `size` bytes each, or `total` in all where sizes differ, of `memory`, in `operator` and `region`. saved:
    without them, ms."""

    family = "idle_copies"
    kind = "exposed_copies"
    ranks: tuple[int, ...]
    every: bool = False
    several: bool = False
    ms: float
    pct: float
    way: str
    count: float
    typically: int | None = None
    total: float | None = None
    memory: str
    direction: str
    operator: str | None = None
    region: str | None = None
    gbs: float | None = None
    saved: float | None = None


class Part(Struct, frozen=True):
    """A rank's copies of one purpose as a part of a step, ms."""

    copies: ExposedCopies
    ms: float
    step_ms: float

    @property
    def pct(self) -> float:
        return 100.0 * self.ms / self.step_ms if self.step_ms else 0.0

    @property
    def pinned(self) -> bool:
        return self.copies.kinds[0].memory == "pinned"

    @property
    def cause(self) -> str:
        if self.copies.purpose == "output":
            return "output"
        pageable = "pageable_" if self.copies.purpose == "input" else ""
        return ("pinned_" if self.pinned else pageable) + self.copies.purpose

    @property
    def assumes_link(self) -> bool:
        """Whether what is left of it comes from a table, and no pinned copy of the trace shows it."""
        return self.copies.link is not None and self.copies.link.source != "trace" and not self.pinned

    @property
    def saved_ms(self) -> float:
        """What its cure takes away: what is left of it is the link's."""
        return max(self.ms - (self.copies.exposed_ms - self.copies.saved_ms), 0.0)


def impact_ms(hit: Sequence[Part], worst: Part, replayed_ms: float | None) -> float:
    """What a step gains: as the replay has it, or of one rank as far as its host keeps up. Never more than is exposed.
    The host cannot be quicker than its own work, nor does it wait in these copies any more."""
    saved = max(part.saved_ms for part in hit)
    if replayed_ms is not None:
        return stored(max(min(saved, replayed_ms), 0.0))
    if (host := worst.copies.host_ms) is not None:
        own = min(host, max(worst.step_ms - worst.copies.blocked_ms, 0.0))
        saved = min(saved, worst.step_ms - own)
    return stored(max(saved, 0.0))


def claim_of_copies(worst: Part, ranks: Sequence[int], count: int, words: StepWords) -> ExposedCopying:
    """What runs alone, for how long, and what it is."""
    copies, kind = worst.copies, worst.copies.kinds[0]
    ways = {one.direction for one in copies.kinds}
    claim = ExposedCopying(
        window=words is WINDOW,
        ranks=tuple(ranks),
        every=len(ranks) == count > 1,
        several=len(ranks) > 1,
        ms=worst.ms,
        pct=worst.pct,
        way="both" if len(ways) > 1 else kind.direction,
        count=int(kind.count.sum()) / copies.steps,
        memory=kind.memory,
        direction=kind.direction,
        operator=short_name(kind.operator, _LONGEST) if kind.operator else None,
        region=short_name(kind.region, _LONGEST) if kind.region else None,
        gbs=kind.gbs,
    )
    if kind.size >= 0:
        whole = float(kind.total_bytes[kind.total_bytes >= 0].sum()) / copies.steps
        uneven = whole >= _UNEVEN * kind.size * claim.count
        claim = replace(claim, total=whole) if uneven else replace(claim, typically=kind.size)
    return claim


def evidence_of(worst: Part, own: Sequence[Part], words: StepWords, bound: float) -> list[Evidence]:
    """The numbers behind it, of the worst rank."""
    copies, rank = worst.copies, worst.copies.rank
    found = [
        Evidence(Fact.EXPOSED_COPIES, stored(worst.ms), words.unit("ms"), rank=rank),
        Evidence(Fact.EXPOSED_COPIES_PCT, round(worst.pct, 1), "%", bound, rank=rank),
        Evidence(Fact.STEP, stored(worst.step_ms), "ms", subject=words.noun),
    ]
    if len(own) > 1:
        shares = sorted(part.pct for part in own)
        middle = shares[len(shares) // 2]
        found.append(Evidence(Fact.EXPOSED_COPIES_SPREAD, f"{shares[0]:.1f} / {middle:.1f} / {shares[-1]:.1f}", "%"))
    if (kind := copies.kinds[0]).exposed_ns.any():  # else another kind hides it
        way = "to the device" if kind.direction == "to_device" else "to the host"
        name = short_name(kind.region or kind.operator or "no operator", _LONGEST)
        subject, ms = f"{_MEMORY[kind.memory]}copies {way} in {name}", stored(mean_ms(kind.exposed_ns))
        found.append(Evidence(Fact.COPIES, ms, words.unit("ms"), rank=rank, subject=subject))
    return found


def judge_copies(inputs: Inputs) -> Verdict:
    """What exposed copies cost of the step: a finding for each purpose that they have."""
    run = inputs.run
    if not (judged := [times for times in run.ranks if times.summary.on_gpu]):
        return EXPOSED_COPIES.not_evaluated(reason("idle_copies", "no_gpu_activity"))
    if any(times.summary.captures_graphs for times in judged):
        return EXPOSED_COPIES.not_evaluated(reason("idle_copies", "captures_graphs"))
    if not (by_rank := {times.summary.rank: times for times in judged if not times.summary.incomplete}):
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
    if found := tuple(one for one in findings if one is not None):
        return EXPOSED_COPIES.verdict(*found)
    most = max((part.pct for own in parts.values() for part in own), default=0.0)
    return EXPOSED_COPIES.clear(
        reason("idle_copies", "little", pct=f"{most:.1f}", bound=BOUNDS.exposed_pct[0], window=run.unit == "window")
    )


def _part(one: ExposedCopies, times: RankTimes, inputs: Inputs) -> Part:
    """A rank's copies as a part of the step that is told: without the profiler they take as long as that has room for.
    Links are as fast without it: a step that has no room for copies of pinned memory is none that goes on like that."""
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
    if (severity := severity_of(worst.pct, *BOUNDS.exposed_pct)) is None:
        return None
    if purpose == "offload" and severity != "info":
        severity = "info" if worst.pinned and worst.pct < BOUNDS.most_of_step_pct else "warning"
    hit = [part for part in own if part.pct >= max(BOUNDS.exposed_pct[0], _ALSO * worst.pct)]
    ranks = [part.copies.rank for part in hit]
    damaged = any(times.summary.damage for times in inputs.run.ranks if times.summary.rank in ranks)
    replayed = inputs.run.replay.what_if.saved_ns(CHANGES[purpose]) if inputs.run.replay is not None else None
    saved = impact_ms(hit, worst, None if replayed is None else replayed / 1e6)
    if (replayed is not None or purpose != "offload") and 100 * saved < BOUNDS.gain_pct * worst.step_ms:
        severity = "info"
    claim = replace(claim_of_copies(worst, ranks, len(inputs.run.ranks), inputs.run.step_words), saved=saved)
    evidence = evidence_of(worst, own, inputs.run.step_words, BOUNDS.exposed_pct[0])
    confidence: Confidence = "medium" if damaged or worst.assumes_link else "high"
    return EXPOSED_COPIES.finding(
        severity, confidence, claim, evidence, ranks=ranks, impact_ms=saved, cause=worst.cause
    )
