"""Generated runs as the tests of the engine want them, and what the engine makes of them."""

from __future__ import annotations

import numpy as np
from changed import replace
from generated_run import (
    Program,
    Size,
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    TraceStyle,
    ddp,
    fsdp2,
    hsdp,
    step_durations,
    summaries,
    tp_dp,
)

from traceops.across.cross_rank import measure_across
from traceops.rules.stragglers import judge_stragglers

BUILDERS = (ddp, fsdp2, hsdp, tp_dp)
GPU_BOUND = Size()
HOST_BOUND = Size(kernel_us=3.0, launch_us=10.0, elements=1 << 16)
DEFAULT = TraceStyle()
CAUSES = {SlowCompute: "gpu_compute", SlowHost: "host", SlowInput: "input", SlowCopy: "copy"}


def program(builder=ddp, size=GPU_BOUND, steps=4, sync=False, layers=3, **rest) -> Program:
    """A program whose host may run ahead as far as a real one; these short runs never fill that queue."""
    return replace(builder(layers=layers, steps=steps, size=size, sync=sync, **rest), queue=1024)


def hosts_of(run):
    """The name of each rank's host."""
    return {rank.rank: f"host{rank.host}" for rank in run.ranks}


def across(run, style=DEFAULT):
    """What the engine measures over the run's traces; what is of all ranks reads no table of HTA's."""
    return measure_across(summaries(run, style, tables=False), run.world, hosts_of(run))


def true_step(run):
    """Mean over the steps of what the median rank took, ns: as the engine counts steps."""
    return float(np.median(step_durations(run), axis=0).mean())


def findings(measured, slowdown=1.0, undisturbed=None):
    """What is said of stragglers. undisturbed: the step without the profiler."""
    return [found for verdict in judge_stragglers(measured, slowdown, undisturbed) for found in verdict.findings]


def predicted(measured, change, ranks=()):
    """The mean step (ns) a change would lead to."""
    [steps] = [
        p.step_ns for p in measured.replay.what_if.predictions if p.change == change and (not ranks or p.ranks == ranks)
    ]
    return float(steps.mean())
