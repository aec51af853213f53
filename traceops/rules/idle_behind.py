"""TO-I002 beside ranks that are late: loading that they hide, and loading of the ranks that are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.loader_pace import has_workers
from traceops.core.findings import Evidence, Finding, Severity, severity_of
from traceops.core.rank_text import who, who_of
from traceops.core.rule import Rule
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text, stored
from traceops.rules.idle_loading import loading_evidence, workers_needed
from traceops.rules.inputs import Inputs
from traceops.rules.straggler_bounds import IMPACT_BOUNDS

_ALSO = 0.5  # of the rank that loads longest: from there on a rank is named beside it


@dataclass(frozen=True)
class BehindLate:
    """A step with the late ranks cured, and what of it is waiting for input, ms. serious: whether one is an error."""

    late: tuple[int, ...]
    late_by_input: tuple[int, ...]
    step_ms: float
    waits_ms: float
    serious: bool


def behind_late(run: CrossRank, late: Sequence[Finding]) -> BehindLate | None:
    """late: what TO-S001 found. None where nothing is late, or the replay cured others than those."""
    serious = [found for found in late if found.severity != "info"]
    known, what_if = run.stragglers, run.what_if
    if known is None or what_if is None or not what_if.holds:
        return None
    whole = what_if.mean_ns(known.step_ns) / 1e6
    told = serious or [found for found in late if _as_slow_as_loaders(run, found, whole)]
    ranks = {rank for found in told for rank in found.ranks}
    if not told:
        return None
    if {straggler.rank for straggler in known.found} != ranks or known.joint_ns is None or known.fed_ns is None:
        return None
    step, fed = (what_if.mean_ns(steps) / 1e6 for steps in (known.joint_ns, known.fed_ns))
    return BehindLate(
        late=tuple(sorted(ranks)),
        late_by_input=tuple(sorted(r for f in serious if f.cause == "input" for r in f.ranks)),
        step_ms=step,
        waits_ms=max(step - fed, 0.0),
        serious=any(found.severity == "error" for found in serious),
    )


def _as_slow_as_loaders(run: CrossRank, found: Finding, step_ms: float) -> bool:
    """Whether a remark may be none but for the loaders: they would make the steps about as long."""
    small = found.impact_ms is not None and 100 * found.impact_ms < IMPACT_BOUNDS[0] * step_ms
    return bool(run.loading_ms) and small


def hidden_loading(
    rule: Rule, bounds: tuple[float, float, float], inputs: Inputs, behind: BehindLate
) -> Finding | None:
    """Loading that costs nothing as long as a rank is late, and would bound the steps without it.

    It comes after the late rank: it is a remark, or a warning where that is an error.
    """
    run = inputs.run
    by_workers = run.loading_ms
    reached = severity_of(100 * behind.waits_ms / behind.step_ms if behind.step_ms else 0.0, *bounds)
    if reached is None:
        return None
    severity: Severity = "warning" if behind.serious and reached != "info" else "info"
    loads = by_workers or {times.summary.rank: times.summary.host.input_ms for times in run.ranks}
    ranks = [rank for rank in loads if loads[rank] >= _ALSO * max(loads.values())]
    worst = max((t for t in run.ranks if t.summary.rank in loads), key=lambda t: loads[t.summary.rank])
    words = run.step_words
    rest_ms = behind.step_ms - behind.waits_ms
    if by_workers and loads[worst.summary.rank] < rest_ms:
        return None  # they have it ready by then: what is left is the price of taking a batch from them
    if by_workers:
        said, told = _by_workers(worst, loads[worst.summary.rank], rest_ms, words)
    elif has_workers(worst.summary):
        said, told = "", ()
    else:
        said, told = workers_needed(worst, worst.step_ms - rest_ms, inputs.manifest, words)
    on = who_of(ranks, len(run.ranks))
    message = (
        f"While the others wait for {who(behind.late)}, loading is hidden. With "
        f"{'it' if len(behind.late) == 1 else 'them'} cured, {on} would wait for the next batch for "
        f"{behind.waits_ms:.2f} ms of a {words.noun} of {behind.step_ms:.2f} ms "
        f"({100 * behind.waits_ms / behind.step_ms:.0f} %).{said}"
    )
    return rule.finding(
        severity,
        "medium",
        message,
        (
            Evidence("waits for input behind late ranks", stored(behind.waits_ms), words.unit("ms")),
            Evidence("step", stored(behind.step_ms), "ms"),
            *loading_evidence(worst, words),
            *told,
        ),
        ranks=ranks,
        impact_ms=stored(behind.waits_ms),
        cause="input",
    )


def _by_workers(
    times: RankTimes, period_ms: float, rest_ms: float, words: StepWords
) -> tuple[str, tuple[Evidence, ...]]:
    rank = times.summary.rank
    said = (
        f" The workers of rank {rank}'s loader need {ms_text(period_ms)} ms for what {words.a} takes, the rest of "
        f"{words.the} {ms_text(rest_ms)} ms."
    )
    return said, (Evidence("loading of a batch by the workers", stored(period_ms), words.unit("ms"), rank=rank),)
