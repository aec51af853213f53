"""Whether it is the optimizer's step that keeps a host from launching, and what to do about that."""

from __future__ import annotations

from traceops.across.cross_rank import RankTimes

ADVICE = (
    "The optimizer's step keeps the host busy. With its state on the device fused=True or foreach=True "
    "launch far fewer kernels. With its state on the CPU (offload) the device waits for the CPU's arithmetic: "
    "keep the state on the device, shard it (FSDP, ZeRO), or take a smaller one (8-bit, Adafactor)."
)

_REGION = "Optimizer.step#"  # as torch names it
_LEAST_OF_STEP = 0.25


def optimizer_time(times: RankTimes, idle_ms: float) -> tuple[str, float] | None:
    """The optimizer's step of a rank and its host time, ms a step; None where that is not most of why it idles.

    Nor where it calls a closure: then the forward and the backward pass are a part of it.
    idle_ms: a step, while the host was late. The region must take a quarter of the step, and half as long as that.
    """
    if times.summary.host.closure:
        return None
    steps = max(len(times.duration), 1)
    named = [(ms / steps, name) for name, ms in times.summary.host.regions if _REGION in name]
    took, name = max(named, default=(0.0, ""))
    if took < _LEAST_OF_STEP * times.step_ms or took < idle_ms / 2:
        return None
    return name, took
