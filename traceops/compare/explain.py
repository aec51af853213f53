"""Why the step changed: from the ledger's buckets down to what is called more often, longer, or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from traceops.compare.capture import ComparedCapture
from traceops.compare.changes import COPIES, moved_kernels
from traceops.compare.communication import bandwidth_explanation, collectives_explanation
from traceops.compare.explanation_text import (
    bucket_text,
    calls_more_text,
    calls_text,
    count_change_text,
    joined,
    kernel_text,
    operator_text,
)
from traceops.compare.ledger import LedgerChange
from traceops.compare.model import Change, Explanation
from traceops.compare.stragglers import straggler_explanation
from traceops.core.findings import Evidence
from traceops.core.units import ms_change_text

# What a change of the step can come from; an explanation names one.
CAUSES = (
    "collectives",  # other collectives, or more or fewer of them
    "bandwidth",  # the same collectives take longer
    "blocking_calls",  # the host waits for the device more often
    "input",  # the device waits for data
    "straggler",  # ranks wait for one of them
    "compute",  # kernels: new ones, more of them, longer ones
    "launch",  # the host launches later
    "memory",  # copies
    "peak_memory",  # of the memory, not of the step: what grew of it
    "waiting",  # ranks wait for each other, nobody in particular
    "other",
)
_SHARE = 0.2  # of the change: less is not its reason
_ONE_CALL = 0.9  # a step: some windows begin or end with half a step
_KERNELS = "kernels"
_FEW = 3  # kernels or operators named in a sentence


def explain(
    ledger: LedgerChange,
    changes: Sequence[Change],
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
    wanted_ms: float | None = None,
    regressed: Sequence[str] = (),
) -> tuple[Explanation, ...]:
    """Reasons for the change, the most important first.

    wanted_ms: change of the step that is to be explained, None where it is too small to ask for a reason. Where it
    is known, what goes its way and is a fifth of it comes first. Within that, what can be counted comes before what
    was only timed: other collectives, new blocking calls, work that was not there. A bucket that one reason accounts
    for is not explained again by the next. Of the metrics that `regressed`, the number of kernels is explained by
    what is called more often. What noise alone could do is left out, unless nothing else is left.
    """
    counted: list[Explanation] = []
    timed: list[Explanation] = []
    left = dict(ledger.change)

    def keep(found: Explanation | None, *, sure: bool) -> None:
        if found is not None:
            for bucket in found.buckets:
                left.pop(bucket, None)
            (counted if sure else timed).append(found)

    straggler = straggler_explanation(ledger, left, changes, base, head)
    keep(straggler, sure=False)
    keep(bandwidth_explanation(ledger, left, changes, base, head), sure=False)
    keep(collectives_explanation(ledger, left, changes, base, head), sure=True)
    keep(_blocking(ledger, left, changes), sure=True)
    compute = _compute(ledger, left, changes)
    keep(compute, sure=compute is not None and _is_counted(compute))
    for bucket in ("idle_input", "idle_host", "memory", "comm_wait", "comm_transfer", "idle_sync"):
        if abs(left.get(bucket, 0.0)) >= ledger.worth_ms:
            timed.append(_of_bucket(bucket, left[bucket], ledger, changes, base, head))
    timed += [
        Explanation("other", bucket_text(b, ledger), left[b], (b,))
        for b in ("idle_dependency", "idle_unknown", "idle_gap", "comm_unmatched")
        if abs(left.get(b, 0.0)) >= ledger.worth_ms
    ]
    keep(_more_kernels(changes) if _KERNELS in regressed else None, sure=True)
    beyond = [e for e in timed if not ledger.in_noise.issuperset(e.buckets)]
    return _in_order(counted, beyond or ([] if counted else timed[:1]), sum(ledger.change.values()), wanted_ms)


def _in_order(
    counted: list[Explanation], timed: list[Explanation], total_ms: float, wanted_ms: float | None
) -> tuple[Explanation, ...]:
    along = 1.0 if (wanted_ms if wanted_ms is not None else total_ms) >= 0 else -1.0
    sure = sorted(counted, key=lambda e: -abs(e.ms))
    rest = sorted(timed, key=lambda e: -e.ms * along)
    if wanted_ms is None:
        return (*sure, *rest)
    most = max((e.ms * along for e in (*sure, *rest)), default=0.0)
    bound = _SHARE * min(abs(wanted_ms), most) if most > 0 else float("inf")
    first = [e for e in (*sure, *rest) if e.ms * along >= bound]
    then = sorted((e for e in (*sure, *rest) if e.ms * along < bound), key=lambda e: -e.ms * along)
    return (*first, *then)


def _blocking(ledger: LedgerChange, left: dict[str, float], changes: Sequence[Change]) -> Explanation | None:
    """Calls that wait for the device and are called more often than before, or less."""
    calls = [
        c
        for c in changes
        if c.kind == "blocking_call" and abs((c.head_count or 0.0) - (c.base_count or 0.0)) >= _ONE_CALL
    ]
    if not calls:
        return None
    more = sum((c.head_count or 0.0) - (c.base_count or 0.0) for c in calls)
    buckets = tuple(b for b in ("idle_sync", "idle_host") if left.get(b, 0.0) * more > 0)
    ms = sum(left[bucket] for bucket in buckets)
    if abs(ms) < ledger.worth_ms and abs(more) < 2.0 and all(c.status == "changed" for c in calls):
        return None
    idle = f"; the {ledger.device} idles {ms_change_text(ms)} a step for it" if ms else ""
    evidence = (
        Evidence("blocking_calls_per_step", round(sum(c.head_count or 0.0 for c in calls), 2), "",
                 peers=round(sum(c.base_count or 0.0 for c in calls), 2)),
    )  # fmt: skip
    return Explanation(
        "blocking_calls", calls_text(calls) + idle, ms, buckets or ("idle_sync",), evidence, tuple(calls)
    )


def _compute(ledger: LedgerChange, left: dict[str, float], changes: Sequence[Change]) -> Explanation | None:
    ms = left.get("compute", 0.0)
    if abs(ms) < ledger.worth_ms:
        return None
    movers = moved_kernels(changes, ms)
    named = movers[:_FEW]
    how = joined([kernel_text(c) for c in named]) if named else "no single kernel stands out"
    text = f"compute {ms_change_text(ms)} a step: {how}"
    return Explanation("compute", text, ms, ("compute",), (), tuple(movers))


def _more_kernels(changes: Sequence[Change]) -> Explanation | None:
    """What is launched more often than before, most calls first."""
    more = [c for c in changes if c.kind == "kernel" and (c.head_count or 0.0) - (c.base_count or 0.0) >= 0.5]
    if not more:
        return None
    more.sort(key=lambda c: (c.base_count or 0.0) - (c.head_count or 0.0))
    names = joined([calls_more_text(c) for c in more[:_FEW]])
    return Explanation("compute", f"more is launched: {names}", sum(c.more_ms for c in more), (), (), tuple(more))


def _is_counted(explanation: Explanation) -> bool:
    """Whether most of it is work that was not there before, or that is gone: counted, not only timed."""
    other = sum(
        c.more_ms
        for c in explanation.changes
        if c.status in ("new", "vanished")
        or abs((c.head_count or 0.0) - (c.base_count or 0.0)) >= max(1.0, 0.1 * (c.base_count or 0.0))
    )
    return abs(other) >= 0.5 * abs(explanation.ms)


def _of_bucket(
    bucket: str,
    ms: float,
    ledger: LedgerChange,
    changes: Sequence[Change],
    base: Sequence[ComparedCapture],
    head: Sequence[ComparedCapture],
) -> Explanation:
    """One bucket that nothing else accounts for, with what may be behind it."""
    cause = {
        "idle_input": "input", "idle_host": "launch", "memory": "memory", "comm_wait": "waiting",
        "comm_transfer": "bandwidth", "idle_sync": "blocking_calls",
    }[bucket]  # fmt: skip
    operators = _moved_operators(changes, ms)
    behind: list[Change] = []
    text = bucket_text(bucket, ledger)
    if bucket == "idle_input":
        behind = [c for c in operators if "load" in c.name.lower() or "fetch" in c.name.lower()][:_FEW]
    elif bucket == "idle_host":
        behind = operators[:_FEW]
        if (kernels := _kernel_count(base, head)) is not None:
            text += f"; {count_change_text('kernel', *kernels)}"
    elif bucket == "memory":
        behind = [c for c in changes if c.kind == "kernel" and c.name.startswith(COPIES) and c.more_ms * ms > 0][:_FEW]
    if behind:
        texts = [operator_text(c) if c.kind == "operator" else kernel_text(c) for c in behind]
        text += f" ({joined(texts)})"
    return Explanation(cause, text, ms, (bucket,), (), tuple(behind))


def _moved_operators(changes: Sequence[Change], ms: float) -> list[Change]:
    """Operators whose host time took part in a change of `ms`, all shapes together, most first."""
    by_name: dict[str, Change] = {}
    for change in changes:
        if change.kind == "operator":
            same = by_name.get(change.name)
            by_name[change.name] = (
                replace(change, detail="")
                if same is None
                else replace(
                    same,
                    base_count=(same.base_count or 0.0) + (change.base_count or 0.0),
                    head_count=(same.head_count or 0.0) + (change.head_count or 0.0),
                    base_ms=(same.base_ms or 0.0) + (change.base_ms or 0.0),
                    head_ms=(same.head_ms or 0.0) + (change.head_ms or 0.0),
                )
            )
    movers = [c for c in by_name.values() if c.more_ms * ms > 0 and abs(c.more_ms) >= 0.1 * abs(ms)]
    return sorted(movers, key=lambda c: -abs(c.more_ms))


def _kernel_count(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> tuple[float, float] | None:
    """Kernels a step on both sides, where their number differs by a tenth."""
    counts = []
    for side in (base, head):
        rows = [row.kernels for capture in side for row in capture.report.steps]
        known = sorted(float(count) for count in rows if count is not None)
        counts.append(known[len(known) // 2] if known else 0.0)
    old, new = counts
    return (old, new) if old and abs(new - old) >= 0.1 * old else None
