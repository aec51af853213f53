"""TO-M004 and TO-M005: how torch's allocator gets on with the memory that a run needs."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.across.memory_use import MemoryUse
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import who
from traceops.core.rule import Rule, Verdict
from traceops.core.units import count_text, gib_text, ms_text, percent_text, stored
from traceops.rules.inputs import Inputs
from traceops.rules.whole_run import UNLIKE_OVER_RUN

UNUSED = Rule(
    id="TO-M004",
    title="Reserved memory that tensors never used at once",
    fires=(
        "At its peak torch reserved 1.4 times what tensors held at theirs, and 1 GiB more: info. Warning where it "
        "also reserved 90 % of the GPU, or memory ran out and was requested again. FSDP's streams and DDP's "
        "buckets cost up to a third and are no finding."
    ),
    advice=(
        "Sizes that change from step to step leave free blocks that nothing fits into. Pad batches to a few "
        "lengths, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ),
    by_cause=(
        (
            "pieces",
            "The unused memory lies between blocks that are in use, and torch cannot give it back. Set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, create long-lived tensors before the first step, "
            "and pad batches to a few lengths.",
        ),
    ),
)


ASKS_DRIVER = Rule(
    id="TO-M005",
    title="Memory is asked of the driver in the middle of training",
    fires=(
        "In the later two thirds of an observed run, a rank's allocator had to empty its cache and retry, or "
        "called cudaMalloc in every second step: info. Warning where such calls take 5 % of the recorded steps (from "
        "once a step where these do not show what they take), or where memory ran out. In a run that was not "
        "observed: info where they take 10 % of the recorded steps."
    ),
    advice=(
        "Each such call waits for the device. Do not call torch.cuda.empty_cache() in the training; keep "
        "sizes equal, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ),
    by_cause=(
        (
            "retries",
            "The GPU is full, and torch empties its cache to go on. Use less memory (a smaller batch, "
            "checkpointing, sharding: `traceops memory` says what each saves), or leave less of it unused.",
        ),
    ),
)


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
                Evidence("reserved", reserved, "B", rank=most.rank),
                Evidence("most held", peak, "B", rank=most.rank),
                Evidence("reserved ÷ held", round(reserved / peak, 2), "", _RATIO, most.rank),
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
            Evidence("cudaMalloc", round(rate, 2), "calls/step", _MALLOCS, most.rank),
            Evidence("retries", retries, "in the later part of the run", rank=most.rank),
        ]
    else:
        when = words.choose("in the recorded steps", "while the window was recorded")
        said = f"{subject} asks the driver for memory {when}: {count_text(most.calls)} calls {words.per}{took}."
        evidence.append(Evidence("calls for memory", round(most.calls, 2), words.unit("calls"), rank=most.rank))
    if costs:
        evidence.append(Evidence("time of such calls", stored(costs), words.unit("ms"), rank=most.rank))
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
