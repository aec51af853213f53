"""TO-M001 to TO-M003, and the family of TO-M: how a run uses its GPUs' memory, by what its ranks recorded of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from traceops.across.run_use import MemoryUse
from traceops.core.arrays import median
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rule import Bounds, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.rules.inputs import Inputs
from traceops.rules.shared import on_cpu


class MemoryClaim(Claim, frozen=True):
    family = "memory"


class Full(MemoryClaim, frozen=True, kw_only=True):
    """Tensors took nearly all of a GPU. full: all ranks of which that is so, where they are several."""

    kind = "memory_full"
    rank: int
    pct: float
    peak: float
    capacity: float
    full: tuple[int, ...] = ()
    bound: float


class HoldsMore(MemoryClaim, frozen=True, kw_only=True):
    """A rank's tensors take more than the median rank's. what: it holds `more` of, where that is known."""

    kind = "memory_uneven"
    rank: int
    peak: float
    usual: float
    two: bool
    alike: tuple[int, ...] = ()
    what: str | None = None
    more: float | None = None


class Grows(MemoryClaim, frozen=True, kw_only=True):
    """Tensors hold more at the end of each step. left: steps until a GPU is full."""

    kind = "memory_grows"
    ranks: tuple[int, ...]
    per_step: float
    first: float
    first_step: int
    last: float
    last_step: int
    left: float | None = None
    place: str | None = None
    blocks: int | None = None


class Unused(MemoryClaim, frozen=True, kw_only=True):
    """Torch reserved far more than tensors ever held. pieces: percent of it that is free between blocks in use."""

    kind = "memory_unused"
    rank: int
    reserved: float
    peak: float
    pieces: float | None = None
    alike: tuple[int, ...] = ()


class AsksDriver(MemoryClaim, frozen=True, kw_only=True):
    """The allocator calls the driver in steps. calls: a step; takes: ms of a recorded step."""

    kind = "memory_calls"
    ranks: tuple[int, ...]
    calls: float | None = None
    calls_recorded: float | None = None
    retries: int | None = None
    takes: float | None = None
    step: float
    emptied_in: str | None = None


# TO-M004 and TO-M005: how torch's allocator gets on with the memory that a run needs.

UNUSED = described("memory", "TO-M004")
ASKS_DRIVER = described("memory", "TO-M005")


class MemoryBounds(Bounds, frozen=True):
    """Of a GPU, or of what a rank holds; bytes are of one rank."""

    words = "memory"
    full: tuple[float, float] = (0.90, 0.95)
    more: float = 0.25
    more_bytes: int = 256 << 20
    grown_bytes: int = 64 << 20
    unused: float = 1.4
    unused_bytes: int = 1 << 30


BOUNDS = MemoryBounds()
_IN_PIECES = 0.2  # of what is reserved: free between blocks in use
_RESERVED = 0.9  # of a GPU
_IN_LATER_PART = "in the later part of the run"
_MALLOCS = 0.5  # cudaMalloc calls a step
_OF_STEP, _OF_STEP_ALONE = (0.05, 0.1)  # what such calls take: a warning; a finding where nothing else was observed
_SHOWN = 0.05  # calls a step; less would read as none
_RETRIES = 2  # one is that of a request that ended the program


def judge_unused(uses: Sequence[MemoryUse]) -> Verdict:
    """TO-M004 of the rank whose reserved bytes are furthest beyond what its tensors held at once."""
    known = [(use.reserved, use.peak, use) for use in uses if use.peak and use.reserved]
    if not known:
        return UNUSED.not_evaluated(reason("memory", "not_known"))
    wide = [one for one in known if one[0] - one[1] >= BOUNDS.unused_bytes and one[0] >= BOUNDS.unused * one[1]]
    reserved, peak, most = max(wide or known, key=lambda one: one[0] - one[1])
    if not wide:
        return UNUSED.clear(reason("memory", "little_unused", reserved=reserved, rank=most.rank, peak=peak))
    ranks = sorted(use.rank for *_, use in wide)
    claim = Unused(rank=most.rank, reserved=reserved, peak=peak, alike=tuple(ranks) if len(ranks) > 1 else ())
    cause = "pieces" if (most.pieces or 0) >= _IN_PIECES else None
    if cause:
        claim = replace(claim, pieces=100 * (most.pieces or 0))
    evidence = [
        Evidence(Fact.RESERVED, reserved, "B", rank=most.rank),
        Evidence(Fact.MOST_HELD, peak, "B", rank=most.rank),
        Evidence(Fact.RESERVED_BY_HELD, round(reserved / peak, 2), "", BOUNDS.unused, most.rank),
    ]
    full = reserved >= _RESERVED * (most.capacity or float("inf"))
    severity: Severity = "warning" if full or most.retries else "info"
    return UNUSED.verdict(UNUSED.finding(severity, "high", claim, evidence, ranks=ranks, cause=cause))


def judge_driver_calls(inputs: Inputs) -> Verdict:
    """TO-M005 by the allocator's counters in an observed run, else by the calls in the recorded steps."""
    seen = [use for use in inputs.memory if use.mallocs is not None]
    if not seen and (inputs.run.step_words is WINDOW or on_cpu(inputs.run)):  # a window may be a program's start
        return ASKS_DRIVER.not_evaluated(reason("memory", "not_observed"))
    busy = [use for use in seen if _is_retrying(use) or (use.mallocs or 0) >= _MALLOCS]
    if not seen and inputs.run.step_ms > 0:
        least = _OF_STEP_ALONE * inputs.run.step_ms
        busy = [use for use in inputs.memory if use.calls and use.allocating_ms >= least]
    if not busy:
        return ASKS_DRIVER.clear(reason("memory", "no_driver_calls"))
    emptied = any(found.cause == "allocator" for found in inputs.found_before("TO-W001"))
    if emptied and not any(map(_is_retrying, busy)):
        return ASKS_DRIVER.clear(reason("memory", "emptied_itself"))
    return ASKS_DRIVER.verdict(_asked(busy, inputs, observed=bool(seen)))


def _is_retrying(use: MemoryUse) -> bool:
    return (use.retries or 0) >= _RETRIES


def _asked(busy: Sequence[MemoryUse], inputs: Inputs, *, observed: bool) -> Finding:
    most = max(busy, key=lambda use: (use.retries or 0, use.mallocs or 0.0, use.allocating_ms))
    step_ms, words = inputs.run.step_ms, inputs.run.step_words
    costs = max(use.allocating_ms for use in busy)
    takes = stored(costs * observed) or None  # in a trace a call that frees waits for what the device has to do anyway
    ranks = sorted(use.rank for use in busy)
    rate, retries, retrying = most.calls, 0, False
    evidence = [Evidence(Fact.CALLS_FOR_MEMORY, round(most.calls, 2), words.unit("calls"), rank=most.rank)]
    if observed:
        rate, retries, retrying = most.mallocs or 0.0, most.retries or 0, _is_retrying(most)
        evidence = [
            Evidence(Fact.CUDAMALLOC, round(rate, 2), "calls/step", _MALLOCS, most.rank),
            Evidence(Fact.RETRIES, retries, _IN_LATER_PART, rank=most.rank),
        ]
    if costs:
        evidence.append(Evidence(Fact.TIME_OF_SUCH_CALLS, stored(costs), words.unit("ms"), rank=most.rank))
    claim = AsksDriver(
        ranks=tuple(ranks),
        calls=rate if observed and (not retrying or rate >= _SHOWN) else None,
        calls_recorded=None if observed else most.calls,
        retries=retries if retrying else None,
        takes=takes,
        step=step_ms,
        emptied_in=_emptied(most.rank, inputs),
    )
    much = costs >= _OF_STEP * step_ms if costs else rate >= 1  # what they take decides, where it is known
    severity: Severity = "warning" if observed and (retrying or much) else "info"
    cause = "retries" if retrying else None
    return ASKS_DRIVER.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=takes, cause=cause)


def _emptied(rank: int, inputs: Inputs) -> str | None:
    """Where the program empties the cache itself, as looks at its host saw it."""
    host = () if inputs.whole is None else inputs.whole.host.get(rank, ())
    return next((one.place.said for one in host if one.does == "allocator"), None)


NEARLY_FULL = described("memory", "TO-M001")
IMBALANCE = described("memory", "TO-M002")
GROWTH = described("memory", "TO-M003")
RULES = (NEARLY_FULL, IMBALANCE, GROWTH, UNUSED, ASKS_DRIVER)

_LEFT = 0.1
_GROWN_SHARE, _LASTS = 0.01, 1_000_000


def judge(inputs: Inputs) -> list[Verdict]:
    """Peaks, imbalance, growth, unused memory and calls of the driver."""
    uses = inputs.memory
    return [_full(uses), _imbalance(inputs), _growth(uses), judge_unused(uses), judge_driver_calls(inputs)]


def _full(uses: Sequence[MemoryUse]) -> Verdict:
    known = {use.rank: (use.peak, use.capacity) for use in uses if use.peak and use.capacity}
    if not known:
        return NEARLY_FULL.not_evaluated(reason("memory", "not_known"))
    share = {rank: peak / capacity for rank, (peak, capacity) in known.items()}
    most = max(share, key=lambda rank: share[rank])
    peak, capacity = known[most]
    if share[most] < BOUNDS.full[0]:
        pct = 100 * share[most]
        return NEARLY_FULL.clear(reason("memory", "room_left", rank=most, pct=pct, peak=peak, capacity=capacity))
    full = sorted(rank for rank, part in share.items() if part >= BOUNDS.full[0])
    several = tuple(full) if len(full) > 1 else ()
    pct, bound = 100 * share[most], 100 * BOUNDS.full[0]
    severity: Severity = "warning" if share[most] >= BOUNDS.full[1] else "info"
    claim = Full(rank=most, pct=pct, peak=peak, capacity=capacity, full=several, bound=bound)
    evidence = [Evidence(Fact.PEAK, peak, "B", rank=most), Evidence(Fact.OF_GPU, round(pct, 1), "%", bound, most)]
    return NEARLY_FULL.verdict(NEARLY_FULL.finding(severity, "high", claim, evidence, ranks=full))


def _imbalance(inputs: Inputs) -> Verdict:
    known = {use.rank: use for use in inputs.memory if use.peak}
    if len(known) < 2:
        return IMBALANCE.not_evaluated(reason("memory", "of_one_rank" if known else "not_known"))
    if any(bubble.pipeline.ranks for bubble in inputs.run.bubbles):
        most = max(known.values(), key=lambda use: use.peak or 0)
        return IMBALANCE.clear(reason("memory", "stages", rank=most.rank, peak=most.peak or 0))
    if inputs.run.experts:
        return IMBALANCE.clear(reason("memory", "experts"))
    excess = {rank: _excess(use, known, inputs) for rank, use in known.items()}
    least = BOUNDS.more_bytes
    alike = sorted(rank for rank, (more, usual) in excess.items() if more >= max(least, BOUNDS.more * usual))
    worst = max(excess, key=lambda rank: excess[rank][0])
    if worst not in alike:
        return IMBALANCE.clear(reason("memory", "even", pct=100 * BOUNDS.more))
    more, usual = excess[worst]
    use = known[worst]
    own = use.peak or 0
    what, extra = _what_is_more(use, [other for other in known.values() if other is not use], own - usual)
    tight = own > (1 - _LEFT) * (use.capacity or float("inf"))
    claim = HoldsMore(
        rank=worst,
        peak=own,
        usual=usual,
        two=len(known) == 2,
        alike=tuple(sorted({*alike} - {worst})),
        what=what,
        more=extra,
    )
    evidence = [
        Evidence(Fact.PEAK, own, "B", rank=worst, peers=usual),
        Evidence(Fact.MORE_MEMORY, round(100 * more / usual, 1), "%", 100 * BOUNDS.more, worst),
    ]
    severity: Severity = "warning" if tight else "info"
    cause = what if what != "stays" else None
    return IMBALANCE.verdict(IMBALANCE.finding(severity, "high", claim, evidence, ranks=alike, cause=cause))


def _excess(use: MemoryUse, known: Mapping[int, MemoryUse], inputs: Inputs) -> tuple[float, float]:
    """Bytes beyond the median peer's peak, and that. DDP's first buckets may live on for a moment on some ranks."""
    usual = float(median([other.peak or 0 for other in known.values() if other is not use]))
    twice = 0
    if "ddp" in str(inputs.manifest.get("strategy") or "ddp"):
        twice = max((other.held.get("parameters", 0) for other in known.values()), default=0)
    return (use.peak or 0) - usual - twice, usual


def _what_is_more(use: MemoryUse, peers: Sequence[MemoryUse], more: float) -> tuple[str | None, float | None]:
    """What the rank holds more of than the median peer, where all told what they hold at the end of a step."""
    known = [other.held for other in peers if other.held]
    if not use.held or not known:
        return None, None
    names = ("parameters", "gradients", "optimizer_state")
    state = sum(use.held[name] - median([other[name] for other in known]) for name in names)
    if state >= more / 2:
        return "state", state
    stays = use.held["allocated"] - median([other["allocated"] for other in known])
    if stays - state >= more / 2:
        return "stays", stays - state
    return "activations", more - max(stays, 0)


def _growth(uses: Sequence[MemoryUse]) -> Verdict:
    if not any(len(use.looks) for use in uses):
        return GROWTH.not_evaluated(reason("memory", "not_observed"))
    grown = [
        use
        for use in uses
        if use.growth is not None
        and use.growth.last - use.growth.first >= max(BOUNDS.grown_bytes, _GROWN_SHARE * (use.capacity or 0))
    ]
    if not grown:
        return GROWTH.clear(reason("memory", "steady"))
    by_line: dict[str, list[MemoryUse]] = defaultdict(list)
    for use in grown:
        by_line[use.stays[0].place if use.stays else ""].append(use)
    lines = [line for line in by_line if line]
    if len(lines) == 1:  # ranks without a snapshot do what the others do
        by_line[lines[0]] += by_line.pop("", [])
    return GROWTH.verdict(*(_grown(own) for own in by_line.values()))


def _grown(uses: Sequence[MemoryUse]) -> Finding:
    """Of ranks on which the same line makes what stays, or none is known."""
    most = max(uses, key=lambda use: (bool(use.stays), use.growth.per_step if use.growth else 0.0))
    found = most.growth
    assert found is not None
    lasts = (most.capacity - (most.peak or found.last)) / found.per_step if most.capacity else None
    evidence = [
        Evidence(Fact.GROWTH, round(found.per_step), "B a step", rank=most.rank),
        Evidence(Fact.AT_END_OF_STEP, found.last, "B", rank=most.rank),
    ]
    evidence += [Evidence(Fact.STAYS, own.bytes, "B", rank=most.rank, subject=own.place) for own in most.stays[:4]]
    ranks = sorted(use.rank for use in uses)
    claim = Grows(
        ranks=tuple(ranks),
        per_step=found.per_step,
        first=found.first,
        first_step=found.first_step,
        last=found.last,
        last_step=found.last_step,
        left=None if lasts is None else max(lasts, 0.0),
    )
    severity: Severity = "info" if lasts is not None and lasts > _LASTS else "warning"
    if not most.stays:
        return GROWTH.finding(severity, "medium", claim, evidence, ranks=ranks)
    claim = replace(claim, place=most.stays[0].place, blocks=most.stays[0].blocks)
    return GROWTH.finding(severity, "high", claim, evidence, ranks=ranks, cause="line")
