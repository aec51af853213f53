"""TO-W001: what the whole training spends on steps unlike the others, by what the ranks do in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traceops.across.whole_run import Occasion, Share, WholeRun
from traceops.core.findings import Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import who
from traceops.core.rule import Rule, Verdict
from traceops.core.units import ms_text, percent_text
from traceops.rules.inputs import Inputs

UNLIKE_OVER_RUN = Rule(
    id="TO-W001",
    title="A part of the run goes to steps unlike the others",
    fires=(
        "In an observed run (docs/observe.md): what the ranks do in steps that take over 1.5 times the typical "
        "one, by its share of the whole run. Info from 1 %, warning from 10 %; recompilation, garbage collection "
        "and the allocator error from 30 %. Silent about causes that came once, and about steps in which nothing "
        "was seen."
    ),
    advice="Do the work of these steps less often, or make it cheaper.",
    by_cause=(
        ("evaluation", "Evaluate less often or on fewer batches."),
        (
            "checkpoint",
            "Save less often, or save beside the training (torch.distributed.checkpoint.async_save).",
        ),
        (
            "recompilation",
            "TORCH_LOGS=recompiles names the guard that failed. Keep shapes and flags equal, or mark what changes as "
            "dynamic (torch._dynamo.mark_dynamic).",
        ),
        (
            "garbage_collection",
            "Call gc.freeze() after set-up and gc.disable(), and gc.collect() every few hundred steps, on all ranks at "
            "the same step.",
        ),
        (
            "allocator",
            "Do not call torch.cuda.empty_cache() in the training. Where memory runs out, keep sizes equal, set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or use less of it.",
        ),
        (
            "input",
            "More workers (num_workers), a larger prefetch_factor, and persistent_workers=True so that they do not "
            "start again with each epoch.",
        ),
        ("logging", "Log less often, or from another thread."),
        ("host", "Do this less often, or beside the training."),
    ),
)
RULES = (UNLIKE_OVER_RUN,)
NOT_OBSERVED = "only recorded steps were timed: the run was not observed (docs/observe.md)"

_BOUNDS = (1.0, 10.0)  # percent of the run
_ERROR_PCT = 30.0
_WASTE = ("recompilation", "garbage_collection", "allocator")  # what no training wants
_LEAST_TIMES = 2
_SPREAD_PCT = 3.0  # of a rank's time: told also where no step stands out by it
_LEAST_STEPS = 3
_ID = re.compile(r"\d+/\d+: ")  # of the guard, in torch's reason
_IS = {
    "evaluation": "Evaluation takes",
    "checkpoint": "Writing checkpoints takes",
    "recompilation": "torch.compile compiling again takes",
    "garbage_collection": "Python's garbage collector takes",
    "allocator": "Emptying the allocator's cache takes",
    "input": "Data that comes late takes",
    "logging": "Logging takes",
    "host": "A function that most steps do not call takes",
}


def judge(inputs: Inputs) -> list[Verdict]:
    """Steps of the whole run that are unlike the others."""
    run = inputs.whole
    if run is None:
        return [UNLIKE_OVER_RUN.not_evaluated(NOT_OBSERVED)]
    found = [_finding(run, one, inputs) for one in run.occasions if _is_told(run, one)]
    causes = {one.cause for one in found}
    for cause, shares in (("garbage_collection", run.garbage), ("recompilation", run.compiled)):
        if cause not in causes and (spread := _spread(run, cause, shares)) is not None:
            found.append(spread)
    timed = int(run.timed.sum())
    beyond = timed - run.typical_steps - len(run.start)
    return [
        UNLIKE_OVER_RUN.verdict(
            *found,
            clear=f"of {timed} steps timed without the profiler, {beyond} are unlike the others, and nothing that "
            "comes again takes 1 % of the run",
        )
    ]


def _is_told(run: WholeRun, one: Occasion) -> bool:
    if one.cause == "unknown" or one.share_pct < _BOUNDS[0]:
        return False
    least = 3 if one.cause in ("host", "input") else _LEAST_TIMES
    return one.times >= least


def _severity(cause: str, share_pct: float) -> Severity:
    error = _ERROR_PCT if cause in _WASTE else float("inf")
    return severity_of(share_pct, *_BOUNDS, error) or "info"


def _finding(run: WholeRun, one: Occasion, inputs: Inputs) -> Finding:
    each = one.more_ms / one.times
    where = "" if one.place is None else f", in {one.place.said}"
    again = what_was_compiled(inputs, one) if one.cause == "recompilation" else ""
    on = "" if set(one.ranks) == set(run.ranks) else f" on {who(one.ranks)}"
    message = (
        f"{_IS[one.cause]} {percent_text(one.share_pct)} of the run{on}{where}: {one.times} times in "
        f"{int(run.timed.sum())} steps, {ms_text(each)} ms each beyond the typical step of "
        f"{ms_text(run.typical_ms)} ms.{again}"
    )
    evidence = [
        Evidence("of the run", round(one.share_pct, 2), "%", _BOUNDS[0]),
        Evidence("came", one.times, f"times in {int(run.timed.sum())} steps"),
        Evidence("longer", round(each, 3), "ms each time"),
        Evidence("typical step", round(run.typical_ms, 3), "ms"),
    ]
    if one.place is not None and one.place.text:
        evidence.append(Evidence("line", one.place.text, file=one.place.file, line=max(one.place.line, 1)))
    return UNLIKE_OVER_RUN.finding(
        _severity(one.cause, one.share_pct),
        "high" if one.cause != "host" else "medium",
        message,
        evidence,
        ranks=one.ranks,
        steps=one.steps[:64],
        impact_ms=round(one.more_ms / max(int(run.timed.sum()), 1), 3),
        cause=one.cause,
    )


def what_was_compiled(inputs: Inputs, one: Occasion) -> str:
    """What was compiled most, and torch's own reason."""
    told = [c for own in inputs.observed for c in own.compilations if c.step in one.steps]
    if not told:
        return ""
    most = max(told, key=lambda c: (c.us, c.function))
    name = most.file.rpartition("/")[2]
    said = (most.reason or "").strip()
    first = said.splitlines()[0][:120] if said else ""
    why = f"; torch says why: {_ID.sub('', first).rstrip('.')}" if first else ""
    return f" It compiles {most.function} ({name}:{most.line}){why}."


def _spread(run: WholeRun, cause: str, shares: Mapping[int, Share]) -> Finding | None:
    """What takes a part of a rank's time without making steps stand out by it."""
    if not shares:
        return None
    rank = max(shares, key=lambda one: shares[one].pct)
    share = shares[rank]
    if share.pct < _SPREAD_PCT or share.steps < _LEAST_STEPS:
        return None
    steps = int(run.timed.sum()) - len(run.start)
    return UNLIKE_OVER_RUN.finding(
        _severity(cause, share.pct),
        "high",
        f"{_IS[cause]} {percent_text(share.pct)} of rank {rank}'s time, in {share.steps} of {steps} steps.",
        [
            Evidence("of the time", round(share.pct, 2), "%", _SPREAD_PCT, rank),
            Evidence("came", share.steps, f"of {steps} steps", rank=rank),
        ],
        ranks=[rank],
        impact_ms=round(share.pct / 100 * run.total_ms / max(int(run.timed.sum()), 1), 3),
        cause=cause,
    )
