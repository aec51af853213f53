"""All rules, family by family, and who judges them. The order is that of docs/rules.md and of a report's checks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.plain_step import is_unlike
from traceops.core.claims import reason
from traceops.core.rule import Bounds, Rule, Verdict
from traceops.measure.summary import numbered_steps
from traceops.rules import (
    bandwidth,
    compute,
    failures,
    idle,
    idle_copies,
    memory,
    overlap,
    pipeline,
    regression,
    steps,
    stragglers,
    validity,
    whole_run,
    whole_run_hosts,
    whole_run_machine,
)
from traceops.rules.fabric import judge as fabric
from traceops.rules.fabric.claims import BOUNDS as FABRIC_BOUNDS
from traceops.rules.inputs import Inputs
from traceops.rules.named_lines import with_lines, with_stacks
from traceops.rules.stragglers_conditions import BOUNDS as LATE_BOUNDS
from traceops.rules.validity_claims import BOUNDS as VALIDITY_BOUNDS
from traceops.rules.whole_run_claims import BOUNDS as BOUNDS_OF_RUN


class Family(Struct, frozen=True):
    """Rules about one thing, whose ids begin with `prefix`. about: names it in a sentence. stated: its rules, or what
    loads them: no run needs the many of the machine. judge: gives a verdict for each of them on a run; None where no
    run alone is judged. limits: from where on it finds something, or what loads that. over: `steps`, of which there
    must be one, `recorded` ones alone, or those of the whole `run`, few of which the profiler made long."""

    prefix: str
    about: str
    stated: tuple[Rule, ...] | Callable[[], tuple[Rule, ...]]
    judge: Callable[[Inputs], list[Verdict]] | None = None
    limits: tuple[Bounds, ...] | Callable[[], tuple[Bounds, ...]] = ()
    over: Literal["capture", "steps", "recorded", "run"] = "capture"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """In the order of their ids."""
        return self.stated() if callable(self.stated) else self.stated

    @property
    def bounds(self) -> tuple[Bounds, ...]:
        """From where on it finds something."""
        return self.limits() if callable(self.limits) else self.limits


def _of_the_machine() -> tuple[Rule, ...]:
    from traceops.rules.machine import judge

    return judge.RULES


def _bounds_of_the_machine() -> tuple[Bounds, ...]:
    from traceops.rules.machine.limits import BOUNDS

    return (BOUNDS,)


def _bounds_of_crashes() -> tuple[Bounds, ...]:
    from traceops.hangs.crashes import BOUNDS

    return (BOUNDS,)


WHOLE_RUN = (*whole_run.RULES, *whole_run_machine.RULES, *whole_run_hosts.RULES, *whole_run.PHASE_RULES)


def judge_whole_run(inputs: Inputs) -> list[Verdict]:
    """What was observed of the whole run, whether or not a step of it was recorded."""
    return [
        *whole_run.judge(inputs),
        *whole_run_machine.judge(inputs),
        *whole_run_hosts.judge(inputs),
        *whole_run.judge_phases(inputs),
    ]


IDLE = (*idle.RULES, *idle_copies.RULES, idle.OUTSIDE_TORCH)


def judge_idle(inputs: Inputs) -> list[Verdict]:
    """Why no kernel runs."""
    return [*idle.judge(inputs), idle_copies.judge_copies(inputs)]


FAMILIES: tuple[Family, ...] = (
    Family("TO-V", "validity of the capture", validity.VALIDITY_RULES, validity.judge_traces, (VALIDITY_BOUNDS,)),
    Family("TO-S", "stragglers", stragglers.RULES, stragglers.judge, (LATE_BOUNDS,), "recorded"),
    Family("TO-B", "pipelines", pipeline.RULES, pipeline.judge, (pipeline.BOUNDS,), "recorded"),
    Family("TO-T", "outlier steps", steps.RULES, steps.judge, (steps.BOUNDS,), "steps"),
    Family("TO-W", "unrecorded steps", WHOLE_RUN, judge_whole_run, (BOUNDS_OF_RUN,), "run"),
    Family("TO-O", "overlap", overlap.RULES, overlap.judge, (overlap.BOUNDS,), "recorded"),
    Family("TO-I", "idle GPUs", IDLE, judge_idle, (idle.BOUNDS, idle_copies.BOUNDS), "recorded"),
    Family("TO-K", "kernel efficiency", compute.RULES, compute.judge, (compute.BOUNDS,), "recorded"),
    Family("TO-C", "bandwidth", bandwidth.RULES, bandwidth.judge, (bandwidth.BOUNDS,), "recorded"),
    Family("TO-P", "GPU links", fabric.RULES, fabric.judge, (FABRIC_BOUNDS,)),
    Family("TO-H", "hangs", failures.HANG_RULES, failures.judge_hangs),
    Family("TO-E", "crashes", failures.CRASH_RULES, failures.judge_crashes, _bounds_of_crashes),
    Family("TO-D", "machine setup", _of_the_machine, limits=_bounds_of_the_machine),
    Family("TO-M", "memory", memory.RULES, memory.judge, (memory.BOUNDS,), "run"),
    Family("TO-R", "regressions", regression.RULES, limits=(regression.BOUNDS,)),
)
RULES: tuple[Rule, ...]  # all
BY_ID: dict[str, Rule]


def __getattr__(name: str) -> object:
    """RULES and BY_ID are there once somebody asks for all rules."""
    if name not in ("RULES", "BY_ID"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    rules = tuple(rule for family in FAMILIES for rule in family.rules)
    globals().update(RULES=rules, BY_ID={rule.id: rule for rule in rules})
    return globals()[name]


def rules_with(ids: Collection[str]) -> Iterator[Rule]:
    """All rules of the families that are loaded anyway, and of those that some of these ids belong to."""
    for family in FAMILIES:
        if not callable(family.stated) or any(id.startswith(family.prefix) for id in ids):
            yield from family.rules


def family_of(rule: str) -> Family | None:
    """The family that a rule's id belongs to; None for an id of another version."""
    return next((family for family in FAMILIES if rule.startswith(family.prefix)), None)


@cache
def rule_of(id: str) -> Rule | None:
    """The rule with this id; None for an id of another version."""
    family = family_of(id)
    return next((rule for rule in family.rules if rule.id == id), None) if family else None


_LEAST_MS = 1.0  # of a window without steps: what comes once decides a shorter one


def judge(inputs: Inputs) -> list[Verdict]:
    """The verdicts of all families on one run, family by family."""
    verdicts: list[Verdict] = []
    run, whole = inputs.run, inputs.whole
    unlike = whole is not None and run.unit == "step" and is_unlike(whole, numbered_steps(inputs.ranks), run.step_ms)
    for family in FAMILIES:
        if family.judge is None:
            continue
        of_steps = family.over in ("steps", "recorded")
        if of_steps and run.unit == "none":
            verdicts += [rule.not_evaluated(reason("validity", "no_step")) for rule in family.rules]
            continue
        own = family.judge(replace(inputs, earlier=tuple(verdicts)))
        if of_steps and run.unit == "window" and 0 < run.step_ms < _LEAST_MS:
            why = reason("validity", "short_window", ms=run.step_ms)
            little = Verdict("", not_evaluated=why, lacking="short_window")
            keep = [bool(one.not_evaluated) and one.lacking != "captured" for one in own]
            own = [one if kept else replace(little, rule=one.rule) for one, kept in zip(own, keep, strict=True)]
        capped = (of_steps and run.unit == "window") or (family.over == "recorded" and unlike)
        verdicts += [_at_most_warning(verdict) for verdict in own] if capped else own
    return with_stacks(with_lines(verdicts, inputs), inputs)


def _at_most_warning(verdict: Verdict) -> Verdict:
    """No error is made of a window's time, which holds what comes once, nor of steps unlike the run's."""
    return replace(
        verdict,
        findings=tuple(
            replace(found, severity="warning") if found.severity == "error" else found for found in verdict.findings
        ),
    )
