"""TO-V003: ranks that cover different steps."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import who, who_first
from traceops.core.rule import Rule, Verdict
from traceops.measure.summary import RankSummary, numbered_steps
from traceops.rules.inputs import OtherSteps

ENDED_EARLY = (
    "ended_early",
    "Have all ranks train past the schedule's window, or record with lower --skip-first, --unprofiled, "
    "--warmup and --active.",
)
UNEVEN_STEPS = Rule(
    id="TO-V003",
    title="Ranks cover different steps",
    fires=(
        "Fires where the step numbers differ between ranks. A rank of a capture of traceops that recorded none of the "
        "steps of most others is left out of all numbers."
    ),
    advice="Start all ranks' profilers at the same step: use `traceops run`, or one schedule everywhere.",
    by_cause=(ENDED_EARLY,),
)


def judge_steps(ranks: Sequence[RankSummary], left_out: Sequence[OtherSteps]) -> Verdict:
    """TO-V003: the same steps on every rank."""
    if left_out:
        return UNEVEN_STEPS.verdict(_left_out(ranks, left_out))
    steps = {summary.rank: summary.numbered_steps for summary in ranks}
    if not any(steps.values()):
        return UNEVEN_STEPS.not_evaluated("the traces mark no steps (no ProfilerStep annotation)")
    if len(ranks) == 1:
        return UNEVEN_STEPS.not_evaluated("there is only one rank")
    common, every = set.intersection(*steps.values()), set.union(*steps.values())
    if common == every:
        return UNEVEN_STEPS.clear(f"all ranks cover the {len(every)} steps {_span(every)}")
    odd = [rank for rank, own in steps.items() if own != every]
    return UNEVEN_STEPS.verdict(
        UNEVEN_STEPS.finding(
            "warning" if any(summary.steps_by == "profiler" for summary in ranks) else "info",
            "high",
            f"{who_first(odd)} {'does' if len(odd) == 1 else 'do'} not cover all of steps {_span(every)}; "
            f"{_common(len(common))} common to all ranks.",
            [Evidence("common steps", len(common), "steps", len(every))]
            + [Evidence("steps", _span(steps[rank]), rank=rank) for rank in odd[:16]],
            ranks=odd,
            steps=sorted(every - common),
        )
    )


def _left_out(ranks: Sequence[RankSummary], left_out: Sequence[OtherSteps]) -> Finding:
    used = numbered_steps(ranks)
    others = {number for one in left_out for number in one.steps}
    odd = [one.rank for one in left_out]
    return UNEVEN_STEPS.finding(
        "warning",
        "high",
        f"{who_first(odd)} recorded other steps ({_span(others)}) than {who([s.rank for s in ranks])} "
        f"({_span(used)}), and none in common. All numbers are of {who([s.rank for s in ranks])} alone.",
        [Evidence("common steps", 0, "steps", len(used | others))]
        + [Evidence("steps", _span(set(one.steps)), rank=one.rank) for one in left_out[:16]],
        ranks=odd,
        steps=sorted(others),
        cause=ENDED_EARLY[0],
    )


def _common(count: int) -> str:
    return "no step is" if count == 0 else "1 step is" if count == 1 else f"{count} steps are"


def _span(steps: set[int]) -> str:
    if not steps:
        return "none"
    ordered = sorted(steps)
    dense = ordered[-1] - ordered[0] + 1 == len(ordered)
    if dense and len(ordered) > 1:
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(map(str, ordered[:20])) + (" …" if len(ordered) > 20 else "")
