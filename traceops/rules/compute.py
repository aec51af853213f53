"""TO-K: what kernels lose against what their work needs, by the cause, with the change to make."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.compute.attainable import HalfType, half_type_of
from traceops.compute.model import OF_HOST, Loss, RankCompute, judged_rank
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
_WHOLE = 1.05  # times what the device does: in a longer step it waits, and a fix of kernels brings no shorter one
_LITTLE = 0.1  # of the step: kernels that take less of it are not told as slow
_NOTICED = 0.01  # of the step: a fix that saves less is no finding
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
    known = compute.rates != "assumed"
    why, clear = why_unrated(compute), reason("compute", "no_loss", bound=BOUNDS.busy_pct[0])
    found = _findings(compute, rank, inputs) if known else []
    verdicts = [_verdict(rule, found, rule.not_evaluated(why) if why else rule.clear(clear)) for rule in RULES[:-1]]
    rated = not why or compute.impossible or (known and compute.efficiency is not None)
    if not rated:
        return [*verdicts, _verdict(SPEED, found, SPEED.not_evaluated(why))]
    return [*verdicts, _speed(compute, rank, found, inputs.run)]


def _findings(compute: RankCompute, rank: int, inputs: Inputs) -> list[Finding]:
    timed = inputs.unprofiled_ms is not None or inputs.undisturbed is not None
    losses = [loss for loss in compute.losses if not _is_other_fix(loss, compute)]
    return [one for loss in losses if (one := _finding(loss, compute, rank, inputs.run, timed)) is not None]


def of_launches(found: Finding, rule: Rule, compute: RankCompute | None) -> Finding:
    """A finding that the host launches late, with the loop, optimizer or batch that most of its launches are for."""
    if compute is None or found.advice != rule.advice:
        return found
    mine = [loss for loss in compute.losses if loss.cause in _OF_LAUNCHES]
    most = max(mine, key=lambda loss: loss.launches, default=None)
    if most is None or 100 * most.launches < BOUNDS.launches_pct * compute.launches:
        return found
    advice = OF_CAUSE[most.cause].advice_for(most.cause)
    where = f" {LaunchedBy(operators=most.operators[:3]).message()}" if most.operators else ""
    return replace(found, advice=f"{advice}{where}")


def _verdict(rule: Rule, found: Sequence[Finding], otherwise: Verdict) -> Verdict:
    mine = [one for one in found if one.rule == rule.id]
    return rule.verdict(*mine) if mine else otherwise


def _severity(loss: Loss, compute: RankCompute) -> Severity | None:
    # Collectives keep the GPU busy too, and kernels of two streams take longer together than the device is busy.
    share = 100 * loss.device_ns / max(compute.busy_ns, compute.device_ns)
    if loss.cause == "bandwidth_bound_at_limit":
        return "info"
    if loss.cause == "many_small_kernels":  # a fix of a few is none: the host launches the others
        launched = 100 * loss.launches / max(compute.launches, 1.0)
        share = max(share, launched) if launched >= BOUNDS.launches_pct else 0.0
    if loss.cause in OF_HOST:
        return "info" if share >= 2 * BOUNDS.busy_pct[0] else None
    severity, by_name = severity_of(share, *BOUNDS.busy_pct), not compute.has_shapes and loss.cause in _GUESSED
    large = severity == "error" and loss.cause == "float32_products"
    foreach = loss.cause == "optimizer_loop" and loss.operators[0].startswith("_foreach_")  # to fuse it gains less
    if severity is not None and (compute.bound == "host" or foreach or (by_name and not large)):
        return "info"
    return "warning" if severity == "error" and (by_name or not _is_certain(loss, compute)) else severity


def _finding(loss: Loss, compute: RankCompute, rank: int, run: CrossRank, timed: bool) -> Finding | None:
    rule, times, words = OF_CAUSE[loss.cause], run.times_of(rank), run.step_words
    saved, claim = loss.device_ns / 1e6, _claim(loss, compute, words is WINDOW, timed)
    if (severity := _severity(loss, compute)) is None or claim.effect == "little":
        return None
    if claim.effect == "certain" and times is not None and 1e6 * times.step_ms > _WHOLE * compute.device_ns:
        claim = replace(claim, effect="at_most")
    gain = inf if loss.cause in _OF_LAUNCHES else {None: saved, "at_most": claim.gain}.get(claim.effect, inf)
    if times is not None and gain < _NOTICED * times.step_ms:
        return None
    evidence = [
        Evidence(Fact.KERNELS_TIME, stored(loss.ns / 1e6), words.unit("ms"), rank=rank),
        Evidence(Fact.KERNELS_SAVED, stored(saved), words.unit("ms"), rank=rank),
        *(Evidence(Fact.OPERATOR, name, rank=rank) for name in loss.operators),
    ]
    sure = compute.rates in ("measured", "own") and compute.bound == "device" and compute.has_shapes
    ranks, impact = [rank] if len(run.ranks) > 1 else [], stored(saved) if compute.bound != "host" else None
    confidence: Confidence = "high" if sure else "medium"
    found = rule.finding(severity, confidence, claim, evidence, ranks=ranks, impact_ms=impact, cause=loss.cause)
    convolves = bool(loss.operators) and all("conv" in name for name in loss.operators)
    if claim.half == "fp16":  # an advice that fits better than the cause's own
        return replace(found, advice=claim.part("autocast_fp16"))
    if loss.cause == "float32_products" and convolves:
        return replace(found, advice=claim.part("tf32_convolutions"))
    return found


def _is_other_fix(loss: Loss, compute: RankCompute) -> bool:
    """Whether it is the second of two fixes for the same products, which the first one's finding names."""
    return loss.cause == "float32_training" and any(one.cause == "float32_products" for one in compute.losses)


def _claim(loss: Loss, compute: RankCompute, window: bool, timed: bool) -> KernelLoss:
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
        effect=_effect(loss, compute, timed, window=window),
        least=loss.step_after_ns[0] / 1e6,
        most=loss.step_after_ns[1] / 1e6,
        gain=_gain_ns(loss, compute) / 1e6,
        half=half_type_of(compute.gpu) if loss.cause == "float32_training" else None,
    )


def _form(loss: Loss) -> str:
    """The key of its headline: the cause, and its form where that has words of its own."""
    form = "_several" if loss.cause == "low_occupancy" and len(loss.operators) > 1 else ""
    if not loss.sizes:
        form = "_unsized"
    elif loss.cause == "too_small_batch" and len(loss.sizes) > 1:
        form = "_passes"
    key = f"{loss.cause}{form}"
    return key if f"form.{key}" in texts("compute", "kernel_loss") else loss.cause


def _effect(loss: Loss, compute: RankCompute, timed: bool, *, window: bool = False) -> str | None:
    """What the fix does to the step, as far as a replay decides. timed: it is known what steps take unprofiled."""
    if loss.cause in ("bandwidth_bound_at_limit", "too_small_batch"):
        return "batch"
    if _is_certain(loss, compute):
        return "certain"
    if not compute.paced_ns or (loss.cause == "recompute_with_free_memory" and compute.bound == "host"):
        return None  # nor is what checkpoints cost the host beyond launches
    if _gain_ns(loss, compute) < _SOME * loss.device_ns:
        return "little"
    if window and compute.bound == "host" and not timed:
        return None  # first launches load kernels
    return "at_best" if timed else "at_most"


def _gain_ns(loss: Loss, compute: RankCompute) -> float:
    """By how much the fix makes the replayed step shorter at the pace at which that is most."""
    after = loss.paced_ns[0] if loss.paced_ns else ()
    return max((now - then for now, then in zip(compute.paced_ns, after, strict=False)), default=0.0)


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
    known = [one for one in compute.unpacked().operators if one.name and one.attainable_ns >= 0]  # "": all smaller ones
    slow = sorted(known, key=lambda one: one.attainable_ns - one.ns)[:3]
    claim = BelowAttainable(pct=pct, operators=tuple(dict.fromkeys(one.name for one in slow)))
    evidence = [Evidence(Fact.ATTAINABLE_PCT, stored(pct), "%", BOUNDS.attainable_pct, rank)]
    unit = run.step_words.unit("ms")
    for one in slow:
        operator = f"{one.name} {one.shape}"
        evidence.append(Evidence(Fact.OPERATOR_TIME, stored(one.ns / 1e6), unit, rank=rank, subject=operator))
    return SPEED.verdict(SPEED.finding("warning", "low", claim, evidence, cause="below_attainable"))
