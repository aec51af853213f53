"""How much a run gets done a second: samples, tokens, floating point operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from traceops.across.cross_rank import CrossRank
from traceops.core.units import stored
from traceops.measure.flops import RankFlops, WhyNoFlops
from traceops.measure.peak_flops import Precision, peak_of
from traceops.report.run import Run
from traceops.report.summary import Flops, Summary

_TOLD: dict[str, Precision] = {"bf16": "bf16", "fp16": "fp16", "fp64": "fp64"}  # fp32 may run as tf32


def with_speed(summary: Summary, run: Run, ranks: CrossRank) -> Summary:
    """The summary with samples, tokens and operations a second, as far as they are known."""
    step_ms = summary.own_step_ms
    if not step_ms:
        return summary
    counted = [times.summary.flops for times in ranks.ranks]
    devices = {times.summary.meta.device for times in ranks.ranks}
    return replace(
        summary,
        samples_per_s=_rate(run.samples_per_step, step_ms),
        tokens_per_s=_rate(run.tokens_per_step, step_ms),
        flops=flops_of(run, counted, next(iter(devices)) if len(devices) == 1 else None, step_ms),
    )


def flops_of(run: Run, counted: Sequence[RankFlops], device: str | None, step_ms: float) -> Flops:
    """Operations of all ranks a step: counted from shapes, else as the training says; ranks without a trace as others.

    `device`: what all ranks run on, None where that is not one kind.
    """
    world = run.world_size or len(counted)
    known = [(one.model, one.recomputed) for one in counted if one.model is not None]
    whole = len(known) == len(counted) > 0
    told = run.flops_per_step
    why: WhyNoFlops | None = None
    if whole:
        model = sum(own for own, _ in known) / len(known) * world
    elif told is not None:
        model = told
    else:
        why = Counter(one.why for one in counted if one.why is not None).most_common(1)[0][0] if counted else None
        return Flops(why=why or "no_products", device=device)
    precision = _precision(run, counted)
    peak = peak_of(device, precision)
    each = model / world / (step_ms / 1e3)
    return Flops(
        per_step=model,
        recomputed_per_step=sum(again for _, again in known) / len(known) * world if whole else None,
        counted_from="shapes" if whole else "training",
        tflops_per_s=stored(each / 1e12),
        precision=precision,
        device=device,
        peak_tflops=None if peak is None else peak[0],
        peak_source=None if peak is None else peak[1],
        mfu_pct=None if peak is None else stored(100.0 * each / 1e12 / peak[0]),
    )


def _precision(run: Run, counted: Sequence[RankFlops]) -> Precision | None:
    """As the kernels' names tell on every rank, else as the training says."""
    seen = {one.precision for one in counted}
    if len(seen) == 1 and (only := next(iter(seen))) is not None:
        return only
    if seen - {None}:
        return None
    config = (run.training or {}).get("config")
    return _TOLD.get(str(config.get("precision"))) if isinstance(config, dict) else None


def _rate(a_step: float | None, step_ms: float) -> float | None:
    return None if a_step is None else stored(1e3 * a_step / step_ms)
