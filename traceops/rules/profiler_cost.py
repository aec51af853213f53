"""TO-V005: what the profiler itself cost the steps, in its windows and behind them."""

from __future__ import annotations

from traceops.across.plain_step import PlainStep, ProfilerCost
from traceops.across.undisturbed import Undisturbed
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, severity_of
from traceops.core.rule import Verdict, described
from traceops.core.units import ms_text, stored
from traceops.measure.recording import SLOWED, first_steps_profiled, some_profiled_as_short
from traceops.rules.inputs import Inputs
from traceops.rules.shared import WAITS_PCT

PROFILER_COST = described("validity", "TO-V005")
_SLOWDOWN_BOUNDS = (SLOWED, 1.30)  # info, warning
_APART = 0.01  # of the step: what differs less is one number


def judge_profiler(inputs: Inputs) -> Verdict:
    """TO-V005: the observer's own cost, in its windows and behind them."""
    manifest, undisturbed = inputs.manifest, inputs.undisturbed
    cost = inputs.profiler_cost
    ratio, least = cost.slowdown, cost.least
    severity = None if ratio is None or least is None else severity_of(least, *_SLOWDOWN_BOUNDS)
    behind, measured = _behind(undisturbed, inputs.plain)
    if severity is None and behind:
        return PROFILER_COST.verdict(PROFILER_COST.finding("info", "medium", behind, measured, impact_ms=None))
    if ratio is None and first_steps_profiled(manifest):
        return PROFILER_COST.not_evaluated(
            "the recorded steps are the program's first ones, which often take longer without the profiler too"
        )
    if ratio is None and some_profiled_as_short(manifest):
        return PROFILER_COST.not_evaluated(
            "some profiled steps are as short as those without the profiler and others far longer, so something else "
            "lengthens those"
        )
    if cost.by_chance:
        return PROFILER_COST.not_evaluated(
            f"profiled steps took {cost.ratio:.2f} times as long as unprofiled ones, but of the run's other steps "
            f"{cost.as_long_pct:.0f} % take as long too"
        )
    if cost.by_cores:
        return PROFILER_COST.not_evaluated(
            f"profiled steps took {cost.ratio:.2f} times as long as unprofiled ones, but a rank waits "
            f"{cost.core_pct:.0f} % of them for a core: that may be all of it"
        )
    if ratio is None:
        return PROFILER_COST.not_evaluated(
            "no unprofiled steps were timed; `traceops run` and traceops.capture time some"
        )
    profiled, before = manifest["profiled_step_ms"], manifest["unprofiled_step_ms"]
    if severity is None:
        return PROFILER_COST.clear(f"profiled steps took {ratio:.2f} times as long as unprofiled ones")
    told = (
        f"The median step took {profiled:.2f} ms with the profiler and {before:.2f} ms without"
        f"{_typical(before, inputs.plain)}, {ratio:.2f} times as long: host time in this report is overstated.",
        _of_cores(cost),
        _idle_is_of(undisturbed),
        behind,
    )
    return PROFILER_COST.verdict(
        PROFILER_COST.finding(
            severity if undisturbed is None else "info",
            "high",
            " ".join(part for part in told if part),
            [
                Evidence(Fact.PROFILED_BY_UNPROFILED, stored(ratio), "×", _SLOWDOWN_BOUNDS[0]),
                Evidence(Fact.UNPROFILED_STEP, stored(before), "ms"),
                Evidence(Fact.PROFILED_STEP, stored(profiled), "ms"),
                *_waits(cost),
                *measured,
            ],
            impact_ms=None,
        )
    )


def _typical(beside_ms: float, plain: PlainStep | None) -> str:
    """Which steps those without the profiler are, where a step of the run takes another time."""
    if plain is None or abs(beside_ms / plain.ms - 1) < _APART:
        return ""
    return f" (median of the steps timed beside the window; a step of the run takes {ms_text(plain.ms)})"


def _waits(cost: ProfilerCost) -> tuple[Evidence, ...]:
    if cost.core_pct < WAITS_PCT:
        return ()
    return (Evidence(Fact.WAITS_FOR_A_CORE, round(cost.core_pct, 1), "% of recorded steps", WAITS_PCT),)


def _of_cores(cost: ProfilerCost) -> str:
    """That recorded steps are longer for another reason too."""
    if cost.core_pct < WAITS_PCT:
        return ""
    return f"A rank waits {cost.core_pct:.0f} % of these steps for a core: a part of it may be that."


def _idle_is_of(undisturbed: Undisturbed | None) -> str:
    """What is said of idle time rests on, where there is a light window."""
    if undisturbed is None:
        return ""
    if not undisturbed.scaled:
        return "What is said of idle time is of the light window."
    return (
        f"What is said of idle time is of the light window, and is an estimate: its own steps still took "
        f"{undisturbed.light_ms:.2f} ms, {undisturbed.stretched:.2f} times as long, and idle time and waiting are "
        "scaled down to the step without recording."
    )


def _behind(undisturbed: Undisturbed | None, plain: PlainStep | None) -> tuple[str, tuple[Evidence, ...]]:
    """That steps behind the windows take longer than those before, in words and figures; nothing where they do not."""
    if plain is None or plain.behind_ms is None or plain.longer is None or not plain.longer.much:
        return "", ()
    if undisturbed is not None and undisturbed.behind_ms is None:
        return "", ()  # the device itself is slower there
    more = plain.behind_ms / plain.ms
    said = (
        f"Behind its windows steps take {100 * (more - 1):.0f} % longer than before them ({plain.behind_ms:.2f} and "
        f"{plain.ms:.2f} ms): what the profiler leaves in the process slows hosts, or the training or the machine is "
        "slower there by itself."
    )
    return said, (
        Evidence(Fact.STEP_BEHIND_BY_BEFORE, stored(more), "×", SLOWED),
        Evidence(Fact.STEP_BEHIND_THE_WINDOWS, stored(plain.behind_ms), "ms"),
        Evidence(Fact.STEP_BEFORE_THE_WINDOWS, stored(plain.ms), "ms"),
    )
