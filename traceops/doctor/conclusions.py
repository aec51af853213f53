"""Judges the tests (TO-D602 to TO-D607): costly variables, slow links, pairs, GPUs and nodes at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, severity_of
from traceops.core.rule import Rule, Verdict
from traceops.core.units import percent_text
from traceops.doctor.candidates import words
from traceops.doctor.checkup_plan import CheckupPlan
from traceops.doctor.isolate import names_of
from traceops.doctor.job import FailureCause
from traceops.doctor.model import BAD, Trial
from traceops.doctor.runs import (
    FAR_BELOW,
    OF_ITS_PAST,
    OF_SIBLINGS,
    Pair,
    Scope,
    assess,
    large_all_reduce,
    link_of,
    nodes_that_work,
    shared_by,
    shared_text,
    slow_pairs,
)
from traceops.doctor.try_changes import WORTH_IT, TriedChange
from traceops.fabric.model import Machine, Measured, same_host
from traceops.machine.look import Level, Look
from traceops.rules.bandwidth import LOW_BANDWIDTH, SLOWER_THAN_SIBLINGS
from traceops.rules.machine.judge import COMES_AND_GOES, DEVICE, NODES, PAIRS, SLOW_ALL_REDUCE, SLOW_VARIABLE

# TO-C001 and TO-C002 from bandwidths that were measured with nothing else on the links.


_ERROR_PCT = 10.0  # of the reference, as in a trace


def judge_measured(measured: Sequence[Measured], machines: Sequence[Machine], before: Measured | None) -> list[Verdict]:
    """Both rules over the machines; before: the large all-reduce of the same GPUs when they were measured earlier."""
    of_host = [
        (machine, [row for row in measured if row.host is None or same_host(row.host, machine.host)])
        for machine in machines
    ]
    return [_judge_low(of_host, before), _judge_pairs(of_host)]


def _judge_low(of_host: Sequence[tuple[Machine, list[Measured]]], before: Measured | None) -> Verdict:
    found, said, unknown = [], [], []
    for machine, rows in of_host:
        large = large_all_reduce(rows)
        if large is None or len(large.gpus) < 2:
            continue
        expected = _expected(large, machine, before)
        if not expected:
            unknown.append(f"{machine.host or 'it'} gives {large.busbw_gbs:.4g} GB/s")
            continue
        gbs, what, bound = max(expected, key=lambda entry: entry[0] * entry[2])
        share = 100.0 * large.busbw_gbs / gbs
        if share >= bound:
            said.append(f"{large.busbw_gbs:.4g} GB/s is {share:.0f} % of what {what}")
        else:
            found.append(_low(large, machine, gbs, what, bound, share))
    if found or said:
        return LOW_BANDWIDTH.verdict(*found, clear="; ".join(said))
    if unknown:
        return LOW_BANDWIDTH.not_evaluated(f"what this machine should give is not known; {'; '.join(unknown)}")
    return LOW_BANDWIDTH.not_evaluated("no all-reduce was measured")


def _expected(large: Measured, machine: Machine, before: Measured | None) -> list[tuple[float, str, float]]:
    """References that are known: GB/s, what gives it, and the percentage of it that must be reached."""
    expected: list[tuple[float, str, float]] = []
    link = link_of(machine, large.gpus) if large.backend == "nccl" else None
    if link is not None:
        expected.append((link.busbw_gbs, f"{link.link} gives between GPUs like these", 100 * FAR_BELOW))
    if before is not None and before.backend == large.backend and same_host(before.host, large.host):
        expected.append((before.busbw_gbs, "this machine gave before", 100 * OF_ITS_PAST))
    return expected


def _low(large: Measured, machine: Machine, gbs: float, what: str, bound: float, share: float) -> Finding:
    severity = severity_of(-share, -bound, -bound, -_ERROR_PCT) or "warning"
    where = f" on {machine.host}" if machine.host else ""
    return LOW_BANDWIDTH.finding(
        severity,
        "high",
        f"An all-reduce of {large.bytes / 1e6:.0f} MB over {len(large.gpus)} GPUs{where} moves {large.busbw_gbs:.4g} "
        f"GB/s (bus bandwidth), {share:.0f} % of the {gbs:.4g} GB/s that {what}.",
        [
            Evidence(Fact.BUSBW, round(large.busbw_gbs, 2), "GB/s", round(gbs * bound / 100, 1)),
            Evidence(Fact.OF_REFERENCE, round(share, 1), "%", bound),
            Evidence(Fact.REFERENCE, round(gbs, 2), "GB/s"),
        ],
    )


def _judge_pairs(of_host: Sequence[tuple[Machine, list[Measured]]]) -> Verdict:
    found = []
    pairs_seen = 0
    for machine, rows in of_host:
        pairs = [row for row in rows if row.op == "send_recv" and len(row.gpus) == 2]
        pairs_seen = max(pairs_seen, len({frozenset(row.gpus) for row in pairs}))
        slow = slow_pairs(rows, machine)
        if not slow:
            continue
        gbs = {pair: min(row.busbw_gbs for row in pairs if set(row.gpus) == set(pair)) for pair in slow}
        worst = min(gbs, key=lambda pair: gbs[pair])
        listed = ", ".join(f"{one}–{other} {gbs[one, other]:.3g}" for one, other in sorted(slow)[:8])
        who = f" {named}." if (named := shared_text(shared_by(slow))) else ""
        where = f" on {machine.host}" if machine.host else ""
        found.append(
            SLOWER_THAN_SIBLINGS.finding(
                "warning",
                "high",
                f"{len(slow)} of {len({frozenset(row.gpus) for row in pairs})} pairs of GPUs{where} send at less than "
                f"{OF_SIBLINGS:.0%} of what pairs with the same kind of path give: {listed} GB/s.{who}",
                [
                    Evidence(Fact.PAIR, round(gbs[worst], 2), "GB/s", subject=f"GPU{worst[0]} and GPU{worst[1]}"),
                    Evidence(Fact.SLOW_PAIRS, len(slow), "pairs"),
                ],
            )
        )
    if pairs_seen < 3:
        return SLOWER_THAN_SIBLINGS.not_evaluated("fewer than 3 pairs of GPUs were measured")
    return SLOWER_THAN_SIBLINGS.verdict(*found, clear=f"{pairs_seen} pairs of GPUs give what their like give")


# Judges the tests of single devices (TO-D604): those that fail alone, and those that keep others from working.


def line_of(
    plan: CheckupPlan, rule: Rule | None, what: str, found: str, level: Level, why: str, advice: str, **facts: Any
) -> Look:
    """A line of the doctor's table about the tests. rule: that it falls under, None for what no rule judges."""
    rule_id = "" if rule is None else rule.id
    return Look(plan.runner.nodes.hosts[0], "tests", what, found, level, why, advice, facts, rule_id)


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
