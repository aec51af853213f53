"""Judges the tests (TO-D602 to TO-D607): costly variables, slow links, pairs, GPUs and nodes at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from traceops.core.claims import first_phrase, reason
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, severity_of
from traceops.core.rule import Verdict
from traceops.doctor import runs
from traceops.doctor.candidates import words
from traceops.doctor.checkup_plan import CheckupPlan
from traceops.doctor.isolate import names_of
from traceops.doctor.job import FailureCause
from traceops.doctor.model import BAD, Trial
from traceops.doctor.try_changes import WORTH_IT, TriedChange
from traceops.fabric.model import Machine, Measured, same_host
from traceops.machine.look import Level, Look
from traceops.rules.bandwidth import LOW_BANDWIDTH, SLOWER_THAN_SIBLINGS, MeasuredLow, SlowPairs
from traceops.rules.machine.limits import looked

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
    found, fine, unknown = [], [], []
    for machine, rows in of_host:
        if (large := runs.large_all_reduce(rows)) is None or len(large.gpus) < 2:
            continue
        if not (expected := _expected(large, machine, before)):
            unknown.append(reason("doctor", "host_gives", host=machine.host or "it", gbs=large.busbw_gbs))
            continue
        reference = max(expected, key=lambda one: one.gbs * one.bound)
        share = 100.0 * large.busbw_gbs / reference.gbs
        if share < reference.bound:
            found.append(_low(large, machine, reference, share))
        else:
            key = "share_of_link" if reference.source == "link" else "share_of_before"
            fine.append(reason("doctor", key, gbs=large.busbw_gbs, share=share, link=reference.link))
    if found or fine:
        return LOW_BANDWIDTH.verdict(*found, clear="; ".join(fine))
    return LOW_BANDWIDTH.not_evaluated(reason("doctor", "unknown" if unknown else "not_measured", hosts=unknown))


class _Reference(Struct, frozen=True):
    """Bandwidth of the link, or that was measured before. bound: the percentage of it that must be reached."""

    source: Literal["link", "before"]
    gbs: float
    bound: float
    link: str | None = None


def _expected(large: Measured, machine: Machine, before: Measured | None) -> list[_Reference]:
    """References that are known."""
    expected = []
    if (link := runs.link_of(machine, large.gpus) if large.backend == "nccl" else None) is not None:
        expected.append(_Reference("link", link.busbw_gbs, 100 * runs.FAR_BELOW, link.link))
    if before is not None and before.backend == large.backend and same_host(before.host, large.host):
        expected.append(_Reference("before", before.busbw_gbs, 100 * runs.OF_ITS_PAST))
    return expected


def _low(large: Measured, machine: Machine, reference: _Reference, share: float) -> Finding:
    bound = reference.bound
    return LOW_BANDWIDTH.finding(
        severity_of(-share, -bound, -bound, -_ERROR_PCT) or "warning",
        "high",
        MeasuredLow(
            gpus=len(large.gpus),
            host=machine.host,
            mb=large.bytes / 1e6,
            gbs=large.busbw_gbs,
            pct=share,
            reference=reference.gbs,
            source=reference.source,
            link=reference.link,
        ),
        [
            Evidence(Fact.BUSBW, round(large.busbw_gbs, 2), "GB/s", round(reference.gbs * bound / 100, 1)),
            Evidence(Fact.OF_REFERENCE, round(share, 1), "%", bound),
            Evidence(Fact.REFERENCE, round(reference.gbs, 2), "GB/s"),
        ],
    )


def _judge_pairs(of_host: Sequence[tuple[Machine, list[Measured]]]) -> Verdict:
    found = []
    pairs_seen = 0
    for machine, rows in of_host:
        pairs = [row for row in rows if row.op == "send_recv" and len(row.gpus) == 2]
        pairs_seen = max(pairs_seen, len({frozenset(row.gpus) for row in pairs}))
        if not (slow := runs.slow_pairs(rows, machine)):
            continue
        gbs = {pair: min(row.busbw_gbs for row in pairs if set(row.gpus) == set(pair)) for pair in slow}
        worst = min(gbs, key=lambda pair: gbs[pair])
        claim = SlowPairs(
            slow=len(slow),
            all=len({frozenset(row.gpus) for row in pairs}),
            host=machine.host,
            bound=100 * runs.OF_SIBLINGS,
            pairs=tuple(f"{one}–{other} {gbs[one, other]:.3g}" for one, other in sorted(slow)[:8]),
            shared=runs.shared_text(runs.shared_by(slow)) or None,
        )
        evidence = [
            Evidence(Fact.PAIR, round(gbs[worst], 2), "GB/s", subject=f"GPU{worst[0]} and GPU{worst[1]}"),
            Evidence(Fact.SLOW_PAIRS, len(slow), "pairs"),
        ]
        found.append(SLOWER_THAN_SIBLINGS.finding("warning", "high", claim, evidence))
    if pairs_seen < 3:
        return SLOWER_THAN_SIBLINGS.not_evaluated(reason("doctor", "few_pairs"))
    return SLOWER_THAN_SIBLINGS.verdict(*found, clear=reason("doctor", "pairs_alike", count=pairs_seen))


# The lines of the doctor's table about the tests (words/looks.ini, [tests]).


def conclusions(plan: CheckupPlan) -> tuple[Look, ...]:
    """The lines, the most telling first."""
    if plan.first is None:
        return ()
    parts = (_costs_of_settings, _pairs, _slow, _hopeless, _devices_alone, _devices_named, _nodes)
    looks = tuple(look for part in parts for look in part(plan))
    if plan.search.passed and plan.search.chosen is None:
        looks += (_line(plan, "passed"),)
    if plan.untested:
        tried = [words(one.change) for one in plan.search.tried]
        looks += (_line(plan, "not_tried", tried=tried, why=plan.untested),)
    return looks


def _line(plan: CheckupPlan, key: str, numbers: Mapping[str, Any] | None = None, **facts: Any) -> Look:
    return looked(plan.runner.nodes.hosts[0], "tests", key, numbers, **facts)


def _of_each_host(plan: CheckupPlan, trials: Sequence[Trial]) -> list[tuple[str, list[Trial]]]:
    """The trials of each node by itself, where it has any."""
    hosts = plan.runner.nodes.hosts
    each = [(host, [trial for trial in trials if trial.hosts in ((host,), ())]) for host in hosts]
    return [(host, own) for host, own in each if own]


def _left_out(plan: CheckupPlan) -> str:
    """Whether the others work without the devices at fault."""
    for one in sorted(plan.search.tried, key=lambda one: not one.works):
        if "CUDA_VISIBLE_DEVICES" in one.change.set:
            return first_phrase("doctor", "left_out", "text", works=one.works, gpus=one.trials[0].gpus)
    return ""


def _devices_alone(plan: CheckupPlan) -> list[Look]:
    """Devices that fail by themselves; where none does, that one can stand in for all."""
    tested, bad = plan.isolation.alone, [trial for trial in plan.isolation.alone if trial.outcome in BAD]
    device = "GPU" if plan.runner.gpus else "rank"
    if plan.fallback is not None and not bad:
        return [_line(plan, "sound" if tested else "untested", device=device)]
    if plan.search.chosen is not None and not plan.isolation.sound:
        return []  # what kept all of them from working alone is fixed
    return [look for host, own in _of_each_host(plan, bad) for look in _alone_on(plan, host, own, device)]


def _alone_on(plan: CheckupPlan, host: str, bad: Sequence[Trial], device: str) -> list[Look]:
    said: dict[tuple[str, FailureCause | None], dict[int, None]] = {}
    for trial in bad:
        text = f"{trial.name} {trial.outcome}: {trial.message}"
        said.setdefault((text, trial.cause), {})[trial.gpus[0]] = None
    looks = []
    for (test, cause), devices in said.items():
        because = "ranks" if not plan.runner.gpus else "other_model" if cause == "other_model" else "gpus"
        names = names_of(devices, device)
        facts: dict[str, Any] = {"names": names, "test": test, "left_out": _left_out(plan), "because": because}
        numbers = {"gpus": list(devices), "alone": True}
        looks.append(looked(host, "tests", "alone", numbers, devices=tuple(devices), **facts))
    return looks


def _devices_named(plan: CheckupPlan) -> list[Look]:
    """Devices that failed with the others, though not alone, and without which the others work."""
    named = plan.isolation.named
    if (left_out := plan.isolation.left_out.get(tuple(sorted(named)))) is None or not left_out.works:
        return []
    assert plan.first is not None
    trial = next(trial for trial in plan.first.trials if trial.failed == named)
    facts = {"names": names_of(named), "test": trial.name, "message": trial.message, "left_out": _left_out(plan)}
    return [_line(plan, "with_others", {"gpus": list(named), "alone": False}, devices=named, **facts)]


def _costs_of_settings(plan: CheckupPlan) -> list[Look]:
    """A variable that the environment sets, measured with and without it."""
    before = plan.state.gbs
    if plan.state.failed or before is None:
        return []
    environ: dict[str, str] = {}
    for context in reversed(plan.contexts):
        environ |= context.environ
    looks = []
    for one in plan.search.tried:
        alone = one.change.size == 1 or one is plan.search.chosen
        if not alone or not one.change.unset or one.change.set:
            continue
        variables = ", ".join(f"{name}={environ[name]}" for name in one.change.unset if name in environ)
        if one.works and one.gbs is not None:
            looks.append(_loss(plan, one, variables, before, one.gbs))
        for trial in [trial for trial in one.trials if trial.outcome in BAD][:1]:
            facts = {"test": trial.name, "outcome": trial.outcome, "message": trial.message}
            looks.append(_line(plan, "needed", {"variables": list(one.change.unset)}, variables=variables, **facts))
    return looks


def _loss(plan: CheckupPlan, one: TriedChange, variables: str, with_gbs: float, without_gbs: float) -> Look:
    measured = {"with_gbs": with_gbs, "without_gbs": without_gbs}
    lost = without_gbs - with_gbs
    numbers = {"variables": list(one.change.unset), **measured, "lost_gbs": lost}
    if without_gbs < WORTH_IT * with_gbs:
        return _line(plan, "no_loss", numbers, variables=variables, **measured)
    facts = {"lost": lost, "pct": 100 * lost / without_gbs, "unset": " ".join(one.change.unset), **measured}
    level: Level | None = "error" if without_gbs > 2 * with_gbs else None
    return _line(plan, "loss", numbers, level=level, variables=variables, **facts)


def _pairs(plan: CheckupPlan) -> list[Look]:
    """Pairs that fail; of slow ones TO-C002 reports."""
    assert plan.first is not None
    if len(plan.runner.counts) == 1:
        each = [(plan.runner.nodes.hosts[0], plan.isolation.bad_pairs)]
    else:
        each = [(host, runs.assess(own).bad_pairs) for host, own in _of_each_host(plan, plan.first.trials)]
    looks = []
    for host, bad in each:
        if bad:
            culprits, shown = runs.shared_by(bad), ", ".join(f"{one}–{other}" for one, other in sorted(bad)[:8])
            if len(bad) > 8:
                shown += f" and {len(bad) - 8} more"
            facts: dict[str, Any] = {"pairs": shown, "shared": runs.shared_text(culprits), "left_out": _left_out(plan)}
            numbers = {"pairs": [list(pair) for pair in bad], "gpus": list(culprits)}
            looks.append(looked(host, "tests", "pairs", numbers, **facts))
    return looks


def _nodes(plan: CheckupPlan) -> list[Look]:
    """Of several nodes that do not work together, those on which the GPUs do."""
    assert plan.first is not None
    hosts, works = plan.runner.nodes.hosts, runs.nodes_that_work(plan.runner, plan.first.trials)
    if len(hosts) == 1 or not works or plan.search.chosen is not None or not plan.state.failed:
        return []
    devices = "GPUs" if plan.runner.backend == "nccl" else "ranks"
    return [_line(plan, "nodes", works=works, others=[host for host in hosts if host not in works], devices=devices)]


def _slow(plan: CheckupPlan) -> list[Look]:
    """Slow also in the best configuration that was found."""
    looks = []
    keys: dict[runs.Scope, str] = {"node": "slow_node", "all": "slow_all"}
    for scope, key in keys.items():
        if plan.best is not None and plan.is_slow(plan.best, scope):
            gbs = plan.best.of(scope).gbs
            looks.append(_line(plan, key, {"busbw_gbs": gbs}, gbs=gbs, enough=plan.enough_gbs[scope]))
    return looks


def _hopeless(plan: CheckupPlan) -> list[Look]:
    assert plan.first is not None
    node = plan.first.node
    if not node.hopeless or plan.search.chosen is not None:
        return []
    because = "one_device" if node.one_device and node.cause != "other_model" else "torch"
    return [_line(plan, "hopeless", why=node.hopeless, because="no_room" if node.cause == "no_room" else because)]
