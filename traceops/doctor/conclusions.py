"""What the tests of a checkup say, as lines of the doctor's table: losses, slow links, pairs and GPUs at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from traceops.core.rule import Rule
from traceops.doctor.assess import Pair, assess, shared_by, shared_text
from traceops.doctor.candidates import words
from traceops.doctor.checkup_plan import CheckupPlan
from traceops.doctor.failure_cause import FailureCause
from traceops.doctor.isolate import names_of
from traceops.doctor.model import BAD, Trial
from traceops.doctor.runs import Scope, nodes_that_work
from traceops.doctor.try_changes import WORTH_IT, TriedChange
from traceops.machine.look import Level, Look
from traceops.rules.machine_tests import (
    AREA,
    COMES_AND_GOES,
    DEVICE,
    NODES,
    PAIRS,
    SLOW_ALL_REDUCE,
    SLOW_VARIABLE,
)

_SLOW: dict[Scope, tuple[str, str, str]] = {
    "node": (
        "all-reduce inside the host",
        "the GPUs' links",
        "see the links (nvidia-smi nvlink -s) and the way NCCL took",
    ),
    "all": (
        "all-reduce between the nodes",
        "a network between nodes",
        "measure the network itself (iperf3, ib_write_bw); see its route and its limits",
    ),
}


def conclusions(plan: CheckupPlan) -> tuple[Look, ...]:
    """The lines, the most telling first."""
    if plan.first is None:
        return ()
    return (
        *_costs_of_settings(plan),
        *_pairs(plan),
        *_slow(plan),
        *_hopeless(plan),
        *_alone(plan),
        *_named(plan),
        *_nodes(plan),
        *_passed(plan),
        *_not_tried(plan),
    )


def _look(
    plan: CheckupPlan,
    rule: Rule | None,
    what: str,
    found: str,
    level: Level,
    why: str,
    advice: str,
    **facts: Any,
) -> Look:
    rule_id = "" if rule is None else rule.id
    return Look(plan.runner.nodes.hosts[0], AREA, what, found, level, why, advice, facts, rule_id)


def _of_each_host(plan: CheckupPlan, trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """The trials of each node by itself, where it has any."""
    hosts = plan.runner.nodes.hosts
    each = [(host, [trial for trial in trials if trial.hosts in ((host,), ())]) for host in hosts]
    return [(host, own) for host, own in each if own]


def _costs_of_settings(plan: CheckupPlan) -> list[Look]:
    """A variable that the environment sets, measured with and without it."""
    before = plan.state.gbs
    if plan.state.failed or before is None:
        return []
    looks = []
    for one in plan.search.tried:
        alone = one.change.size == 1 or one is plan.search.chosen
        if not alone or not one.change.unset or one.change.set:
            continue
        named = ", ".join(
            f"{name}={value}" for name in one.change.unset if (value := _value(plan, name)) is not None
        )
        if one.works and one.gbs is not None:
            looks.append(_loss(plan, one, named, before, one.gbs))
        looks += [_needed(plan, one, named, trial) for trial in one.trials if trial.outcome in BAD][:1]
    return looks


def _needed(plan: CheckupPlan, one: TriedChange, named: str, trial: Trial) -> Look:
    found = f"needed: without it {trial.name} {'gave wrong results' if trial.outcome == 'wrong' else trial.outcome}"
    advice = "leave it set; what it works around is to be mended first"
    return _look(
        plan, SLOW_VARIABLE, named, found, "note", trial.message, advice, variables=list(one.change.unset)
    )


def _loss(plan: CheckupPlan, one: TriedChange, named: str, with_gbs: float, without_gbs: float) -> Look:
    lost = without_gbs - with_gbs
    facts = {
        "variables": list(one.change.unset),
        "with_gbs": with_gbs,
        "without_gbs": without_gbs,
        "lost_gbs": lost,
    }
    found = f"all-reduce {with_gbs:.3g} GB/s with it, {without_gbs:.3g} without"
    if without_gbs < WORTH_IT * with_gbs:
        return _look(plan, SLOW_VARIABLE, named, found, "ok", "no more than measurements differ", "", **facts)
    level: Level = "error" if without_gbs > 2 * with_gbs else "warning"
    why = f"costs {lost:.3g} of {without_gbs:.3g} GB/s ({lost / without_gbs:.0%})"
    return _look(
        plan, SLOW_VARIABLE, named, found, level, why, f"unset {' '.join(one.change.unset)}", **facts
    )


def _value(plan: CheckupPlan, name: str) -> str | None:
    return next((one.environ[name] for one in plan.contexts if name in one.environ), None)


def _pairs(plan: CheckupPlan) -> list[Look]:
    """Pairs that fail; of slow ones TO-C002 tells."""
    assert plan.first is not None
    if len(plan.runner.counts) == 1:
        return _pairs_of(plan, plan.runner.nodes.hosts[0], plan.apart.bad_pairs)
    each = _of_each_host(plan, plan.first.trials)
    return [look for host, own in each for look in _pairs_of(plan, host, assess(own).bad_pairs)]


def _pairs_of(plan: CheckupPlan, host: str, pairs: Sequence[Pair]) -> list[Look]:
    if not pairs:
        return []
    culprits = shared_by(pairs)
    why = "; ".join(filter(None, (shared_text(culprits), _left_out(plan))))
    advice = (
        "check the GPU and its links: nvidia-smi -q (ECC, Xid), nvidia-smi nvlink -s"
        if culprits
        else "compare the paths of these pairs with the others' (nvidia-smi topo -m)"
    )
    facts = {"pairs": [list(pair) for pair in pairs], "gpus": list(culprits)}
    found = "fail or give wrong values"
    look = _look(plan, PAIRS, f"pairs {_pairs_text(pairs)}", found, "error", why, advice, **facts)
    return [replace(look, host=host)]


def _nodes(plan: CheckupPlan) -> list[Look]:
    """Of several nodes that do not work together, those on which the GPUs do."""
    assert plan.first is not None
    hosts, work = plan.runner.nodes.hosts, nodes_that_work(plan.runner, plan.first.trials)
    if len(hosts) == 1 or not work or plan.search.chosen is not None or not plan.state.failed:
        return []
    others = ", ".join(host for host in hosts if host not in work)
    why = f"{work[0]} works" if len(work) == 1 else f"{', '.join(work)} work, each"
    advice = (
        f"start jobs without {others}" if others else "see the network between them; one node alone can train"
    )
    found = "do not all work together"
    return [_look(plan, NODES, "nodes", found, "error", f"{why} by itself, with all its GPUs", advice)]


def _left_out(plan: CheckupPlan) -> str:
    """Whether the others work without the devices at fault."""
    tried = plan.search.tried
    for one in sorted(tried, key=lambda one: not one.works):
        if "CUDA_VISIBLE_DEVICES" in one.change.set:
            kept = ", ".join(str(gpu) for gpu in one.trials[0].gpus)
            return f"GPUs {kept} {'work' if one.works else 'do not work either'} without the others"
    return ""


def _pairs_text(pairs: Sequence[Pair]) -> str:
    shown = ", ".join(f"{one}–{other}" for one, other in sorted(pairs)[:8])
    return f"{shown} and {len(pairs) - 8} more" if len(pairs) > 8 else shown


def _slow(plan: CheckupPlan) -> list[Look]:
    """Slow also in the best configuration that was found."""
    looks = []
    for scope, (what, gives, advice) in _SLOW.items():
        if plan.best is not None and plan.is_slow(plan.best, scope):
            gbs = plan.best.of(scope).gbs
            why = f"below {plan.enough_gbs[scope]:.3g} GB/s it is far from what {gives} can do"
            looks.append(
                _look(plan, SLOW_ALL_REDUCE, what, f"{gbs:.3g} GB/s", "error", why, advice, busbw_gbs=gbs)
            )
    return looks


def _hopeless(plan: CheckupPlan) -> list[Look]:
    assert plan.first is not None
    why = plan.first.node.hopeless
    if not why or plan.search.chosen is not None:
        return []
    if plan.first.node.cause == "no_room":
        advice = "make room where TMPDIR and -o point to, and see ulimit -n"
    elif plan.first.node.one_device and plan.first.node.cause != "other_model":
        advice = (
            "see what uses the GPUs (nvidia-smi) and their health (nvidia-smi -q), or test others with --gpus"
        )
    else:
        advice = "install a torch that fits this machine, or test the CPU with --device cpu"
    return [
        _look(
            plan, None, "alternatives", "none tried", "not_evaluated", f"no setting can help: {why}", advice
        )
    ]


def _alone(plan: CheckupPlan) -> list[Look]:
    """Devices that fail by themselves; where none does, that one can stand in for all."""
    tested, bad = plan.apart.alone, [trial for trial in plan.apart.alone if trial.outcome in BAD]
    one = "GPU" if plan.runner.gpus else "rank"
    if plan.fallback is not None and not tested:
        why = "the time for tests was used up"
        return [
            _look(
                plan,
                DEVICE,
                f"one {one} alone",
                "not tested",
                "not_evaluated",
                why,
                "give more time: --budget 600",
            )
        ]
    if plan.fallback is not None and not bad:
        return [_look(plan, DEVICE, f"one {one} alone", "works", "ok", "it can stand in for the others", "")]
    if plan.search.chosen is not None and not plan.apart.sound:
        return []  # what kept all of them from working alone is mended
    return [look for host, own in _of_each_host(plan, bad) for look in _alone_on(plan, host, own)]


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
        why = "; ".join(filter(None, (why, _left_out(plan))))
        look = _look(
            plan, DEVICE, what, found, "error", why, _advice_alone(plan, cause), gpus=list(names), alone=True
        )
        looks.append(replace(look, host=host))
    return looks


def _named(plan: CheckupPlan) -> list[Look]:
    """Devices that failed with the others, though not alone, and without which the others work."""
    named = plan.apart.named
    left_out = plan.apart.left_out.get(tuple(sorted(named)))
    if left_out is None or not left_out.works:
        return []
    assert plan.first is not None
    trial = next(trial for trial in plan.first.trials if trial.failed == named)
    why = f"{trial.name} failed: {trial.message}; {_left_out(plan)}"
    found = f"{'fails' if len(named) == 1 else 'fail'} with the others, not alone"
    advice = (
        "see what uses the GPU (nvidia-smi), its health (nvidia-smi -q) and its links (nvidia-smi nvlink -s)"
    )
    return [_look(plan, DEVICE, names_of(named), found, "error", why, advice, gpus=list(named), alone=False)]


def _advice_alone(plan: CheckupPlan, cause: FailureCause | None) -> str:
    if not plan.runner.gpus:
        return "the trouble is not between the ranks: see the message"
    if cause == "other_model":
        return "install a torch that is built for this make of GPU"
    return "the trouble is not between the GPUs: see what uses the GPU (nvidia-smi) and its health (nvidia-smi -q)"


def _passed(plan: CheckupPlan) -> list[Look]:
    """What failed once and worked the next time, with nothing changed."""
    if not plan.search.passed or plan.search.chosen is not None:
        return []
    why = "no setting explains what failed before: it may come and go"
    advice = (
        "run traceops doctor again; if it fails now and then, see the kernel's log (dmesg), Xids and who else uses "
        "the machine"
    )
    return [
        _look(plan, COMES_AND_GOES, "the same again", "worked, with nothing changed", "warning", why, advice)
    ]


def _not_tried(plan: CheckupPlan) -> list[Look]:
    if not plan.untested:
        return []
    tried = ", ".join(words(one.change) for one in plan.search.tried)
    found = f"tried: {tried}" if tried else "none tried"
    return [
        _look(
            plan, None, "alternatives", found, "not_evaluated", plan.untested, "give more time: --budget 600"
        )
    ]
