"""Adds to findings about a host the line of the program that it is in, where looks at the host show one."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.host_difference import longer_in_function
from traceops.across.run_steps import WholeRun
from traceops.core.arrays import mean_ms
from traceops.core.claims import Claim, claim_of
from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Finding, severity_of
from traceops.core.rule import Verdict
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.measure.host_places import BUSY_PCT, IDLE, FunctionTime, StackTime
from traceops.measure.recording import SLOWED
from traceops.rules import whole_run_hosts
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND, OUTSIDE_TORCH
from traceops.rules.idle_copies import EXPOSED_COPIES
from traceops.rules.inputs import Inputs
from traceops.rules.shared import IMPACT_BOUNDS, core_wait_ms, line_of, on_cpu, waited_for_ms
from traceops.rules.stragglers import PERSISTENTLY_LATE, SLOW_GROUP, SOMETIMES_LATE
from traceops.rules.stragglers_claims import Late
from traceops.rules.whole_run import UNLIKE_OVER_RUN
from traceops.rules.whole_run_claims import HostSpends, IdleIn, InFunction, OwnWork, PlainStep, WorkersIn
from traceops.rules.whole_run_hosts import HOST_LONGER
from traceops.rules.whole_run_machine import MACHINE


def in_plain_steps(found: Finding, inputs: Inputs, seen_ms: float) -> Finding:
    """The finding of a late host, told of a step without the profiler where one is known, and clearly shorter, or where
    its host was seen to do more there than the replay saves: in recorded steps the others' hosts are slow as well. What
    its peers' pace saves in the replay is scaled by what the others wait in either step, as all hosts were slowed
    alike. seen_ms: what this host was seen to do longer than its peers in steps that nothing records; that is measured,
    and counts where it is more. Neither is more than the others wait. Ranks that nobody waits for without the profiler
    are a remark already, and stay as they are."""
    undisturbed, rank = inputs.undisturbed, found.ranks[0]
    recorded_ms, waited = found.impact_ms, found.number(Fact.WAITING_FOR_IT)
    if found.severity == "info" or undisturbed is None or not recorded_ms or not waited:
        return found
    waits = waited_for_ms(undisturbed, rank)
    if waits is None or (inputs.run.step_ms < SLOWED * undisturbed.step_ms and seen_ms <= recorded_ms):
        return found
    saved = min(max(recorded_ms * min(waits / waited, 1.0), seen_ms), waits)
    pct = 100 * saved / undisturbed.step_ms
    severity = severity_of(pct, IMPACT_BOUNDS[0], *IMPACT_BOUNDS) or "info"
    if saved <= recorded_ms:
        severity = min(severity, found.severity, key=SEVERITIES.index)
    claim, message, headline = claim_of(found, Late), found.message, found.headline
    if claim is not None:  # what the others wait is of these steps then
        headline = replace(claim, steps=(), met=None, waiting=waits, waiting_on_average=None).headline()
        message = message.replace(claim.headline(), headline, 1)
    plain = PlainStep(then=undisturbed.step_ms - saved, step=undisturbed.step_ms, pct=pct)
    evidence = (
        Evidence(Fact.PLAIN_STEP, stored(undisturbed.step_ms), "ms"),
        Evidence(Fact.PLAIN_SAVED, stored(saved), "ms/step", rank=rank),
        Evidence(Fact.PLAIN_WAIT, stored(waits), _PER_STEP_AND_RANK, rank=rank),
        Evidence(Fact.RECORDED, stored(recorded_ms), "ms/step", rank=rank),
    )
    found = replace(found, severity=severity, message=message, headline=headline, impact_ms=stored(saved))
    return _with(found, plain, evidence)


# A host that is late by turns in light windows, and does more than its peers do over the whole run.


def late_all_the_time(found: Finding, inputs: Inputs) -> Finding:
    """The finding of a late host, no remark where it is one only because another was later in one light window. A
    window is six steps, in which a peer may write a checkpoint in the background. What this host was seen to do longer
    than its peers, a step, in all steps that nothing records, counts as far as the others wait."""
    undisturbed, claim = inputs.undisturbed, claim_of(found, Late)
    in_turn = claim is not None and claim.doubt is not None and claim.doubt.kind == "turns"
    if undisturbed is None or found.severity != "info" or found.cause not in ("host", "unknown") or not in_turn:
        return found
    longer = whole_run_hosts.seen_longer(inputs, found.ranks)
    saved = max((one.costs_ms for one in longer if one.rank in found.ranks), default=0.0)
    waits = waited_for_ms(undisturbed, found.ranks[0])
    saved = saved if waits is None else min(saved, waits)
    severity = severity_of(100 * saved / undisturbed.step_ms, IMPACT_BOUNDS[0], *IMPACT_BOUNDS)
    return found if severity is None else replace(found, severity=severity, confidence="medium")


_PER_STEP_AND_RANK = "ms/step and rank"  # a unit
_IN_THESE_STEPS = "ms in these steps"  # a unit
_DOES = {"recompilation": Fact.COMPILING_AGAIN, "garbage_collection": Fact.COLLECTING_GARBAGE}
_IN_MOST = 0.5  # of the steps: else it is what makes single steps stand out


def in_each_step(run: WholeRun, ranks: Sequence[int]) -> OwnWork | None:
    """What takes most of the first of `ranks` in most steps, beyond its peers; None where nothing does."""
    rank, steps = ranks[0], int(run.timed.sum()) - len(run.start)
    found = []
    for cause, shares in (("recompilation", run.compiled), ("garbage_collection", run.garbage)):
        own, peers = shares.get(rank), [one.pct for other, one in shares.items() if other != rank]
        if own is None or not peers or own.steps < _IN_MOST * steps:
            continue
        ms = max(own.pct - statistics.median(peers), 0.0) / 100 * run.typical_ms
        found.append(OwnWork(rank=rank, ms=ms, cause=cause))
    return max(found, key=lambda one: one.ms, default=None)


_LATE = {PERSISTENTLY_LATE.id, SOMETIMES_LATE.id}
_OF_HOST = ("host", "input", "unknown")
_OF_GPU = {
    "other_process": "another process on its GPU",
    "power_cap": "its GPU is at its power cap",
    "too_hot": "its GPU is too hot",
    "slow_clock": "its GPU has a lower clock",
}
_WAITS_FOR_A_CORE = "its main thread waits for a core"
_LEAST_PCT = 10.0  # of the typical step
_ALIKE = 0.5  # of the first function: another that late launches may be for
_LEAST_LOOKS = 5
_EXPLAINS = 0.5  # of what a late rank costs: what to do is about that line
_COPIES = re.compile(r"\.to\(|\.cuda\(|\.cpu\(|\.copy_\(|\.numpy\(|device_put|prefetch")
_BLOCKS = re.compile(r"\.item\(|\.cpu\(|\.tolist\(|\.numpy\(|synchronize\(")


def with_lines(verdicts: Sequence[Verdict], inputs: Inputs) -> list[Verdict]:
    """The verdicts, with lines where they are known."""
    if inputs.whole is None:
        return list(verdicts)
    verdicts = _changed(verdicts, {PERSISTENTLY_LATE.id}, lambda found: late_all_the_time(found, inputs))
    machine = [found for verdict in verdicts if verdict.rule == MACHINE.id for found in verdict.findings]
    of_late = (verdict for verdict in verdicts if verdict.rule in (*_LATE, SLOW_GROUP.id))
    late = [one for verdict in of_late for one in verdict.findings if one.severity != "info"]
    alone = late[0] if len(late) == 1 else None
    return _changed(verdicts, _LATE | _CHOOSE.keys(), lambda one: _named(one, inputs, machine, alone=one is alone))


def _changed(verdicts: Sequence[Verdict], rules: Set[str], change: Callable[[Finding], Finding]) -> list[Verdict]:
    """The verdicts, with the findings of these rules changed."""
    return [
        replace(verdict, findings=tuple(map(change, verdict.findings))) if verdict.rule in rules else verdict
        for verdict in verdicts
    ]


def _named(found: Finding, inputs: Inputs, machine: Sequence[Finding], *, alone: bool) -> Finding:
    if found.rule in _LATE:
        return _late(found, inputs, machine, alone=alone)
    if (rank := next((one.rank for one in found.evidence if one.rank is not None), None)) is None:
        return found
    if found.rule == INPUT_BOUND.id:
        found = _of_workers(found, rank, inputs)
    if not (longest := _longest(found.rule, rank, inputs)):
        return found
    assert inputs.whole is not None
    spends, evidence = HostSpends(rank=rank, ms=longest[0].ms, place=longest[0].place.said), list[Evidence]()
    for one in longest:
        evidence.append(Evidence(Fact.HOST_IN, stored(one.ms), "ms/step", rank=rank, subject=one.place.said))
        evidence += line_of(one.place, rank)
    if len(longest) > 1:
        spends = replace(spends, also=longest[1].ms, also_place=longest[1].place.said)
    # How long steps are in which hosts were looked at, ms, where the finding speaks of a shorter one.
    step_ms, typical_ms = inputs.undisturbed and inputs.undisturbed.step_ms, inputs.whole.typical_ms
    if step_ms and typical_ms >= SLOWED * step_ms:
        spends = replace(spends, typical=typical_ms)
    return _with(found, spends, evidence)


def _of_workers(found: Finding, rank: int, inputs: Inputs) -> Finding:
    """Where the workers of the rank's loader are, if they are what it waits for."""
    assert inputs.whole is not None
    work = inputs.whole.loaders.get(rank)
    if work is None or work.place is None or work.busiest_pct < BUSY_PCT or work.place_pct < _LEAST_PCT:
        return found
    busy = None if work.one_busy else work.busy_pct
    claim = WorkersIn(rank=rank, pct=work.place_pct, place=work.place.said, busy=busy)
    evidence = [Evidence(Fact.LOADER_WORKERS_BUSY, round(work.busy_pct, 1), "%", rank=rank)]
    evidence.append(Evidence(Fact.WORKERS_IN, round(work.place_pct, 1), "%", rank=rank, subject=work.place.said))
    return _with(found, claim, [*evidence, *line_of(work.place, rank)])


def _late(found: Finding, inputs: Inputs, machine: Sequence[Finding], *, alone: bool) -> Finding:
    """alone: it is the only one of a late rank that is no remark, so that its cure is that of the sentence on it."""
    assert inputs.whole is not None
    if found.cause == "gpu_compute":
        # The reason that the machine gives for a GPU that computes longer.
        one = next((one for one in machine if set(found.ranks) & set(one.ranks) and one.cause in _OF_GPU), None)
        if one is None:
            return found
        pid = next((e.value for e in one.evidence if e.fact is Fact.PID), None)
        why = _OF_GPU[str(one.cause)] + ("" if pid is None else f", pid {pid}")
        return _with(found, one.message, [Evidence(Fact.REASON, why, rank=found.ranks[0]), *one.evidence])
    if found.cause not in _OF_HOST:
        return found
    if found.cause == "input" and len(found.ranks) == 1:
        found = _of_workers(found, found.ranks[0], inputs)
    found, seen_ms, reason = _in_line(found, inputs)
    if alone and found.rule == PERSISTENTLY_LATE.id and found.cause != "input":
        found = in_plain_steps(found, inputs, seen_ms)
    return _with_core_wait(found, inputs) if found.rule == PERSISTENTLY_LATE.id and not reason else found


def _in_line(found: Finding, inputs: Inputs) -> tuple[Finding, float, str]:
    """The finding with what its host does longer: how long, ms per step, and where; 0 and '' where nothing shows it."""
    assert inputs.whole is not None
    longer = whole_run_hosts.seen_longer(inputs, found.ranks)
    one = next((one for one in longer if one.rank in found.ranks), None)
    persistent, seen_ms, reason = found.rule == PERSISTENTLY_LATE.id, 0.0, ""
    if one is not None:
        reason, seen_ms = f"in {one.place.said}", one.costs_ms
        if persistent and one.more_ms >= _EXPLAINS * (found.impact_ms or 0.0):
            found = replace(found, advice=HOST_LONGER.advice_for(one.does))
        found = _with(found, f"{whole_run_hosts.claim_for(one).headline()}.", whole_run_hosts.evidence(one))
    own = in_each_step(inputs.whole, found.ranks) if persistent else None
    if own is not None and own.ms >= max(seen_ms, _EXPLAINS * (found.impact_ms or 0.0)):
        reason, seen_ms = ", ".join(filter(None, (own.part(f"doing.{own.cause}"), reason))), own.ms
        found = replace(found, advice=UNLIKE_OVER_RUN.advice_for(own.cause))
        found = _with(found, own, [Evidence(_DOES[own.cause], stored(own.ms), "ms/step", rank=own.rank)])
    if reason:
        found = replace(found, evidence=(Evidence(Fact.REASON, reason, rank=found.ranks[0]), *found.evidence))
    return found, seen_ms, reason


def _with_core_wait(found: Finding, inputs: Inputs) -> Finding:
    """That the rank's main thread waits for a core, where that is much of what its cure saves."""
    rank = found.ranks[0]
    waited_ms = core_wait_ms(inputs, rank)
    if not waited_ms or waited_ms < _EXPLAINS * (found.impact_ms or 0.0):
        return found
    why = Evidence(Fact.REASON, _WAITS_FOR_A_CORE, rank=rank)
    waits = Evidence(Fact.WAITS_FOR_A_CORE, stored(waited_ms), "ms/step", rank=rank)
    evidence = (why, *found.evidence, waits)
    return replace(found, evidence=evidence, advice=MACHINE.advice_for("shared_cores"))


def _longest(rule: str, rank: int, inputs: Inputs) -> list[FunctionTime]:
    """The functions in which this rank's host spends most, of those that this rule can be about: one, or two alike."""
    assert inputs.whole is not None
    about = _CHOOSE[rule]
    own = [one for one in inputs.whole.host.get(rank, ()) if about(one) and one.looks >= _LEAST_LOOKS]
    if not own or own[0].ms < _LEAST_PCT / 100 * inputs.whole.typical_ms:
        return []
    least = max(_LEAST_PCT / 100 * inputs.whole.typical_ms, _ALIKE * own[0].ms)
    return own[:2] if rule == HOST_BOUND.id and len(own) > 1 and own[1].ms >= least else own[:1]


def _with(found: Finding, more: Claim | str, evidence: Sequence[Evidence]) -> Finding:
    said = more if isinstance(more, str) else more.message()
    return replace(found, message=f"{found.message} {said}", evidence=(*found.evidence, *evidence))


_CHOOSE: dict[str, Callable[[FunctionTime], bool]] = {
    HOST_BOUND.id: lambda one: not one.waits and one.does != "input",
    OUTSIDE_TORCH.id: lambda one: not one.waits and one.does != "input",
    INPUT_BOUND.id: lambda one: one.does == "input",
    EXPOSED_COPIES.id: lambda one: bool(one.place.text and _COPIES.search(one.place.text)),
    BLOCKED_ON_DEVICE.id: lambda one: bool(one.place.text and _BLOCKS.search(one.place.text)),
}

_LEAST_SHARE = 0.2  # of the idle time that a finding is about


class _About(Struct, frozen=True):
    """The idle time that a rule is about, and the functions that can be behind it."""

    bucket: str
    can_be: Callable[[StackTime], bool]


_IDLE: Mapping[str, _About] = {
    HOST_BOUND.id: _About("idle_host", lambda one: one.place.line > 0 and not one.waits),
    OUTSIDE_TORCH.id: _About("idle_host", lambda one: one.place.line > 0 and not one.waits),
    INPUT_BOUND.id: _About("idle_input", lambda one: one.in_loader),
    BLOCKED_ON_DEVICE.id: _About("idle_sync", lambda one: not one.waits),
}


def with_stacks(verdicts: Sequence[Verdict], inputs: Inputs) -> list[Verdict]:
    """The verdicts, with functions where they are known; what samples of hosts name is left as it is."""
    if not any(rank.stacks for rank in inputs.ranks):
        return list(verdicts)
    return _changed(verdicts, _LATE | _IDLE.keys(), lambda found: _with_function(found, inputs))


def _with_function(found: Finding, inputs: Inputs) -> Finding:
    if any(one.fact in (Fact.REASON, Fact.HOST_IN) for one in found.evidence):
        return found
    return _is_late(found, inputs) if found.rule in _LATE else _idle(found, inputs)


def _is_late(found: Finding, inputs: Inputs) -> Finding:
    run, sometimes = inputs.run, found.rule == SOMETIMES_LATE.id
    stragglers = () if run.replay is None else (*run.replay.stragglers.found, run.replay.stragglers.leader)
    own = next((one for one in stragglers if one is not None and found.ranks == (one.rank,)), None)
    if own is None or found.cause not in _OF_HOST:
        return found
    if (one := longer_in_function(run, own, sometimes=sometimes)) is None:
        return found
    window, rank = run.step_words is WINDOW, one.rank
    claim = InFunction(window=window, rank=rank, place=one.said, ms=one.ms, sometimes=sometimes)
    # short calls are not kept, nor what is little of all steps
    seen = {"others": one.peers_ms} if one.peers_ms >= 0.005 * one.ms else {"under": one.unseen_ms}
    unit = _IN_THESE_STEPS if sometimes else run.step_words.unit("ms")
    evidence = [
        Evidence(Fact.REASON, f"in {one.said}", rank=rank),
        Evidence(Fact.HOST_IN, stored(one.ms), unit, rank=rank, peers=stored(one.peers_ms), subject=one.said),
    ]
    if not on_cpu(run):
        claim = replace(claim, idle=one.idle_ms)
        evidence.append(Evidence(Fact.ITS_DEVICE_IDLE_MEANWHILE, stored(one.idle_ms), unit, rank=rank))
    return _with(found, replace(claim, **seen), evidence)


def _idle(found: Finding, inputs: Inputs) -> Finding:
    rank = next((one.rank for one in found.evidence if one.rank is not None), None)
    if (times := inputs.run.times_of(rank)) is None or not times.summary.on_gpu:
        return found
    about, words = _IDLE[found.rule], inputs.run.step_words
    at, whole_ms = IDLE.index(about.bucket), times.mean_ms(about.bucket)
    held: dict[str, float] = {}
    for one in times.summary.stacks:
        if about.can_be(one):
            held[one.said] = held.get(one.said, 0.0) + mean_ms(one.idle_ns[at][times.typical])
    place = max(held, key=lambda said: held[said], default=None)
    if place is None or held[place] < max(_LEAST_PCT / 100 * times.step_ms, _LEAST_SHARE * whole_ms):
        return found
    claim = IdleIn(rank=times.summary.rank, place=place, ms=held[place], of=whole_ms, bucket=about.bucket)
    evidence = Evidence(Fact.HOST_IN, stored(held[place]), words.unit("ms"), rank=rank, subject=place)
    return _with(found, claim, [evidence])
