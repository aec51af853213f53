"""TO-M001 to TO-M003, and the family of TO-M: how a run uses its GPUs' memory, by what its ranks recorded of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from traceops.across.memory_use import MemoryUse
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rank_text import who
from traceops.core.rule import Rule, Verdict
from traceops.core.units import gib_text, percent_text
from traceops.rules.inputs import Inputs
from traceops.rules.memory_allocator import (
    ASKS_DRIVER,
    NOT_OBSERVED,
    NOT_TOLD,
    UNUSED,
    judge_driver_calls,
    judge_unused,
)

MIB = 1 << 20

NEARLY_FULL = Rule(
    id="TO-M001",
    title="A rank is near or over its memory",
    fires=(
        "Where tensors at their peak took 90 % of the GPU (info) or 95 % (warning). What torch reserves "
        "and does not use does not count: it gives that back before memory runs out."
    ),
    advice=(
        "A little more memory ends this run: a longer batch, another process on the GPU, a rank that holds "
        "more. `traceops memory` with the options of the training says what a change saves before it is "
        "tried."
    ),
)

IMBALANCE = Rule(
    id="TO-M002",
    title="One rank holds more memory than its peers",
    fires=(
        "The tensors of a rank took 25 % more at their peak than those of the median peer, and 256 MiB more: "
        "info; warning where that rank has less than a tenth of its GPU left. With DDP, gradients that a rank may "
        "hold twice for a moment are subtracted. Not judged in a pipeline, whose stages hold different layers and "
        "numbers of micro-batches, nor among ranks with experts of their own."
    ),
    advice=(
        "The rank that holds most limits the batch of all ranks. See what this rank holds in addition: a "
        "model or data set kept for evaluation, gathered outputs, a state that is not sharded. `traceops "
        "memory` compares two snapshots by line."
    ),
    by_cause=(
        (
            "activations",
            "The parameters, gradients and optimizer states of the ranks are alike: this rank's batches are larger "
            "or longer, or it computes in another way (attention without its fused kernel, no checkpointing). Share "
            "samples by length (packing, grouping by length), or cut the longest; compare the ranks' kernels.",
        ),
        (
            "state",
            "This rank keeps more parameters, gradients or optimizer state. Shard them evenly (FSDP, ZeRO), or see "
            "what "
            "model only this rank has.",
        ),
    ),
)

GROWTH = Rule(
    id="TO-M003",
    title="Memory grows from step to step",
    fires=(
        "The memory that tensors hold at the end of a step grows all through an observed run: the least of each "
        "quarter is above that of the quarter before, evenly, by 64 MiB or 1 % of the GPU in all. Warning; info "
        "where the GPU would last for another million steps."
    ),
    advice=(
        "Look for tensors that are kept in a list or a running sum: a loss without .item() or .detach() "
        "keeps its whole graph. `traceops run --with-memory` names the line that made what stays."
    ),
    by_cause=(
        (
            "line",
            ("Keep a number (.item()) or a detached copy instead of the tensor, and see what still holds the tensor."),
        ),
    ),
)
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
                Evidence("peak", peak, "B", rank=most),
                Evidence("of the GPU", round(100 * share[most], 1), "%", 100 * _FULL[0], most),
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
                Evidence("peak", own, "B", rank=worst, peers=usual),
                Evidence("more", round(100 * more / usual, 1), "%", 100 * _MORE, worst),
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
        Evidence("growth", round(found.per_step), "B a step", rank=most.rank),
        Evidence("at the end of a step", found.last, "B", rank=most.rank),
    ]
    evidence += [Evidence(f"stays: {own.place}", own.bytes, "B", rank=most.rank) for own in most.stays[:4]]
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
