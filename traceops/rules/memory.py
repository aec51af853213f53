"""TO-M001 to TO-M003, and the family of TO-M: how a run uses its GPUs' memory, by what its ranks recorded of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceops.across.memory_use import MemoryUse
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rank_text import who
from traceops.core.rule import Verdict, described
from traceops.core.units import count_text, gib_text, ms_text, percent_text, stored
from traceops.rules.inputs import Inputs
from traceops.rules.whole_run import UNLIKE_OVER_RUN

# TO-M004 and TO-M005: how torch's allocator gets on with the memory that a run needs.


UNUSED = described("memory", "TO-M004")


ASKS_DRIVER = described("memory", "TO-M005")


_RATIO, _LEAST_UNUSED = 1.4, 1 << 30  # reserved ÷ held, and bytes beyond it
_IN_PIECES = 0.2  # of what is reserved: free between blocks in use
_RESERVED = 0.9  # of a GPU
_MALLOCS = 0.5  # cudaMalloc calls a step
_OF_STEP, _OF_STEP_ALONE = (0.05, 0.1)  # what such calls take: a warning; a finding where nothing else was observed
_SHOWN = 0.05  # calls a step; less would read as none
_RETRIES = 2  # one is that of a request that ended the program
NOT_TOLD = "no rank told how much of a GPU's memory it held"
NOT_OBSERVED = "the run was not observed (docs/observe.md), or has too few steps"


def judge_unused(uses: Sequence[MemoryUse]) -> Verdict:
    """TO-M004 of the rank whose reserved bytes are furthest beyond what its tensors held at once."""
    known = [use for use in uses if use.peak and use.reserved]
    if not known:
        return UNUSED.not_evaluated(NOT_TOLD)
    wide = [use for use in known if _much_unused(use)]
    most = max(wide or known, key=lambda use: (use.reserved or 0) - (use.peak or 0))
    peak, reserved = most.peak or 0, most.reserved or 0
    said = f"torch reserved {gib_text(reserved)} on rank {most.rank}, and tensors never held more than {gib_text(peak)}"
    if not wide:
        return UNUSED.clear(f"{said} at once: no more than streams and buckets cost")
    pieces = most.pieces is not None and most.pieces >= _IN_PIECES
    full = most.capacity is not None and reserved >= _RESERVED * most.capacity
    where = (
        f"; at the ends of steps {percent_text(100 * most.pieces)} of it lies free between blocks in use"
        if pieces and most.pieces is not None
        else ""
    )
    ranks = sorted(use.rank for use in wide)
    also = f" ({who(ranks)} alike)" if len(ranks) > 1 else ""
    return UNUSED.verdict(
        UNUSED.finding(
            "warning" if full or most.retries else "info",
            "high",
            f"{said[0].upper()}{said[1:]} at once{also}{where}.",
            [
                Evidence(Fact.RESERVED, reserved, "B", rank=most.rank),
                Evidence(Fact.MOST_HELD, peak, "B", rank=most.rank),
                Evidence(Fact.RESERVED_BY_HELD, round(reserved / peak, 2), "", _RATIO, most.rank),
            ],
            ranks=ranks,
            cause="pieces" if pieces else None,
        )
    )


def _much_unused(use: MemoryUse) -> bool:
    peak, reserved = use.peak or 0, use.reserved or 0
    return reserved - peak >= _LEAST_UNUSED and reserved >= _RATIO * peak


def judge_driver_calls(inputs: Inputs) -> Verdict:
    """TO-M005 by the allocator's counters in an observed run, else by the calls in the recorded steps."""
    uses = inputs.memory
    seen = [use for use in uses if use.mallocs is not None]
    traced = [use for use in uses if use.calls]
    if not seen and not traced and not any(times.summary.on_gpu for times in inputs.run.ranks):
        return ASKS_DRIVER.not_evaluated(NOT_OBSERVED)
    step_ms = inputs.run.step_ms
    busy = [use for use in seen if (use.retries or 0) >= _RETRIES or (use.mallocs or 0) >= _MALLOCS]
    if not seen:
        busy = [use for use in traced if step_ms > 0 and use.allocating_ms >= _OF_STEP_ALONE * step_ms]
    if not busy:
        return ASKS_DRIVER.clear("the allocator has the memory that it needs")
    if any(found.cause == "allocator" for found in inputs.found_before(UNLIKE_OVER_RUN)) and not any(
        (use.retries or 0) >= _RETRIES for use in busy
    ):
        return ASKS_DRIVER.clear("the program empties the cache itself, which TO-W001 tells")
    return ASKS_DRIVER.verdict(_asked(busy, inputs, observed=bool(seen)))


def _calls(rate: float) -> str:
    count = count_text(rate)
    return f"{count} cudaMalloc call{'' if count == '1' else 's'}"


def _asked(busy: Sequence[MemoryUse], inputs: Inputs, *, observed: bool) -> Finding:
    most = max(busy, key=lambda use: (use.retries or 0, use.mallocs or 0.0, use.allocating_ms))
    step_ms, words = inputs.run.step_ms, inputs.run.step_words
    costs = max(use.allocating_ms for use in busy)
    ranks = sorted(use.rank for use in busy)
    took = (
        f", and they take {ms_text(costs)} ms of a recorded {words.noun} of {ms_text(step_ms)}" if costs >= 0.05 else ""
    )
    subject = f"On {who(ranks)} the allocator"
    evidence, retries, rate = [], 0, most.calls
    if observed:
        rate, retries = most.mallocs or 0.0, most.retries or 0
        said = (
            f"{subject} still asks the driver for memory in the middle of the training: up to {_calls(rate)} a "
            f"step, each of which waits for the device{took}."
        )
        if retries >= _RETRIES:
            calls = f", with {_calls(rate)} a step" if rate >= _SHOWN else ""
            said = (
                f"{subject} ran out of memory and emptied its cache to go on, {retries} times in the later part of the "
                f"run{calls}, each of which waits for the device{took}."
            )
        evidence += [
            Evidence(Fact.CUDAMALLOC, round(rate, 2), "calls/step", _MALLOCS, most.rank),
            Evidence(Fact.RETRIES, retries, "in the later part of the run", rank=most.rank),
        ]
    else:
        when = words.choose("in the recorded steps", "while the window was recorded")
        said = f"{subject} asks the driver for memory {when}: {count_text(most.calls)} calls {words.per}{took}."
        evidence.append(Evidence(Fact.CALLS_FOR_MEMORY, round(most.calls, 2), words.unit("calls"), rank=most.rank))
    if costs:
        evidence.append(Evidence(Fact.TIME_OF_SUCH_CALLS, stored(costs), words.unit("ms"), rank=most.rank))
    known = costs > 0 and step_ms > 0  # what they take decides, not how many they are
    much = observed and (retries >= _RETRIES or (costs >= _OF_STEP * step_ms if known else rate >= 1))
    return ASKS_DRIVER.finding(
        "warning" if much else "info",
        "high",
        f"{said}{_emptied(most.rank, inputs)}",
        evidence,
        ranks=ranks,
        impact_ms=stored(costs) if costs >= 0.05 else None,
        cause="retries" if retries >= _RETRIES else None,
    )


def _emptied(rank: int, inputs: Inputs) -> str:
    """Where the program empties the cache itself, as looks at its host saw it."""
    host = () if inputs.whole is None else inputs.whole.host.get(rank, ())
    place = next((one.place for one in host if one.does == "allocator"), None)
    return "" if place is None else f" The program empties the cache itself, in {place.said}."


MIB = 1 << 20

NEARLY_FULL = described("memory", "TO-M001")

IMBALANCE = described("memory", "TO-M002")

GROWTH = described("memory", "TO-M003")
RULES = (NEARLY_FULL, IMBALANCE, GROWTH, UNUSED, ASKS_DRIVER)

_FULL = (0.90, 0.95)  # of a GPU
_MORE, _LEAST_MORE = 0.25, 256 * MIB
_LEFT = 0.1
_GROWN, _GROWN_SHARE, _LASTS = 64 * MIB, 0.01, 1_000_000


def judge(inputs: Inputs) -> list[Verdict]:
    """Peaks, imbalance, growth, unused memory and calls of the driver."""
    uses = inputs.memory
    return [_full(uses), _imbalance(inputs), _growth(uses), judge_unused(uses), judge_driver_calls(inputs)]


def _full(uses: Sequence[MemoryUse]) -> Verdict:
    known = {use.rank: (use.peak, use.capacity) for use in uses if use.peak and use.capacity}
    if not known:
        return NEARLY_FULL.not_evaluated(NOT_TOLD)
    share = {rank: peak / capacity for rank, (peak, capacity) in known.items()}
    most = max(share, key=lambda rank: share[rank])
    peak, capacity = known[most]
    said = (
        f"tensors took {percent_text(100 * share[most])} of its GPU at their peak, {gib_text(peak)} of "
        f"{gib_text(capacity)}"
    )
    if share[most] < _FULL[0]:
        return NEARLY_FULL.clear(f"of the rank that holds most, {most}, {said}")
    full = sorted(rank for rank, part in share.items() if part >= _FULL[0])
    others = f"; {who(full)} took {percent_text(100 * _FULL[0])} or more" if len(full) > 1 else ""
    return NEARLY_FULL.verdict(
        NEARLY_FULL.finding(
            "warning" if share[most] >= _FULL[1] else "info",
            "high",
            f"Rank {most}: {said}{others}.",
            [
                Evidence(Fact.PEAK, peak, "B", rank=most),
                Evidence(Fact.OF_GPU, round(100 * share[most], 1), "%", 100 * _FULL[0], most),
            ],
            ranks=full,
        )
    )


def _imbalance(inputs: Inputs) -> Verdict:
    known = {use.rank: use for use in inputs.memory if use.peak}
    if len(known) < 2:
        return IMBALANCE.not_evaluated(NOT_TOLD if not known else "only one rank told what it held")
    stages = {rank for bubble in inputs.run.bubbles for rank in bubble.pipeline.ranks}
    if stages:
        most = max(known.values(), key=lambda use: use.peak or 0)
        return IMBALANCE.clear(
            f"stages of a pipeline hold what they hold by design; rank {most.rank} holds most, "
            f"{gib_text(most.peak or 0)}"
        )
    if inputs.run.experts:
        return IMBALANCE.clear("ranks with experts of their own hold what is sent to them")
    excess = {rank: _excess(use, known, inputs) for rank, use in known.items()}
    worst = max(excess, key=lambda rank: excess[rank][0])
    more, usual = excess[worst]
    if more < _LEAST_MORE or more < _MORE * usual:
        return IMBALANCE.clear(f"no rank holds {percent_text(100 * _MORE)} more than the median peer")
    use = known[worst]
    own = use.peak or 0
    cause, why = _what_is_more(use, [other for other in known.values() if other is not use], own - usual)
    tight = use.capacity is not None and own > (1 - _LEFT) * use.capacity
    alike = sorted(rank for rank, (more, usual) in excess.items() if more >= max(_LEAST_MORE, _MORE * usual))
    and_ranks = f" (so do {who([r for r in alike if r != worst])})" if len(alike) > 1 else ""
    return IMBALANCE.verdict(
        IMBALANCE.finding(
            "warning" if tight else "info",
            "high",
            f"Rank {worst} holds {gib_text(own)} at its peak, the {'other rank' if len(known) == 2 else 'median peer'} "
            f"{gib_text(usual)}{and_ranks}{why}.",
            [
                Evidence(Fact.PEAK, own, "B", rank=worst, peers=usual),
                Evidence(Fact.MORE_MEMORY, round(100 * more / usual, 1), "%", 100 * _MORE, worst),
            ],
            ranks=alike,
            cause=cause,
        )
    )


def _excess(use: MemoryUse, known: Mapping[int, MemoryUse], inputs: Inputs) -> tuple[float, float]:
    """Bytes beyond the median peer's peak, and that. DDP's first buckets may live on for a moment on some ranks."""
    usual = float(np.median([other.peak or 0 for other in known.values() if other is not use]))
    twice = 0
    if "ddp" in str(inputs.manifest.get("strategy") or "ddp"):
        twice = max((other.held.get("parameters", 0) for other in known.values()), default=0)
    return (use.peak or 0) - usual - twice, usual


def _what_is_more(use: MemoryUse, peers: Sequence[MemoryUse], more: float) -> tuple[str | None, str]:
    """What the rank holds more of than the median peer, where all told what they hold at the end of a step."""
    told = [other.held for other in peers if other.held]
    if not use.held or not told:
        return None, ""
    names = ("parameters", "gradients", "optimizer_state")
    state = sum(use.held[name] - float(np.median([other[name] for other in told])) for name in names)
    if state >= more / 2:
        return "state", f": {gib_text(state)} more of parameters, gradients and optimizer state"
    stays = use.held["allocated"] - float(np.median([other["allocated"] for other in told]))
    if stays - state >= more / 2:
        return (None, f": {gib_text(stays - state)} more stay between steps, none of it parameters or optimizer state")
    return ("activations", f": {gib_text(more - max(stays, 0))} more within the step (activations and temporaries)")


def _growth(uses: Sequence[MemoryUse]) -> Verdict:
    if not any(len(use.looks) for use in uses):
        return GROWTH.not_evaluated(NOT_OBSERVED)
    grown = [use for use in uses if use.growth is not None and _grows_much(use)]
    if not grown:
        return GROWTH.clear("what tensors hold at the end of a step does not grow all through the run")
    by_line: dict[str, list[MemoryUse]] = defaultdict(list)
    for use in grown:
        by_line[use.stays[0].place if use.stays else ""].append(use)
    told = [line for line in by_line if line]
    if len(told) == 1:  # ranks without a snapshot do what the others do
        by_line[told[0]] += by_line.pop("", [])
    return GROWTH.verdict(*(_grown(own) for own in by_line.values()))


def _grows_much(use: MemoryUse) -> bool:
    assert use.growth is not None
    return use.growth.last - use.growth.first >= max(_GROWN, _GROWN_SHARE * (use.capacity or 0))


def _grown(uses: Sequence[MemoryUse]) -> Finding:
    """Of ranks on which the same line makes what stays, or none is known."""
    most = max(uses, key=lambda use: (bool(use.stays), use.growth.per_step if use.growth else 0.0))
    found = most.growth
    assert found is not None
    whose = "its GPU" if len(uses) == 1 else "a GPU of theirs"
    lasts = (most.capacity - (most.peak or found.last)) / found.per_step if most.capacity else None
    until = "" if lasts is None else f"; at this rate {whose} is full after another {max(lasts, 0):,.0f} steps"
    line = f" What stays is made in {most.stays[0].place} ({most.stays[0].blocks} blocks of it)." if most.stays else ""
    evidence = [
        Evidence(Fact.GROWTH, round(found.per_step), "B a step", rank=most.rank),
        Evidence(Fact.AT_END_OF_STEP, found.last, "B", rank=most.rank),
    ]
    evidence += [Evidence(Fact.STAYS, own.bytes, "B", rank=most.rank, subject=own.place) for own in most.stays[:4]]
    ranks = sorted(use.rank for use in uses)
    severity: Severity = "info" if lasts is not None and lasts > _LASTS else "warning"
    return GROWTH.finding(
        severity,
        "high" if most.stays else "medium",
        f"On {who(ranks)} tensors hold more at the end of each step: {gib_text(found.per_step)} a step, from "
        f"{gib_text(found.first)} at step {found.first_step} to {gib_text(found.last)} at step {found.last_step}"
        f"{until}.{line}",
        evidence,
        ranks=ranks,
        cause="line" if most.stays else None,
    )
