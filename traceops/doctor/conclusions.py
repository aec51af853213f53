"""Judges the tests (TO-D602 to TO-D607): costly variables, slow links, pairs, GPUs and nodes at fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.core.units import percent_text
from traceops.doctor.assess import Pair, assess, shared_by, shared_text
from traceops.doctor.candidates import words
from traceops.doctor.checkup_plan import CheckupPlan
from traceops.doctor.conclude_devices import devices_alone, devices_named, left_out_text, line_of, of_each_host
from traceops.doctor.model import BAD, Trial
from traceops.doctor.runs import Scope, nodes_that_work
from traceops.doctor.try_changes import WORTH_IT, TriedChange
from traceops.machine.look import Level, Look
from traceops.rules.machine.communication_tests import COMES_AND_GOES, NODES, PAIRS, SLOW_ALL_REDUCE, SLOW_VARIABLE

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
        *devices_alone(plan),
        *devices_named(plan),
        *_nodes(plan),
        *_passed(plan),
        *_not_tried(plan),
    )


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
        named = ", ".join(f"{name}={value}" for name in one.change.unset if (value := _value(plan, name)) is not None)
        if one.works and one.gbs is not None:
            looks.append(_loss(plan, one, named, before, one.gbs))
        looks += [_needed(plan, one, named, trial) for trial in one.trials if trial.outcome in BAD][:1]
    return looks


def _needed(plan: CheckupPlan, one: TriedChange, named: str, trial: Trial) -> Look:
    found = f"needed: without it {trial.name} {'gave wrong results' if trial.outcome == 'wrong' else trial.outcome}"
    advice = "leave it set; what it works around is to be mended first"
    return line_of(plan, SLOW_VARIABLE, named, found, "note", trial.message, advice, variables=list(one.change.unset))


def _loss(plan: CheckupPlan, one: TriedChange, named: str, with_gbs: float, without_gbs: float) -> Look:
    lost = without_gbs - with_gbs
    facts = {"variables": list(one.change.unset), "with_gbs": with_gbs, "without_gbs": without_gbs, "lost_gbs": lost}
    found = f"all-reduce {with_gbs:.3g} GB/s with it, {without_gbs:.3g} without"
    if without_gbs < WORTH_IT * with_gbs:
        return line_of(plan, SLOW_VARIABLE, named, found, "ok", "no more than measurements differ", "", **facts)
    level: Level = "error" if without_gbs > 2 * with_gbs else "warning"
    why = f"costs {lost:.3g} of {without_gbs:.3g} GB/s ({percent_text(100 * lost / without_gbs)})"
    return line_of(plan, SLOW_VARIABLE, named, found, level, why, f"unset {' '.join(one.change.unset)}", **facts)


def _value(plan: CheckupPlan, name: str) -> str | None:
    return next((one.environ[name] for one in plan.contexts if name in one.environ), None)


def _pairs(plan: CheckupPlan) -> list[Look]:
    """Pairs that fail; of slow ones TO-C002 tells."""
    assert plan.first is not None
    if len(plan.runner.counts) == 1:
        return _pairs_of(plan, plan.runner.nodes.hosts[0], plan.isolation.bad_pairs)
    each = of_each_host(plan, plan.first.trials)
    return [look for host, own in each for look in _pairs_of(plan, host, assess(own).bad_pairs)]


def _pairs_of(plan: CheckupPlan, host: str, pairs: Sequence[Pair]) -> list[Look]:
    if not pairs:
        return []
    culprits = shared_by(pairs)
    why = "; ".join(filter(None, (shared_text(culprits), left_out_text(plan))))
    advice = (
        "check the GPU and its links: nvidia-smi -q (ECC, Xid), nvidia-smi nvlink -s"
        if culprits
        else "compare the paths of these pairs with the others' (nvidia-smi topo -m)"
    )
    facts = {"pairs": [list(pair) for pair in pairs], "gpus": list(culprits)}
    found = "fail or give wrong values"
    look = line_of(plan, PAIRS, f"pairs {_pairs_text(pairs)}", found, "error", why, advice, **facts)
    return [replace(look, host=host)]


def _nodes(plan: CheckupPlan) -> list[Look]:
    """Of several nodes that do not work together, those on which the GPUs do."""
    assert plan.first is not None
    hosts, work = plan.runner.nodes.hosts, nodes_that_work(plan.runner, plan.first.trials)
    if len(hosts) == 1 or not work or plan.search.chosen is not None or not plan.state.failed:
        return []
    others = ", ".join(host for host in hosts if host not in work)
    why = f"{work[0]} works" if len(work) == 1 else f"{', '.join(work)} work, each"
    advice = f"start jobs without {others}" if others else "see the network between them; one node alone can train"
    found = "do not all work together"
    own = "GPUs" if plan.runner.backend == "nccl" else "ranks"
    return [line_of(plan, NODES, "nodes", found, "error", f"{why} by itself, with all its {own}", advice)]


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
            looks.append(line_of(plan, SLOW_ALL_REDUCE, what, f"{gbs:.3g} GB/s", "error", why, advice, busbw_gbs=gbs))
    return looks


def _hopeless(plan: CheckupPlan) -> list[Look]:
    assert plan.first is not None
    why = plan.first.node.hopeless
    if not why or plan.search.chosen is not None:
        return []
    if plan.first.node.cause == "no_room":
        advice = "make room where TMPDIR and -o point to, and see ulimit -n"
    elif plan.first.node.one_device and plan.first.node.cause != "other_model":
        advice = "see what uses the GPUs (nvidia-smi) and their health (nvidia-smi -q), or test others with --gpus"
    else:
        advice = "install a torch that fits this machine, or test the CPU with --device cpu"
    return [line_of(plan, None, "alternatives", "none tried", "not_evaluated", f"no setting can help: {why}", advice)]


def _passed(plan: CheckupPlan) -> list[Look]:
    """What failed once and worked the next time, with nothing changed."""
    if not plan.search.passed or plan.search.chosen is not None:
        return []
    why = "no setting explains what failed before: it may come and go"
    advice = (
        "run traceops doctor again; if it fails now and then, see the kernel's log (dmesg), Xids and who else uses "
        "the machine"
    )
    return [line_of(plan, COMES_AND_GOES, "the same again", "worked, with nothing changed", "warning", why, advice)]


def _not_tried(plan: CheckupPlan) -> list[Look]:
    if not plan.untested:
        return []
    tried = ", ".join(words(one.change) for one in plan.search.tried)
    found = f"tried: {tried}" if tried else "none tried"
    return [line_of(plan, None, "alternatives", found, "not_evaluated", plan.untested, "give more time: --budget 600")]
