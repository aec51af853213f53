"""TO-K: what kernels lose against what their work needs, by the cause, with the change to make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.compute.attainable import HalfType, half_type_of
from traceops.compute.measure import LEAST_PACE, PACES
from traceops.compute.model import Loss, RankCompute, judged_rank
from traceops.core.claims import Claim, reason
from traceops.core.facts import Fact
from traceops.core.findings import Confidence, Evidence, Finding, Severity, severity_of
from traceops.core.rule import Bounds, Rule, Verdict, described
from traceops.core.units import stored
from traceops.core.words import WINDOW
from traceops.rules.inputs import Inputs
from traceops.words.catalogue import texts


class ComputeBounds(Bounds, frozen=True):
    """Percent of the GPU's busy time, of launches and of attainable speed, as words/compute.ini says."""

    words = "compute"

    busy_pct: tuple[float, float, float] = (5.0, 10.0, 30.0)
    launches_pct: float = 30.0
    attainable_pct: float = 60.0
    shorter: float = 0.97


BOUNDS = ComputeBounds()


class KernelClaim(Claim, frozen=True):
    family = "compute"


class KernelLoss(KernelClaim, frozen=True, kw_only=True):
    """Kernels that take longer than their work needs, ms of a step: by `cost`, of `kernels`. form: by its cause.
    effect: what the fix does to the step, which it brings to `least` to `most`. gain: what it saves of it at most.
    half: the type of 16 bits to train in."""

    form: str
    cost: float
    kernels: float
    first: str
    size: int | None = None
    other: int | None = None
    pad_to: int | None = None
    effect: str | None = None
    least: float
    most: float
    gain: float = 0.0
    half: HalfType | None = None


class ImpossibleSpeed(KernelClaim, frozen=True, kw_only=True):
    """An operator that the trace has faster than its GPU can be, by this factor; unnamed: than any can."""

    operator: str
    does: str
    factor: float
    unnamed: bool = False


class BelowAttainable(KernelClaim, frozen=True, kw_only=True):
    """All kernels together against attainable speed, percent, and the operators that lose most."""

    pct: float
    operators: tuple[str, ...]


class LaunchedBy(KernelClaim, frozen=True, kw_only=True):
    """The operators that most launches of a host come from."""

    operators: tuple[str, ...]


_OF_LAUNCHES = ("many_small_kernels", "optimizer_loop")
_SOME = 0.1  # of what a fix saves of the device's time: less of it in the step is little
_WHOLE = 1.05  # times what the device does: in a longer step it waits; a shorter one does less than the mean of all
_OF_TYPICAL = 1.5  # times a typical step: longer kernels, in the mean of all steps, are of other steps
_LITTLE = 0.1  # of the step: kernels that take less of it are not told as slow
_NOTICED = 0.03  # of the step: a fix that saves less is no finding
_NEARLY_ALL = 0.9  # of what the device loses, that the step gets shorter by: nothing more to tell
_PART = 0.3  # of what the operator that loses most loses: others are not named
_MOST_IMPOSSIBLE = 3  # operators that are named
# Of kernels without shapes only their names tell that they lack this: how much it costs is a guess.
_GUESSED = ("float32_products", "float32_training", "misaligned_shape", "masked_attention")

TYPES = described("compute", "TO-K001")
ATTENTION = described("compute", "TO-K002")
SHAPES = described("compute", "TO-K003")
FUSION = described("compute", "TO-K004")
INDEXING = described("compute", "TO-K005")
RECOMPUTATION = described("compute", "TO-K006")
SMALL = described("compute", "TO-K007")
SPEED = described("compute", "TO-K008")
RULES = (TYPES, ATTENTION, SHAPES, FUSION, INDEXING, RECOMPUTATION, SMALL, SPEED)
OF_CAUSE: dict[str, Rule] = {cause: rule for rule in RULES for cause, _ in rule.by_cause}


def why_unrated(compute: RankCompute) -> str:
    """Why nothing tells how fast the kernels could be; '' where it is known."""
    if compute.rates == "assumed" and not compute.gpu:
        return reason("compute", "no_name")
    if compute.rates == "assumed":
        return reason("compute", "no_rates", gpu=compute.gpu)
    if compute.has_shapes and compute.efficiency is not None:
        return ""
    known = "unknown_work" if compute.has_shapes else "no_shapes"
    return reason("compute", "replayed" if compute.replayed else known)


def judge(inputs: Inputs) -> list[Verdict]:
    """A verdict for each rule, from the rank that stands for all."""
    if not (own := {one.rank: one for one in inputs.ranks if one.compute is not None}):
        return [rule.not_evaluated(reason("compute", "no_kernels"), "no_gpu_activity") for rule in RULES]
    if any(one.captures_graphs for one in own.values()):
        return [rule.not_evaluated(reason("compute", "captures_graph")) for rule in RULES]
    computes = {rank: one.compute for rank, one in own.items() if one.compute is not None}
    rank = judged_rank(computes)
    compute = computes[rank]
    if (times := inputs.run.times_of(rank)) is not None and compute.device_ns > _OF_TYPICAL * 1e6 * times.step_ms:
        return [rule.not_evaluated(reason("compute", "other_steps")) for rule in RULES]
    known = compute.rates != "assumed"
    why, clear = why_unrated(compute), reason("compute", "no_loss", bound=BOUNDS.busy_pct[0], step=100 * _NOTICED)
    found = _findings(compute, rank, inputs) if known else []
    verdicts = [_verdict(rule, found, rule.not_evaluated(why) if why else rule.clear(clear)) for rule in RULES[:-1]]
    rated = not why or compute.impossible or (known and compute.efficiency is not None)
    if not rated:
        return [*verdicts, _verdict(SPEED, found, SPEED.not_evaluated(why))]
    return [*verdicts, _speed(compute, rank, found, inputs.run)]


def _findings(compute: RankCompute, rank: int, inputs: Inputs) -> list[Finding]:
    timed = inputs.unprofiled_ms is not None or inputs.undisturbed is not None
    losses = [loss for loss in compute.losses if loss.cause in OF_CAUSE and not _is_other_fix(loss, compute)]
    return [one for loss in losses if (one := _finding(loss, compute, rank, inputs.run, timed)) is not None]


def of_launches(found: Finding, rule: Rule, compute: RankCompute | None) -> Finding:
    """A finding that the host launches late, with the loop or optimizer that many of its launches are for."""
    if compute is None or found.advice != rule.advice:
        return found
    mine = [loss for loss in compute.losses if loss.cause in _OF_LAUNCHES]
    most = max(mine, key=lambda loss: loss.launches, default=None)
    if most is None or 100 * most.launches < BOUNDS.launches_pct * compute.launches:
        return found
    where = f" {LaunchedBy(operators=most.operators[:3]).message()}" if most.operators else ""
    advice = OF_CAUSE[most.cause].advice_for(most.cause) if most.cause in OF_CAUSE else found.advice
    return replace(found, advice=f"{advice}{where}")


def _verdict(rule: Rule, found: Sequence[Finding], otherwise: Verdict) -> Verdict:
    mine = [one for one in found if one.rule == rule.id]
    return rule.verdict(*mine) if mine else otherwise


def _severity(loss: Loss, compute: RankCompute) -> Severity | None:
    # Collectives keep the GPU busy too, and kernels of two streams take longer together than the device is busy.
    share = 100 * loss.device_ns / max(compute.busy_ns, compute.device_ns)
    severity, by_name = severity_of(share, *BOUNDS.busy_pct), not compute.has_shapes and loss.cause in _GUESSED
    large = severity == "error" and loss.cause == "float32_products"
    foreach = loss.cause == "optimizer_loop" and loss.operators[0].startswith("_foreach_")  # to fuse it gains less
    if severity is not None and (compute.bound == "host" or foreach or (by_name and not large)):
        return "info"
    return "warning" if severity == "error" and (by_name or not _is_certain(loss, compute)) else severity


def _finding(loss: Loss, compute: RankCompute, rank: int, run: CrossRank, timed: bool) -> Finding | None:
    times, words = run.times_of(rank), run.step_words
    step_ns = 0.0 if times is None else 1e6 * times.step_ms
    severity, effect = _severity(loss, compute), _effect(loss, compute, step_ns, timed)
    gain_ns, noticed_ns = _gain_ns(loss, compute), max(_NOTICED * step_ns, _SOME * loss.device_ns)
    unsure = words is WINDOW and compute.bound == "host" and not timed  # first launches load kernels
    if severity is None or unsure or (effect != "certain" and gain_ns < noticed_ns):
        return None
    claim = _claim(loss, compute, words is WINDOW, effect, gain_ns / 1e6)
    told = () if loss.cause == "float32_training" else loss.operators  # all of them are of that type
    evidence = [
        Evidence(Fact.KERNELS_TIME, stored(loss.ns / 1e6), words.unit("ms"), rank=rank),
        *(Evidence(Fact.OPERATOR, name, rank=rank) for name in told),
    ]
    sure = compute.rates in ("measured", "own") and compute.bound == "device" and compute.has_shapes
    ranks, impact = [rank] if len(run.ranks) > 1 else [], stored(claim.cost) if compute.bound != "host" else None
    confidence: Confidence = "high" if sure else "medium"
    rule = OF_CAUSE[loss.cause]
    found = rule.finding(severity, confidence, claim, evidence, ranks=ranks, impact_ms=impact, cause=loss.cause)
    return replace(found, advice=_fitting_advice(claim, loss) or found.advice)


def _fitting_advice(claim: KernelLoss, loss: Loss) -> str:
    """What fits better than its cause's advice; '' for nothing."""
    if claim.half == "fp16":
        return claim.part("do.autocast_fp16")
    if loss.cause == "scatter_or_sort" and loss.launches:  # fills of new memory
        return claim.part("do.fills")
    convolves = loss.cause == "float32_products" and "conv" in loss.operators[0]  # which take most of the time
    return claim.part("do.tf32_convolutions" if convolves else f"do.{claim.form}")


def _is_other_fix(loss: Loss, compute: RankCompute) -> bool:
    """Whether it is the second of two fixes for the same products."""
    return loss.cause == "float32_training" and any(one.cause == "float32_products" for one in compute.losses)


def _claim(loss: Loss, compute: RankCompute, window: bool, effect: str | None, gain: float) -> KernelLoss:
    sizes, pads = loss.sizes, loss.cause == "misaligned_shape"
    return KernelLoss(
        window=window,
        form=_form(loss),
        cost=loss.device_ns / 1e6,
        kernels=loss.ns / 1e6,
        first=loss.operators[0] if loss.operators else "A kernel",
        size=sizes[0] if sizes else None,
        other=sizes[1] if len(sizes) > 1 and not pads else None,
        pad_to=sizes[1] if len(sizes) > 1 and pads else None,
        effect=effect,
        least=loss.step_after_ns[0] / 1e6,
        most=loss.step_after_ns[1] / 1e6,
        gain=gain,
        half=half_type_of(compute.gpu) if loss.cause == "float32_training" else None,
    )


def _form(loss: Loss) -> str:
    """The key of its headline: the cause, and its form where that has words of its own."""
    form = "_several" if loss.cause == "low_occupancy" and len(loss.operators) > 1 else ""
    if not loss.sizes:
        form = "_unsized"
    key = f"{loss.cause}{form}"
    return key if f"form.{key}" in texts("compute", "kernel_loss") else loss.cause


def _effect(loss: Loss, compute: RankCompute, step_ns: float, timed: bool) -> str | None:
    """What the fix does to the step, where that says more than what the device loses. timed: it is known what steps
    take unprofiled."""
    if _is_certain(loss, compute) and compute.device_ns / _WHOLE <= step_ns <= _WHOLE * compute.device_ns:
        return "certain"
    if not _is_replayed(loss, compute):
        return None
    return "at_best" if timed else "at_most" if _gain_ns(loss, compute) < _NEARLY_ALL * loss.device_ns else None


def _is_replayed(loss: Loss, compute: RankCompute) -> bool:
    """Whether a replay decides: what checkpoints cost a host is more than their launches."""
    return bool(compute.paced_ns) and not (loss.cause == "recompute_with_free_memory" and compute.bound == "host")


def _gain_ns(loss: Loss, compute: RankCompute) -> float:
    """By how much the fix makes the replayed step shorter at the likely pace at which that is most; no more than the
    device loses, but for a loop that costs the host most."""
    if not _is_replayed(loss, compute):
        return loss.device_ns
    paced = zip((*PACES, *PACES), compute.paced_ns, loss.paced_ns[0] if loss.paced_ns else (), strict=False)
    gain = max((now - then for pace, now, then in paced if pace >= LEAST_PACE), default=0.0)
    return gain if loss.cause == "optimizer_loop" else min(gain, loss.device_ns)


def _is_certain(loss: Loss, compute: RankCompute) -> bool:
    """Whether the step gets shorter whatever the host's pace without the profiler is."""
    return compute.bound == "device" and loss.step_after_ns[1] < BOUNDS.shorter * compute.device_ns


def _speed(compute: RankCompute, rank: int, found: Sequence[Finding], run: CrossRank) -> Verdict:
    findings = []
    for wrong in compute.impossible[:_MOST_IMPOSSIBLE]:  # the trace has them faster than the GPU can be
        does, unnamed = "moves" if wrong.moves else "computes", compute.rates == "assumed"
        too_fast = ImpossibleSpeed(operator=wrong.name, does=does, factor=wrong.times, unnamed=unnamed)
        peak = Evidence(Fact.PEAK_PCT, stored(100 * wrong.times), "%", 100.0, rank, subject=wrong.name)
        findings.append(SPEED.finding("warning", "high", too_fast, [peak], cause="impossible_speed"))
    if findings:
        return SPEED.verdict(*findings)
    times, pct = run.times_of(rank), 100 * (compute.efficiency or 0.0)
    little = times is not None and compute.busy_ns < _LITTLE * 1e6 * times.step_ms
    explained = any(one.severity != "info" for one in found)
    if pct >= BOUNDS.attainable_pct or explained or little or compute.bound == "host":
        return SPEED.clear(reason("compute", "speed", pct=pct))
    rows, lost = compute.unpacked().operators, defaultdict[str, float](float)
    for one in rows:  # '' is the name of all smaller ones
        lost[one.name] += max(one.known_ns - max(one.attainable_ns, 0.0), 0.0)
    most = sorted(lost, key=lambda name: -lost[name])[:3]
    slow = tuple(takewhile(lambda name: name and lost[name] >= _PART * lost[most[0]], most))
    evidence = [Evidence(Fact.ATTAINABLE_PCT, stored(pct), "%", BOUNDS.attainable_pct, rank)]
    unit = run.step_words.unit("ms")
    for name in slow:
        took = sum(one.ns for one in rows if one.name == name) / 1e6
        evidence.append(Evidence(Fact.OPERATOR_TIME, stored(took), unit, rank=rank, subject=name))
    claim = BelowAttainable(pct=pct, operators=slow)
    return SPEED.verdict(SPEED.finding("warning", "low", claim, evidence, cause="below_attainable"))
