"""TO-C001 and TO-C002: what the links gave, against what they should and against each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import replace

from traceops.across import links
from traceops.across.communication import SLOWER, slow_siblings
from traceops.across.cross_rank import CrossRank
from traceops.across.match import Collective, MatchedCollectives
from traceops.across.replay.what_if import REFERENCE
from traceops.core.arrays import median
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity, severity_of
from traceops.core.rule import Bounds, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW, Role
from traceops.rules.inputs import Inputs, why_incomplete
from traceops.rules.shared import ends_fit, on_cpu, role_evidence, role_name, role_of


class LinkClaim(Claim, frozen=True):
    family = "bandwidth"


class LowBandwidth(LinkClaim, frozen=True, kw_only=True):
    """Large messages of so many ranks are slow for their link. source: who says what it gives, of one host or `hosts`.
    may_be_apart: whether these ranks may be on several hosts. unnamed: whether they are taken to share one."""

    ops: str
    size: int
    role: str | None = None
    gbs: float
    pct: float
    reference: float
    link: str
    source: str
    device: str | None = None
    hosts: int | None = None
    may_be_apart: bool = False
    unnamed: bool = False


class SlowerGroup(LinkClaim, frozen=True, kw_only=True):
    """A group that takes longer than others for the same. saved: of the step, ms, if the transfer is not hidden."""

    kind = "slow_sibling"
    ranks: tuple[int, ...]
    role: str | None = None
    longer: float
    takes: float
    usual: float
    saved: float | None = None
    hidden: bool = False


class ThroughHost(LinkClaim, frozen=True, kw_only=True):
    """GPUs exchange data through their hosts. then: the step with NCCL over `link`."""

    exposed: float
    pct: float
    step: float
    gbs: float | None = None
    link: str | None = None
    then: float | None = None
    shared_gpus: bool = False


class MeasuredLow(LinkClaim, frozen=True, kw_only=True):
    """A measured all-reduce is slow. source: `link`, or what the machine gave `before`."""

    gpus: int
    host: str | None = None
    mb: float
    gbs: float
    pct: float
    reference: float
    source: str
    link: str | None = None


class SlowPairs(LinkClaim, frozen=True, kw_only=True):
    """Measured pairs of GPUs that are slower than their like. shared: the GPUs that are in all of them."""

    slow: int
    all: int
    host: str | None = None
    bound: float
    pairs: tuple[str, ...]
    shared: str | None = None


LOW_BANDWIDTH = described("bandwidth", "TO-C001")
SLOWER_THAN_SIBLINGS = described("bandwidth", "TO-C002")
THROUGH_HOST = described("bandwidth", "TO-C003")
RULES = (LOW_BANDWIDTH, SLOWER_THAN_SIBLINGS, THROUGH_HOST)

SAVED = (Fact.SAVED_AT_REFERENCE, Fact.SAVED_AT_REFERENCE_AND_NO_HOST_LATE)


class LinkBounds(Bounds, frozen=True):
    """Percent of what a link should give, or of the step."""

    words = "bandwidth"
    low_pct: tuple[float, float, float] = (30.0, 30.0, 10.0)
    host_pct: tuple[float, float, float] = (2.0, 5.0, 20.0)
    matters_pct: float = 2.0


BOUNDS = LinkBounds()
_LEAST_COUNT = 3


def judge(inputs: Inputs) -> list[Verdict]:
    """What the links gave, or the way that is taken in their place."""
    through_host, why = judge_through_host(inputs.run), why_incomplete(inputs.run.ranks)
    if not why and not ends_fit(inputs.run):  # nor does what a collective took of its members' time
        why = reason("bandwidth", "out_of_step")
    if why:
        return [LOW_BANDWIDTH.not_evaluated(why), SLOWER_THAN_SIBLINGS.not_evaluated(why), through_host]
    return [judge_low(inputs.run), judge_siblings(inputs.run), through_host]


class _Low(Struct, frozen=True):
    """A group's large messages against the link between its ranks. share: of its pace, percent, by time."""

    share: float
    achieved: float
    group: tuple[int, ...]
    reference: links.LinkReference
    same: list[Collective]


def judge_low(run: CrossRank) -> Verdict:
    """TO-C001: large messages of a group against the reference of the link between its ranks."""
    if run.of_hosts_only:
        return LOW_BANDWIDTH.not_evaluated(reason("bandwidth", "hosts_only"))
    if run.through_host:
        return LOW_BANDWIDTH.not_evaluated(reason("bandwidth", "through_host"))
    if not (large := _large(run.matching)):
        return LOW_BANDWIDTH.not_evaluated(reason("bandwidth", "none_large", mb=links.LARGE_BYTES / 1e6))
    seen = []
    for group, same in large.items():
        if (reference := run.reference(group)) is not None:
            achieved = median([links.busbw_gbs(c) or 0.0 for c in same])
            # By time, so that latency is allowed for: 8 MB never reach what 256 MB do
            share = 100.0 * median([links.reference_transfer_ns(c, reference) / c.transfer_ns for c in same])
            seen.append(_Low(share, achieved, group, reference, same))
    if not seen:
        count = len({run.hosts.get(rank) for group in large for rank in group})
        why = reason("bandwidth", "no_reference", device=run.device or "not named", hosts=count)
        return LOW_BANDWIDTH.not_evaluated(why)
    if not (low := [one for one in seen if one.share < BOUNDS.low_pct[0]]):
        least = min(one.share for one in seen)
        return LOW_BANDWIDTH.clear(reason("bandwidth", "reached", pct=f"{least:.0f}", bound=BOUNDS.low_pct[0]))
    return LOW_BANDWIDTH.verdict(_low_finding(run, low))


def _low_finding(run: CrossRank, low: Sequence[_Low]) -> Finding:
    """Of all groups that are low, with the numbers of the lowest."""
    words = run.step_words
    steps = max((len(times.duration) for times in run.ranks), default=1)
    worst = min(low, key=lambda one: one.share)
    by_role = _by_role(run, {one.group: sum(c.transfer_ns for c in one.same) for one in low}, max(steps, 1))
    total_ms = sum(by_role.values())  # a rank is in a group of each role
    saved, at_best = _saved_ms(run)
    cost_ms = total_ms if saved is None else saved
    named = {run.hosts.get(rank) for rank in worst.group}
    guessed = None in named and run.devices == 1
    reference = worst.reference
    of_it, bound = 100.0 * worst.achieved / reference.busbw_gbs, reference.busbw_gbs * BOUNDS.low_pct[0] / 100
    claim = LowBandwidth(
        ops=" and ".join(dict.fromkeys(c.op for c in worst.same)),
        size=len(worst.group),
        role=role_name(run, role_of(run, [worst.group])),
        gbs=worst.achieved,
        pct=of_it,
        reference=reference.busbw_gbs,
        link=reference.link,
        source=_source(reference, run.device),
        device=run.device,
        hosts=len(named) if len(named) > 1 else None,
        may_be_apart=guessed,
        unnamed=None in named and not guessed,
    )
    evidence = [
        Evidence(Fact.BUSBW, round(worst.achieved, 2), "GB/s", round(bound, 1)),
        Evidence(Fact.OF_REFERENCE, round(of_it, 1), "%", BOUNDS.low_pct[0]),
        Evidence(Fact.REFERENCE, round(reference.busbw_gbs, 2), "GB/s"),
        Evidence(Fact.LARGE_MESSAGES, sum(len(one.same) for one in low), "collectives"),
        Evidence(Fact.TRANSFER_OF_THEM, stored(total_ms), words.unit("ms")),
        *(role_evidence(by_role, words) if len(by_role) > 1 else []),
    ]
    for fact, ms in zip(SAVED, (saved, at_best), strict=True):
        if ms is not None:
            evidence.append(Evidence(fact, stored(ms), words.unit("ms")))
    severity = _low_severity(worst.share, cost_ms / run.step_ms if run.step_ms else 1.0, guessed=guessed)
    confidence: Confidence = "low" if guessed else "medium" if None in named else "high"
    ranks, role = sorted({rank for one in low for rank in one.group}), role_of(run, [one.group for one in low])
    return LOW_BANDWIDTH.finding(
        severity, confidence, claim, evidence, ranks=ranks, impact_ms=stored(cost_ms), role=role
    )


def _by_role(run: CrossRank, transfer_ns: Mapping[tuple[int, ...], int], steps: int) -> dict[Role, float]:
    """Transfer of low groups by what they are for, ms per step, mean over the groups of a role, most first."""
    of_role: dict[Role, list[float]] = defaultdict(list)
    for group, ns in transfer_ns.items():
        role = role_of(run, [group])
        of_role["unknown" if role is UNSET else role].append(ns / 1e6 / steps)
    means = {role: float(np.mean(own)) for role, own in of_role.items()}
    return dict(sorted(means.items(), key=lambda own: -own[1]))


def _low_severity(share: float, cost: float, *, guessed: bool) -> Severity:
    """cost: part of the step. guessed: nothing shows whether the ranks are on one host."""
    severity = severity_of(-share, *(-pct for pct in BOUNDS.low_pct))
    if severity is None or 100.0 * cost < BOUNDS.matters_pct:
        return "info"
    return "warning" if guessed and severity == "error" else severity


def _source(reference: links.LinkReference, device: str | None) -> str:
    """Who says what the link should give."""
    if reference.source == "doctor":
        return "gpus" if device else "ranks"
    return "graph" if reference.source == "graph" else "table"


def _saved_ms(run: CrossRank) -> tuple[float | None, float | None]:
    """What the reference would save of a step, ms, with hosts as recorded, and at best, where hosts decide."""
    saved = None if run.replay is None else run.replay.what_if.saved_ns(REFERENCE)
    if run.replay is None or saved is None:
        return None, None
    ends = run.replay.what_if.range_ns(REFERENCE)
    step = run.replay.what_if.mean_ns(run.replay.what_if.replayed_ns)
    return max(saved, 0.0) / 1e6, None if ends is None else max(step - ends[0], 0.0) / 1e6


def judge_siblings(run: CrossRank) -> Verdict:
    """TO-C002: groups that run the same operation on the same bytes, against each other."""
    if (slow := slow_siblings(run)) is None:
        return SLOWER_THAN_SIBLINGS.not_evaluated(reason("bandwidth", "no_siblings"))
    # What a cut-off trace lost may have paired other collectives.
    damaged = any(times.summary.damage for times in run.ranks)
    findings = []
    for one in slow:
        role, words = role_of(run, [one.group]), run.step_words
        cost_ms = (one.longer if one.saved is None else one.saved) / 1e6
        hidden = one.saved is not None and 100.0 * cost_ms < BOUNDS.matters_pct * run.step_ms
        claim = SlowerGroup(
            window=words is WINDOW,
            ranks=one.group,
            role=role_name(run, role),
            longer=one.median / one.usual,
            takes=one.median / 1e6,
            usual=one.usual / 1e6,
            saved=None if one.saved is None else cost_ms,
            hidden=hidden,
        )
        evidence = [
            Evidence(Fact.TRANSFER, stored(one.median / 1e6), "ms", stored(SLOWER * one.usual / 1e6)),
            Evidence(Fact.TRANSFER_OF_SIBLINGS, stored(one.usual / 1e6), "ms"),
            Evidence(Fact.COLLECTIVES, one.count),
            Evidence(Fact.LONGER_THAN_IN_SIBLINGS, stored(one.longer / 1e6), words.unit("ms")),
        ]
        severity: Severity = "info" if damaged or hidden else "warning"
        confidence: Confidence = "low" if damaged else "high"
        found = SLOWER_THAN_SIBLINGS.finding(
            severity, confidence, claim, evidence, ranks=one.group, impact_ms=stored(cost_ms), role=role
        )
        findings.append(found)
    return SLOWER_THAN_SIBLINGS.verdict(*findings, clear=reason("bandwidth", "siblings_alike", times=SLOWER))


def _large(matching: MatchedCollectives) -> dict[tuple[int, ...], list[Collective]]:
    by_group: dict[tuple[int, ...], list[Collective]] = defaultdict(list)
    for collective in matching.collectives:
        is_large = (links.collective_bytes(collective) or 0) >= links.LARGE_BYTES
        if is_large and collective.last_rank is not None and collective.transfer_ns > 0:
            by_group[collective.group].append(collective)
    return {group: same for group, same in by_group.items() if len(same) >= _LEAST_COUNT}


# TO-C003: GPUs whose data goes through their hosts, as gloo moves it.


def judge_through_host(run: CrossRank) -> Verdict:
    """TO-C003: what the way through the hosts costs of the step."""
    if key := _why_not_through_host(run):
        return THROUGH_HOST.not_evaluated(reason("bandwidth", key))
    if not run.through_host:
        return THROUGH_HOST.clear(reason("bandwidth", "between_gpus"))
    words, step = run.step_words, run.step_ms
    exposed = median([times.mean_ms("comm_transfer") for times in run.ranks])
    pct = 100.0 * exposed / step if step else 0.0
    if (severity := severity_of(pct, *BOUNDS.host_pct)) is None:
        little = reason("bandwidth", "little", pct=f"{pct:.1f}", bound=BOUNDS.host_pct[0], window=words is WINDOW)
        return THROUGH_HOST.clear(little)
    link = _link(run)
    saved = None if link is None else _saved_ms(run)[0]
    gbs = links.overall_busbw(run.matching.collectives)
    evidence = [
        Evidence(Fact.EXPOSED_TRANSFER, stored(exposed), words.unit("ms")),
        Evidence(Fact.EXPOSED_TRANSFER_PCT, round(pct, 1), "%", BOUNDS.host_pct[0]),
    ]
    if gbs:
        evidence.append(Evidence(Fact.BUSBW, round(gbs, 2), "GB/s"))
    claim = ThroughHost(window=words is WINDOW, exposed=exposed, pct=pct, step=step, gbs=gbs or None)
    ranks = [times.summary.rank for times in run.ranks if times.summary.through_host]
    if link is None or saved is None:
        claim = replace(claim, shared_gpus=run.own_gpus is False)
        severity = "warning" if severity == "error" else severity
        return THROUGH_HOST.verdict(THROUGH_HOST.finding(severity, "medium", claim, evidence, ranks=ranks))
    claim = replace(claim, link=link.link, then=max(step - saved, 0.0))
    evidence.append(Evidence(Fact.REFERENCE, round(link.busbw_gbs, 2), "GB/s"))
    evidence.append(Evidence(Fact.SAVED_WITH_NCCL, stored(saved), words.unit("ms")))
    found = THROUGH_HOST.finding(severity, "high", claim, evidence, ranks=ranks, impact_ms=stored(saved))
    return THROUGH_HOST.verdict(found)


def _why_not_through_host(run: CrossRank) -> str | None:
    """Why the rule cannot be judged, by the key of its reason."""
    if on_cpu(run):
        return "no_gpu_activity"
    if run.world < 2:
        return "one_rank"
    exchanges = any(times.summary.exchanges_of_gpu for times in run.ranks)
    if not run.through_host:
        return "gloo_too" if exchanges else None
    if not exchanges:
        return "own_data"
    return None if run.split else "no_collective_matched"


def _link(run: CrossRank) -> links.LinkReference | None:
    """The link that the most bytes would go over, where NCCL can use it."""
    moved: dict[tuple[int, ...], int] = {}
    for one in run.matching.collectives:
        moved[one.group] = moved.get(one.group, 0) + (links.collective_bytes(one) or 0)
    most = max(moved, key=lambda group: moved[group], default=())
    return run.link(most) if moved.get(most) else None
