"""Rows of a rank without a GPU: operators on the main thread, gloo's annotations on threads of its own."""

from __future__ import annotations

from collections.abc import Iterator

from .gpu_rows import LOADER, gloo_rows
from .rows import Clock, row
from .truth import RankTruth, SimulatedRun


def cpu_rows(
    run: SimulatedRun, rank: RankTruth, clock: Clock, names: dict[str, str] | None, seq: bool
) -> Iterator[str]:
    """All rows but the steps. Gloo's say the shape and nothing else, whatever `names` and `seq` ask for."""
    for external, activity in enumerate(rank.activities, 1000):
        args = f'"External id": {external}'
        if not rank.window_start <= activity.launch < rank.window_end:
            continue  # an operator or annotation that began before the window leaves no row
        if activity.kind != "comm":
            name = activity.op
            if name.startswith("autograd::"):
                yield row("cpu_op", name, clock.pid, clock.pid, clock, activity.start, activity.end, args)
                name = "aten::mm"
            yield row("cpu_op", name, clock.pid, clock.pid, clock, activity.start, activity.end, args)
            continue
        yield from gloo_rows(run, activity, clock, args)
    for host in rank.host_rows:  # torch does not record that the host waits for gloo
        if rank.window_start <= host.start < host.end <= rank.window_end and host.kind != "sync":
            name = LOADER if host.kind == "input" else host.name
            yield row("user_annotation", name, clock.pid, clock.pid, clock, host.start, host.end)
