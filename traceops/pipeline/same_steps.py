"""Whether the ranks of a capture recorded the same steps; those of which none is the others' are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from traceops.measure.summary import RankSummary
from traceops.rules.inputs import OtherSteps
from traceops.traces.run_manifest import RecordedSteps
from traceops.traces.windows import trace_stem


def with_same_steps(
    ranks: Sequence[RankSummary], recorded: Mapping[str, RecordedSteps]
) -> tuple[list[RankSummary], tuple[OtherSteps, ...]]:
    """The ranks that hold the step which most of them hold, of two such the later, and the steps of the rest.

    All, where some step is common to all. recorded: of run.json, by the traces' paths. Only there are steps known to
    be counted alike on all ranks, so that other numbers are other steps: a program that ended early keeps its first
    ones, and a median of these and of later ones would be the time of no step.
    """
    told = {trace_stem(path) for path in recorded}
    steps = {summary.rank: summary.numbered_steps for summary in ranks}
    counts = Counter(number for own in steps.values() for number in own)
    counted_alike = all(trace_stem(summary.path) in told for summary in ranks if steps[summary.rank])
    common = any(n == sum(map(bool, steps.values())) for n in counts.values())
    if not counts or common or not counted_alike:
        return list(ranks), ()
    most = max(counts, key=lambda number: (counts[number], number))
    left = tuple(OtherSteps(rank, tuple(sorted(own))) for rank, own in steps.items() if own and most not in own)
    return [summary for summary in ranks if summary.rank not in {one.rank for one in left}], left
