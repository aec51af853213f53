"""A step of DDP on several GPUs of one host, predicted from one GPU, whose trace has no collective to replay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from traceops.across.links import bus_factor, link_by_name
from traceops.report.model import ReportBase
from traceops.report.tables import KernelRow

_GPUS_A_HOST = 8
_GRADIENT_BYTES = {"fp32": 4, "bf16": 4, "fp16": 4, "bf16-params": 2, "fp64": 8}  # of a parameter
_BUCKET_MB = 25.0  # torch's, and the built-in training's on GPUs
_LATENCY_MS = 0.03  # of an all-reduce of a few bytes over NVLink
_FOREACH = "multi_tensor_apply"
_BACKWARD = 2.0 / 3.0  # of what the batch decides of the compute: twice forward's products
_WAITS_FOR_HOST = 0.1  # of the step: then less compute makes it no shorter


def optimizer_ms(kernels: Sequence[KernelRow]) -> float:
    """Time a step of torch's foreach and fused optimizers, which the parameters decide and no batch does."""
    return sum(row.ms_per_step or 0.0 for row in kernels if _FOREACH in row.name)


def step_from_one(report: ReportBase, ranks: int, work: float, fixed_ms: float = 0.0) -> float | None:
    """The step on `ranks` GPUs, ms, each with `work` times the one's batch; None where too little is known.

    The gradients leave in buckets as backward makes them, evenly, one after the other at the rate that NVLink gives to
    this GPU; what of them ends after backward is added to the step. No rank is late. pytorch_ddp only. fixed_ms: of the
    compute, what another batch does not change.
    """
    training, step = report.run.training or {}, report.summary.own_step_ms
    config = training.get("config")
    link = link_by_name(report.run.device, ranks)
    if (
        not isinstance(config, dict)
        or training.get("strategy") != "pytorch_ddp"
        or link is None
        or ranks > _GPUS_A_HOST
    ):
        return None
    size, compute = _gradients(training, config), report.summary.ledger_ms.of("compute")
    if size is None or compute is None or not step:
        return None
    waits = max(step - compute, 0.0) / step > _WAITS_FOR_HOST
    of_batch = max(min(compute, step) - fixed_ms, 0.0)
    alone = step if waits else step - of_batch * (1.0 - work)
    backward = _BACKWARD * of_batch * work
    count = math.ceil(size / _bucket_bytes(config))
    each = _LATENCY_MS + size / count * bus_factor("all_reduce", ranks) / (link.busbw_gbs * 1e9) * 1e3
    end = 0.0
    for number in range(1, count + 1):
        end = max(end, backward * number / count) + each
    return alone + max(end - backward, 0.0)


def _gradients(training: Mapping[str, object], config: Mapping[str, object]) -> float | None:
    count, each = training.get("parameters"), _GRADIENT_BYTES.get(str(config.get("precision")))
    return float(count * each) if isinstance(count, int) and count > 0 and each is not None else None


def _bucket_bytes(config: Mapping[str, object]) -> float:
    mb = config.get("bucket_mb")
    return (float(mb) if isinstance(mb, (int, float)) and mb > 0 else _BUCKET_MB) * 2**20
