"""TO-K: what kernels lose against what their work needs, by the cause, with the change to make."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from traceops.compute.model import Impossible, Loss, RankCompute, judged_rank
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity, severity_of
from traceops.core.rule import Rule, Verdict, described
from traceops.core.units import ms_text, percent_text, stored
from traceops.rules.inputs import Inputs
from traceops.words.catalogue import texts

_LEAST_PCT = 5.0  # of the device's busy time
_BOUNDS = (_LEAST_PCT, 10.0, 30.0)
_OF_HOST = ("many_small_kernels", "optimizer_loop", "too_small_batch")
_MOST_LAUNCHES = 0.3  # of all, that go with a loop, an optimizer or small batches
_SHORTER = 0.97  # of the time that the device is occupied: a step that the fix makes shorter for certain
_MOST_IMPOSSIBLE = 3  # operators that are named
LOW_PCT = 60.0  # of the attainable speed, below which a run is not called fine

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


NO_DEVICE_ACTIVITY = "the traces hold no GPU activity"
_EXAMPLES = {"AMD": "MI300X", "NVIDIA": "H100", None: "NAME"}


def why_unrated(compute: RankCompute) -> str:
    """Why nothing tells how fast the kernels could be; '' where it is known."""
    if compute.rates == "assumed" and not compute.gpu:
        return f"the trace doesn't name the GPU (--gpu {_EXAMPLES[compute.maker]})"
    if compute.rates == "assumed":
        return f"no attainable rates are known for {compute.gpu}"
    return "" if compute.has_shapes else "the traces hold no shapes (record_shapes=True)"


def judge(inputs: Inputs) -> list[Verdict]:
    """A verdict for each rule, from the rank that stands for all."""
    own = {one.rank: one for one in inputs.ranks if one.compute is not None}
    if not own:
        return [rule.not_evaluated(NO_DEVICE_ACTIVITY) for rule in RULES]
    if any(one.captures_graphs for one in own.values()):
        return [rule.not_evaluated("a CUDA graph is captured here: the launched kernels did not run") for rule in RULES]
    computes = {rank: one.compute for rank, one in own.items() if one.compute is not None}
    rank = judged_rank(computes)
    compute = computes[rank]
    findings = [_finding(loss, compute, rank, len(own)) for loss in compute.losses if not _is_other_fix(loss, compute)]
    found = [one for one in findings if one is not None]
    if why := why_unrated(compute):
        found = [] if compute.rates == "assumed" else found
        return [_verdict(rule, found, rule.not_evaluated(why)) for rule in RULES]
    verdicts = [
        _verdict(rule, found, rule.clear(f"no loss of {_LEAST_PCT:g} % of the GPU's busy time")) for rule in RULES[:-1]
    ]
    return [*verdicts, _speed(compute, rank, found)]


def of_launches(found: Finding, rule: Rule, compute: RankCompute | None) -> Finding:
    """A finding that the host launches late, with the loop, optimizer or batch that most of its launches are for."""
    if compute is None or found.advice != rule.advice:
        return found
    mine = [loss for loss in compute.losses if loss.cause in _OF_HOST]
    most = max(mine, key=lambda loss: loss.launches, default=None)
    if most is None or most.launches < _MOST_LAUNCHES * compute.launches:
        return found
    advice = OF_CAUSE[most.cause].advice_for(most.cause)
    where = f" Most launches come from {', '.join(most.operators[:3])}." if most.operators else ""
    return replace(found, advice=f"{advice}{where} {found.advice}")


def _verdict(rule: Rule, found: Sequence[Finding], otherwise: Verdict) -> Verdict:
    mine = [one for one in found if one.rule == rule.id]
    return rule.verdict(*mine) if mine else otherwise


def _finding(loss: Loss, compute: RankCompute, rank: int, ranks: int) -> Finding | None:
    rule, share = OF_CAUSE[loss.cause], 100 * loss.device_ns / compute.busy_ns
    launches = 100 * loss.launches / max(compute.launches, 1.0)
    if loss.cause == "bandwidth_bound_at_limit":
        severity: Severity | None = "info"
    elif loss.cause in ("many_small_kernels", "too_small_batch"):
        severity = "info" if max(share, launches) >= 2 * _LEAST_PCT else None
    else:
        severity = severity_of(share, *_BOUNDS)
        if severity is not None and (compute.bound == "host" or _is_foreach(loss)):
            severity = "info"
        elif severity == "error" and not _is_certain(loss, compute):
            severity = "warning"
    if severity is None:
        return None
    saved = loss.device_ns / 1e6
    return rule.finding(
        severity,
        "high" if compute.rates in ("measured", "own") and compute.bound == "device" else "medium",
        f"{_headline(loss)} {_of_step(loss, compute)}{_other_fix(loss, compute)}",
        [
            Evidence(Fact.KERNELS_TIME, stored(loss.ns / 1e6), "ms/step", rank=rank),
            Evidence(Fact.KERNELS_SAVED, stored(saved), "ms/step", rank=rank),
            Evidence(Fact.GPU_BUSY, stored(compute.busy_ns / 1e6), "ms/step", rank=rank),
            *(
                [Evidence(Fact.KERNELS_REMOVED, stored(loss.launches), "per step", rank=rank)]
                if loss.launches >= 1
                else []
            ),
            *(Evidence(Fact.OPERATOR, name, rank=rank) for name in loss.operators),
        ],
        ranks=[rank] if ranks > 1 else [],
        impact_ms=stored(saved) if compute.bound != "host" else None,
        cause=loss.cause,
    )


def _is_other_fix(loss: Loss, compute: RankCompute) -> bool:
    """Whether it is the second of two fixes for the same products, which the first one's finding names."""
    return loss.cause == "float32_training" and any(one.cause == "float32_products" for one in compute.losses)


def _other_fix(loss: Loss, compute: RankCompute) -> str:
    """' With bf16 autocast instead of TF32: …'; '' where there is no such choice."""
    other = next((one for one in compute.losses if _is_other_fix(one, compute)), None)
    if loss.cause != "float32_products" or other is None:
        return ""
    saved, least, most = (ms_text(ns / 1e6) for ns in (other.device_ns, *other.step_after_ns))
    return f" {texts('compute', 'headlines')['float32_products.bf16'].format(saved=saved, least=least, most=most)}"


def _headline(loss: Loss) -> str:
    cost, kernels = (f"{ms_text(ns / 1e6)} ms per step" for ns in (loss.device_ns, loss.ns))
    first = loss.operators[0] if loss.operators else "A kernel"
    words, key = texts("compute", "headlines"), str(loss.cause)
    if not loss.sizes:
        key += ".unsized"
    elif loss.cause == "too_small_batch" and loss.sizes[0] == loss.sizes[-1]:
        key += ".passes"
    elif _is_foreach(loss):
        key += ".foreach"
    return words.get(key, words[loss.cause]).format(*loss.sizes, cost=cost, kernels=kernels, first=first)


def _is_foreach(loss: Loss) -> bool:
    """An optimizer in a few passes over all parameters: to fuse these is a lesser gain."""
    return loss.cause == "optimizer_loop" and loss.operators[0].startswith("_foreach_")


def _of_step(loss: Loss, compute: RankCompute) -> str:
    """What the fix does to the step, as far as the trace decides."""
    if loss.cause == "bandwidth_bound_at_limit":
        return f"They have at most {loss.sizes[0]} rows, so a larger batch costs little more time."
    least, most = (ms_text(ns / 1e6) for ns in loss.step_after_ns)
    more = (
        f" Up to {ms_text(loss.more_ns / 1e6)} ms more may be saved." if loss.more_ns > 0.02 * compute.busy_ns else ""
    )
    if compute.bound == "host" and not loss.launches:
        return f"The host limits the step, so the fix won't make it shorter.{more}"
    if not _is_certain(loss, compute):
        return f"The fix brings the step to {least} ms at best; the host may keep it at {most} ms.{more}"
    return f"The fix brings the step to {least} to {most} ms.{more}"


def _is_certain(loss: Loss, compute: RankCompute) -> bool:
    """Whether the step gets shorter whatever the host's pace without the profiler is."""
    return compute.bound == "device" and loss.step_after_ns[1] < _SHORTER * compute.device_ns


def _impossible(one: Impossible, rank: int) -> Finding:
    """An operator that the trace has faster than its GPU can be."""
    does = "moves" if one.moves else "computes"
    return SPEED.finding(
        "warning",
        "high",
        f"{one.name} {does} {one.times:.1f}× what the GPU can: the trace's times or shapes are wrong.",
        [Evidence(Fact.PEAK_PCT, stored(100 * one.times), "%", threshold=100.0, rank=rank, subject=one.name)],
        impact_ms=None,
        cause="impossible_speed",
    )


def _speed(compute: RankCompute, rank: int, found: Sequence[Finding]) -> Verdict:
    if compute.impossible:
        return SPEED.verdict(*(_impossible(one, rank) for one in compute.impossible[:_MOST_IMPOSSIBLE]))
    if compute.efficiency is None:
        return SPEED.not_evaluated("the shapes do not show what most kernels do")
    pct = 100 * compute.efficiency
    said = f"kernels run at {percent_text(pct)} of attainable speed"
    if pct >= LOW_PCT or found:
        return SPEED.clear(said)
    slow = sorted(
        (one for one in compute.operators if one.attainable_ns >= 0), key=lambda one: one.attainable_ns - one.ns
    )[:3]
    return SPEED.verdict(
        SPEED.finding(
            "info" if compute.bound == "host" else "warning",
            "low",
            f"Kernels run at {percent_text(pct)} of attainable speed. Most of the rest is in "
            f"{', '.join(dict.fromkeys(one.name for one in slow))}.",
            [
                Evidence(Fact.ATTAINABLE_PCT, stored(pct), "%", threshold=LOW_PCT, rank=rank),
                *(
                    Evidence(
                        Fact.OPERATOR_TIME,
                        stored(one.ns / 1e6),
                        "ms/step",
                        rank=rank,
                        subject=f"{one.name} {one.shape}",
                    )
                    for one in slow
                ),
            ],
            impact_ms=None,
            cause="below_attainable",
        )
    )
