"""TO-S001 as a remark: a rank whose device is late, which data loading hides as long as it bounds the step."""

from __future__ import annotations

from msgspec import UNSET

from traceops.across.cross_rank import CrossRank
from traceops.across.replay.what_if import NO_LOADING
from traceops.core.cause_words import CAUSES, COMPUTES_LONGER
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Rule
from traceops.core.units import stored
from traceops.rules.straggler_bounds import CHANCE, IMPACT_BOUNDS
from traceops.rules.straggler_conditions import late_in_most
from traceops.rules.straggler_evidence import grown_evidence, mean_over


def behind_loading(rule: Rule, run: CrossRank) -> list[Finding]:
    """Who would be waited for with batches in time; nobody where loading saves nothing, or where that is chance."""
    late = run.late_behind_loading
    saved_by_loading = None if run.what_if is None else run.what_if.saved_ns(NO_LOADING)
    if late is None or run.what_if is None or saved_by_loading is None:
        return []
    mean, words = mean_over(run), run.step_words
    step, saved = mean(run.what_if.replayed_ns), mean(late.saved)
    in_time = step - saved_by_loading
    if saved < IMPACT_BOUNDS[0] / 100 * in_time or late.chance > CHANCE or not late.apart:
        return []
    if not late_in_most(late, run):
        return []
    compared = run.work.get(late.rank)
    longer = UNSET if compared is None else compared.kind
    why = CAUSES[late.cause] if longer is UNSET else COMPUTES_LONGER[longer]
    more = " or more" if run.cures_are_least else ""
    message = (
        f"Rank {late.rank} is late behind data loading: {why.clause}. Nobody waits for it while batches come no "
        f"faster. With batches in time {words.the} would take {in_time / 1e6:.2f} instead of {step / 1e6:.2f} ms, and "
        f"with this rank at its peers' pace too {(in_time - saved) / 1e6:.2f} ms{more}."
    )
    evidence = [
        Evidence("saved with batches in time", stored(saved_by_loading / 1e6), words.unit("ms")),
        Evidence(
            "saved at its peers' pace too", stored(saved / 1e6), words.unit("ms"), stored(in_time / 1e7), late.rank
        ),
        Evidence("late steps", f"{len(late.late_steps)} of {len(late.saved)}", rank=late.rank),
        Evidence("chance", round(late.chance, 4), "probability", CHANCE, late.rank),
        *grown_evidence(run, late.rank, late.cause),
    ]
    return [
        rule.finding(
            "info",
            "medium",
            message,
            evidence,
            ranks=[late.rank],
            steps=late.late_steps,
            cause=late.cause,
            computes_longer=longer,
        )
    ]
