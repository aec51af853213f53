"""TO-I004: copies between host and device while no kernel runs, by what they are for."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.across.copies import CHANGES, PURPOSES, ExposedCopies, Purpose
from traceops.across.cross_rank import RankTimes
from traceops.core.findings import Finding, Severity, severity_of
from traceops.core.rule import Rule, Verdict
from traceops.rules.copies_told import Part, evidence_of, impact_ms, message_of
from traceops.rules.idle_time import work_ms
from traceops.rules.incomplete import why_incomplete
from traceops.rules.inputs import Inputs

EXPOSED_COPIES = Rule(
    id="TO-I004",
    title="Copies between host and device are exposed",
    fires=(
        "Time in which a device runs copies from or to its host and no kernel, on the worst rank, by what they are for "
        "(data to the device, results to the host, tensors that are kept on the host): info from 5 % of the step, "
        "warning from 10 %, error from 20 %. What goes both ways, or is copied "
        "inside autograd's functions, is offloaded: at most a warning, and info where its memory is pinned. Info where "
        "the step would be less than 3 % shorter by a replay. Of a copy for which the host does not wait counts what "
        "comes after the next kernel's launch. Copies to the host below "
        "64 KiB are left to TO-I003, those around gloo's collectives to TO-C003. Judged against a step without the "
        "profiler where one was timed. Ranks with less than half of the worst one's share are not named."
    ),
    advice=(
        "Copy from pinned memory (DataLoader's pin_memory=True, or tensor.pin_memory()) with non_blocking=True, and "
        "the next batch on a stream of its own while this one runs. Weights that are kept on the host come the same "
        "way: keep them on the device where they fit."
    ),
    by_cause=(
        (
            "pinned_input",
            "The memory is pinned already. Copy the next batch with non_blocking=True on a stream of its own while "
            "this one runs (torch.cuda.stream, wait_stream, record_stream); send smaller types (uint8, bf16) and "
            "convert on the device. Weights that are kept on the host come the same way: keep them on the device where "
            "they fit.",
        ),
        (
            "output",
            "Keep results on the device, reduce them there, or copy them every N steps. What has to go: into a pinned "
            "tensor with copy_(…, non_blocking=True), on a stream of its own, and read it a step later.",
        ),
        (
            "offload",
            "Keep offloaded tensors in pinned memory (save_on_cpu(pin_memory=True), pin_memory in FSDP's "
            "CPUOffloadPolicy or DeepSpeed's offload), offload less, or keep them on the device and shard or recompute "
            "in its place.",
        ),
    ),
    loses=(
        "runs nothing but copies from or to its host for",
        "run nothing but copies from or to their hosts for up to",
    ),
    cured="with copies beside kernels",
)
RULES = (EXPOSED_COPIES,)

_BOUNDS = (5.0, 10.0, 20.0)
_LEAST_GAIN_PCT = 3.0  # of the step, by the replay: copies that cost less are a remark
_ALSO = 0.5  # of the worst rank's share: from there on a rank is named beside it
_MOST: dict[Purpose, Severity] = {"offload": "warning"}
_CAPTURED = "a CUDA graph is captured here: what is launched into it does not run, so an exposed copy says nothing"


def judge_copies(inputs: Inputs) -> Verdict:
    """What exposed copies cost of the step: a finding for each purpose that they have."""
    run = inputs.run
    judged = [times for times in run.ranks if times.summary.on_gpu]
    if not judged:
        return EXPOSED_COPIES.not_evaluated("the traces hold no GPU activity")
    if any(times.summary.captures_graphs for times in judged):
        return EXPOSED_COPIES.not_evaluated(_CAPTURED)
    by_rank = {times.summary.rank: times for times in judged if not times.summary.incomplete}
    if not by_rank:
        return EXPOSED_COPIES.not_evaluated(why_incomplete(judged))
    parts = {
        purpose: [
            _part(one, by_rank[one.rank], inputs)
            for one in run.copies
            if one.purpose == purpose and one.rank in by_rank
        ]
        for purpose in PURPOSES
    }
    findings = [_judged(inputs, purpose, own) for purpose, own in parts.items() if own]
    found = tuple(one for one in findings if one is not None)
    if found:
        return EXPOSED_COPIES.verdict(*found)
    most = max((part.pct for own in parts.values() for part in own), default=0.0)
    return EXPOSED_COPIES.clear(f"at most {most:.1f} % of {run.step_words.the} (bound {_BOUNDS[0]:g} %)")


def _part(one: ExposedCopies, times: RankTimes, inputs: Inputs) -> Part:
    """A rank's copies as a part of the step that is told: without the profiler they take as long as that has room for.

    Links are as fast without it: a step that has no room for copies of pinned memory is none that goes on like that.
    """
    light = inputs.undisturbed.step_ms if inputs.undisturbed is not None else None
    plain = min((known for known in (inputs.unprofiled_ms, light) if known), default=one.step_ms)
    other = work_ms(times) - one.exposed_ms
    if plain >= one.step_ms or plain <= other:
        return Part(one, one.exposed_ms, one.step_ms)
    if one.kinds[0].memory == "pinned":
        return Part(one, one.exposed_ms, min(max(plain, other + one.exposed_ms), one.step_ms))
    fits = one.exposed_ms <= plain - other
    return Part(one, one.exposed_ms if fits else one.exposed_ms * plain / one.step_ms, plain)


def _judged(inputs: Inputs, purpose: Purpose, own: Sequence[Part]) -> Finding | None:
    worst = max(own, key=lambda part: part.pct)
    severity = severity_of(worst.pct, *_BOUNDS)
    if severity is None:
        return None
    cause = _cause(worst.copies)
    if purpose in _MOST and severity != "info":
        severity = "info" if worst.copies.kinds[0].memory == "pinned" else _MOST[purpose]
    hit = [part for part in own if part.pct >= max(_BOUNDS[0], _ALSO * worst.pct)]
    ranks = [part.copies.rank for part in hit]
    damaged = any(times.summary.damage for times in inputs.run.ranks if times.summary.rank in ranks)
    replayed = inputs.run.what_if.saved_ns(CHANGES[purpose]) if inputs.run.what_if is not None else None
    saved = impact_ms(hit, worst, None if replayed is None else replayed / 1e6)
    if replayed is not None and 100 * saved < _LEAST_GAIN_PCT * worst.step_ms:
        severity = "info"
    return EXPOSED_COPIES.finding(
        severity,
        "medium" if damaged else "high",
        message_of(worst, ranks, len(inputs.run.ranks), inputs.run.step_words, saved),
        evidence_of(worst, own, inputs.run.step_words, saved, _BOUNDS[0]),
        ranks=ranks,
        impact_ms=saved,
        cause=cause,
    )


def _cause(copies: ExposedCopies) -> str:
    """The key of the advice, by what most of the exposed time is."""
    if copies.purpose != "input":
        return copies.purpose
    return "pinned_input" if copies.kinds[0].memory == "pinned" else "pageable_input"
