"""Judges the tests of single devices (TO-D604): those that fail alone, and those that keep others from working."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from traceops.core.rule import Rule
from traceops.doctor.checkup_plan import CheckupPlan
from traceops.doctor.failure_cause import FailureCause
from traceops.doctor.isolate import names_of
from traceops.doctor.model import BAD, Trial
from traceops.machine.look import Level, Look
from traceops.rules.machine.communication_tests import AREA, DEVICE


def line_of(
    plan: CheckupPlan, rule: Rule | None, what: str, found: str, level: Level, why: str, advice: str, **facts: Any
) -> Look:
    """A line of the doctor's table about the tests. rule: that it falls under, None for what no rule judges."""
    rule_id = "" if rule is None else rule.id
    return Look(plan.runner.nodes.hosts[0], AREA, what, found, level, why, advice, facts, rule_id)


def of_each_host(plan: CheckupPlan, trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """The trials of each node by itself, where it has any."""
    hosts = plan.runner.nodes.hosts
    each = [(host, [trial for trial in trials if trial.hosts in ((host,), ())]) for host in hosts]
    return [(host, own) for host, own in each if own]


def left_out_text(plan: CheckupPlan) -> str:
    """Whether the others work without the devices at fault."""
    tried = plan.search.tried
    for one in sorted(tried, key=lambda one: not one.works):
        if "CUDA_VISIBLE_DEVICES" in one.change.set:
            kept = ", ".join(str(gpu) for gpu in one.trials[0].gpus)
            return f"GPUs {kept} {'work' if one.works else 'do not work either'} without the others"
    return ""


def devices_alone(plan: CheckupPlan) -> list[Look]:
    """Devices that fail by themselves; where none does, that one can stand in for all."""
    tested, bad = plan.isolation.alone, [trial for trial in plan.isolation.alone if trial.outcome in BAD]
    one = "GPU" if plan.runner.gpus else "rank"
    if plan.fallback is not None and not tested:
        why = "the time for tests was used up"
        return [
            line_of(
                plan, DEVICE, f"one {one} alone", "not tested", "not_evaluated", why, "give more time: --budget 600"
            )
        ]
    if plan.fallback is not None and not bad:
        return [line_of(plan, DEVICE, f"one {one} alone", "works", "ok", "it can stand in for the others", "")]
    if plan.search.chosen is not None and not plan.isolation.sound:
        return []  # what kept all of them from working alone is mended
    return [look for host, own in of_each_host(plan, bad) for look in _alone_on(plan, host, own)]


def _alone_on(plan: CheckupPlan, host: str, bad: Sequence[Trial]) -> list[Look]:
    one = "GPU" if plan.runner.gpus else "rank"
    said: dict[tuple[str, FailureCause | None], list[int]] = {}
    for trial in bad:
        text = f"{trial.name} {trial.outcome}: {trial.message}"
        said.setdefault((text, trial.cause), []).append(trial.gpus[0])
    looks = []
    for (why, cause), devices in said.items():
        names = dict.fromkeys(devices)
        what = f"{names_of(names, one)} alone"
        found = f"{'does' if len(names) == 1 else 'do'} not work either"
        why = "; ".join(filter(None, (why, left_out_text(plan))))
        look = line_of(
            plan, DEVICE, what, found, "error", why, _advice_alone(plan, cause), gpus=list(names), alone=True
        )
        looks.append(replace(look, host=host))
    return looks


def devices_named(plan: CheckupPlan) -> list[Look]:
    """Devices that failed with the others, though not alone, and without which the others work."""
    named = plan.isolation.named
    left_out = plan.isolation.left_out.get(tuple(sorted(named)))
    if left_out is None or not left_out.works:
        return []
    assert plan.first is not None
    trial = next(trial for trial in plan.first.trials if trial.failed == named)
    why = f"{trial.name} failed: {trial.message}; {left_out_text(plan)}"
    found = f"{'fails' if len(named) == 1 else 'fail'} with the others, not alone"
    advice = "see what uses the GPU (nvidia-smi), its health (nvidia-smi -q) and its links (nvidia-smi nvlink -s)"
    return [line_of(plan, DEVICE, names_of(named), found, "error", why, advice, gpus=list(named), alone=False)]


def _advice_alone(plan: CheckupPlan, cause: FailureCause | None) -> str:
    if not plan.runner.gpus:
        return "the trouble is not between the ranks: see the message"
    if cause == "other_model":
        return "install a torch that is built for this make of GPU"
    return "the trouble is not between the GPUs: see what uses the GPU (nvidia-smi) and its health (nvidia-smi -q)"
