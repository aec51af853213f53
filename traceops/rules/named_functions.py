"""Adds to findings about a host the function that it is in, where traces with stacks show one and samples do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from traceops.across.stack_difference import longer_in_function
from traceops.core.arrays import mean_ms
from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Verdict
from traceops.core.units import ms_text, stored
from traceops.measure.stack_times import IDLE, StackTime
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND
from traceops.rules.inputs import Inputs
from traceops.rules.named_lines import REASON
from traceops.rules.stragglers import PERSISTENTLY_LATE, SOMETIMES_LATE

_LATE = {PERSISTENTLY_LATE.id, SOMETIMES_LATE.id}
_OF_HOST = ("host", "input", "unknown")
_NAMES = "host in "  # how evidence begins that names where a host is
_LEAST_PCT = 10.0  # of the step
_LEAST_SHARE = 0.2  # of the idle time that a finding is about


@dataclass(frozen=True)
class _About:
    """The idle time that a rule is about, the functions that can be behind it, and its clause."""

    bucket: str
    can_be: Callable[[StackTime], bool]
    clause: str


_IDLE: Mapping[str, _About] = {
    HOST_BOUND.id: _About("idle_host", lambda one: one.place.line > 0 and not one.waits, "its GPU waits for launches"),
    INPUT_BOUND.id: _About("idle_input", lambda one: one.in_loader, "its GPU waits for input"),
    BLOCKED_ON_DEVICE.id: _About("idle_sync", lambda one: not one.waits, "its GPU idles behind blocking calls"),
}


def with_stacks(verdicts: Sequence[Verdict], inputs: Inputs) -> list[Verdict]:
    """The verdicts, with functions where they are known; what samples of hosts name is left as it is."""
    if not any(rank.stacks for rank in inputs.ranks):
        return list(verdicts)
    return [
        replace(verdict, findings=tuple(_named(found, inputs) for found in verdict.findings))
        if verdict.rule in _LATE or verdict.rule in _IDLE
        else verdict
        for verdict in verdicts
    ]


def _named(found: Finding, inputs: Inputs) -> Finding:
    if any(one.metric == REASON or one.metric.startswith(_NAMES) for one in found.evidence):
        return found
    return _late(found, inputs) if found.rule in _LATE else _idle(found, inputs)


def _late(found: Finding, inputs: Inputs) -> Finding:
    run, sometimes = inputs.run, found.rule == SOMETIMES_LATE.id
    stragglers = () if run.stragglers is None else (*run.stragglers.found, run.stragglers.leader)
    own = next((one for one in stragglers if one is not None and found.ranks == (one.rank,)), None)
    if own is None or found.cause not in _OF_HOST:
        return found
    one = longer_in_function(run, own, sometimes=sometimes)
    if one is None:
        return found
    theirs = f"{ms_text(one.peers_ms)} ms"
    if one.peers_ms < 0.005 * one.ms:  # short calls are not kept, nor what is little of all steps
        theirs = f"less than {ms_text(one.unseen_ms)} ms"
    when = "in each of these steps" if sometimes else f"of {run.step_words.each}"
    on_gpu = any(times.summary.on_gpu for times in run.ranks)
    idle = f"; for {ms_text(one.idle_ms)} ms of that its GPU has nothing to run" if on_gpu else ""
    spends = f"for {ms_text(one.ms)} ms {when}, its peers {theirs}{idle}"
    by = "By the traces' stacks, which slow Python down"
    said = f"{by}, rank {one.rank}'s host is in {one.said} {spends}."
    unit = "ms in these steps" if sometimes else run.step_words.unit("ms")
    evidence = [
        Evidence(REASON, f"in {one.said}", rank=one.rank),
        Evidence(f"{_NAMES}{one.said}", stored(one.ms), unit, rank=one.rank, peers=stored(one.peers_ms)),
    ]
    if on_gpu:
        evidence.append(Evidence("its device idle meanwhile", stored(one.idle_ms), unit, rank=one.rank))
    return _with(found, said, evidence)


def _idle(found: Finding, inputs: Inputs) -> Finding:
    rank = next((one.rank for one in found.evidence if one.rank is not None), None)
    times = inputs.run.times_of(rank)
    if times is None or not times.summary.on_gpu:
        return found
    about, words = _IDLE[found.rule], inputs.run.step_words
    at, whole_ms = IDLE.index(about.bucket), times.mean_ms(about.bucket)
    held: dict[str, float] = {}
    for one in times.summary.stacks:
        if about.can_be(one):
            held[one.said] = held.get(one.said, 0.0) + mean_ms(one.idle_ns[at][times.typical])
    said = max(held, key=lambda said: held[said], default=None)
    if said is None or held[said] < max(_LEAST_PCT / 100 * times.step_ms, _LEAST_SHARE * whole_ms):
        return found
    return _with(
        found,
        f"By the stacks of its trace, rank {rank}'s host is in {said} for {ms_text(held[said])} of the recorded "
        f"{ms_text(whole_ms)} ms {words.per} in which {about.clause}.",
        [Evidence(f"{_NAMES}{said}", stored(held[said]), words.unit("ms"), rank=rank)],
    )


def _with(found: Finding, said: str, evidence: Sequence[Evidence]) -> Finding:
    return replace(found, message=f"{found.message} {said}", evidence=(*found.evidence, *evidence))
