"""Rows of a rank with a GPU: operators, launches, kernels, copies, annotations on both sides."""

from __future__ import annotations

from collections.abc import Iterator

from changed import replace

from .nccl import arguments, names_of, operation
from .rows import Clock, row
from .truth import Activity, RankTruth, SimulatedRun

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_COPIES = {
    "Memcpy HtoD": "Memcpy HtoD (Pinned -> Device)",
    "Memcpy DtoH": "Memcpy DtoH (Device -> Pinned)",
    "Memcpy DtoD": "Memcpy DtoD (Device -> Device)",
}


def gpu_rows(
    run: SimulatedRun, rank: RankTruth, clock: Clock, names: dict[str, str] | None, seq: bool
) -> Iterator[str]:
    """All rows but the host's steps; `names` are the rank's group names, None for traces that say nothing of them."""
    device = rank.rank % 8
    free: dict[int, int] = {}  # when gloo's thread for a stream may begin what was called next
    for correlation, activity in enumerate(rank.activities, 1000):
        if activity.end <= rank.window_start or activity.launch >= rank.window_end:
            continue
        seen = activity.launch >= rank.window_start
        where = f'"device": {device}, "context": 1, "stream": {activity.stream}, "correlation": {correlation}'
        where = f'"External id": {correlation}, {where}' if seen else where
        if activity.kind == "comm" and run.program.through_host:
            yield from _through_host_rows(run, activity, clock, correlation, device, free)
            continue
        if activity.kind == "comm":
            yield from _comm_rows(run, rank.rank, activity, clock, names, seq, correlation, where, device)
            continue
        if seen:
            yield from _host_rows(activity, clock, correlation)
        if activity.kind == "memory":
            us = (activity.end - activity.start) / 1e3
            where += f', "bytes": {activity.bytes}, "memory bandwidth (GB/s)": {activity.bytes / us / 1e3:.6f}'
        cat, name = ("gpu_memcpy", _COPIES[activity.name]) if activity.kind == "memory" else ("kernel", activity.name)
        yield row(cat, name, device, activity.stream, clock, activity.start, activity.end, where)
    yield from _other_rows(rank, clock, run.program.through_host)
    computed = [a for a in rank.recorded if a.stream == 7 and a.launch >= rank.window_start]
    for number, _, _ in rank.marks:
        own = [a for a in computed if a.step == number]
        if own:
            first, last = min(a.start for a in own), max(a.end for a in own)
            yield row("gpu_user_annotation", f"ProfilerStep#{number}", device, 7, clock, first, last)


def _host_rows(activity: Activity, clock: Clock, correlation: int) -> Iterator[str]:
    quarter = (activity.launch_end - activity.launch) // 4
    began, ended = activity.launch - 2 * quarter, activity.launch_end + quarter
    external = f'"External id": {correlation}'
    if began >= clock.window_start:
        yield row("cpu_op", activity.op, clock.pid, clock.pid, clock, began, ended, external)
    call = "cudaMemcpyAsync" if activity.kind == "memory" else "cudaLaunchKernel"
    args = f'{external}, "cbid": 211, "correlation": {correlation}'
    yield row(
        "cuda_runtime", call, clock.pid, clock.pid, clock, activity.launch, activity.launch_end, args
    )  # fmt: skip


def _comm_rows(
    run: SimulatedRun, rank: int, activity: Activity, clock: Clock, names: dict[str, str] | None, seq: bool,
    correlation: int, where: str, device: int,
) -> Iterator[str]:  # fmt: skip
    collective = run.collectives[activity.collective]
    words = names_of(operation(collective, rank), collective.op.dtype)
    if activity.launch >= clock.window_start:
        key, external = collective.op.group, f'"External id": {correlation}'
        said = ""
        if names is not None:
            whole = run.members(key, rank)
            said = arguments(collective, names[key], run.program.description(key), seq, rank, whole)
        eighth = (activity.launch_end - activity.launch) // 8
        outer = (activity.launch - 4 * eighth, activity.launch_end + 2 * eighth)
        inner = (activity.launch - 3 * eighth, activity.launch_end + eighth)
        here = (clock.pid, clock.pid, clock)
        if outer[0] >= clock.window_start:
            if collective.op.inside:
                yield row("cpu_op", collective.op.inside, *here, *outer, external)
            yield row("cpu_op", words.c10d, *here, *outer, external)
            yield row("cpu_op", "record_param_comms", *here, *inner, external + said)
            annotation = f"nccl:{words.annotation}"
            yield row("user_annotation", annotation, *here, *inner, external)
            times = (activity.start, activity.end)
            yield row("gpu_user_annotation", annotation, device, activity.stream, clock, *times, external)
        args = f'{external}, "cbid": 652, "correlation": {correlation}'
        cat, call = ("cuda_runtime", "cudaLaunchKernelExC") if names is None else ("cuda_driver", "cuLaunchKernelEx")
        yield row(cat, call, *here, activity.launch, activity.launch_end, args)
        where += said
    name = words.kernel if names is not None else words.old_kernel
    yield row("kernel", name, device, activity.stream, clock, activity.start, activity.end, where)


def _through_host_rows(
    run: SimulatedRun, activity: Activity, clock: Clock, correlation: int, device: int, free: dict[int, int]
) -> Iterator[str]:  # fmt: skip
    """Rows of a collective that gloo runs for GPUs, as torch 2.11 records it.

    From its call on, or once it is `free`, gloo's thread waits for the device, then it exchanges, then it launches the
    copy back. So its note lasts longer than the exchange.
    """
    args = f'"External id": {correlation}'
    if activity.launch < clock.window_start:
        return
    began = max(activity.launch_end + 1_000, free.get(activity.stream, 0))
    copied, over = activity.end, activity.end + 1_500
    free[activity.stream] = over
    note = replace(activity, start=began, end=over)
    yield from gloo_rows(run, note, clock, args)
    thread = clock.pid + activity.stream
    here = (clock.pid, thread, clock)
    number = 2 * 10**7 + 4 * correlation
    if began + 500 < activity.start:
        wait = f'"cbid": 131, "correlation": {number}'
        yield row("cuda_runtime", "cudaStreamSynchronize", *here, began + 500, activity.start, wait)
        gone = max(activity.start - 1_000, activity.launch_end)
        out = f'"correlation": {number + 1}'
        ids = (clock.pid, clock.pid, clock)
        yield row("cuda_runtime", "cudaMemcpyAsync", *ids, activity.launch, activity.launch_end, out)
        out += f', "device": {device}, "stream": {activity.stream}, "bytes": 4'
        yield row("gpu_memcpy", _COPIES["Memcpy DtoH"], device, activity.stream, clock, gone, activity.start, out)
    back = f'"correlation": {number + 2}'
    yield row("cuda_runtime", "cudaMemcpyAsync", *here, copied, copied + 500, back)
    back += f', "device": {device}, "stream": {activity.stream}, "bytes": 4'
    yield row("gpu_memcpy", _COPIES["Memcpy HtoD"], device, activity.stream, clock, copied + 600, over, back)


def gloo_rows(run: SimulatedRun, activity: Activity, clock: Clock, args: str) -> Iterator[str]:
    """Rows of a collective of gloo: the call, and a note on a thread of its own that says the shape and no more."""
    collective = run.collectives[activity.collective]
    words = names_of(collective.op.op, collective.op.dtype)
    yield row("cpu_op", words.c10d, clock.pid, clock.pid, clock, activity.launch, activity.launch_end, args)
    elements, _ = collective.op.messages(len(collective.members))
    args += f', "Input type": ["float"], "Input Dims": [[{elements}]]'
    thread = clock.pid + activity.stream
    yield row(
        "user_annotation", f"gloo:{words.annotation}", clock.pid, thread, clock, activity.start, activity.end, args
    )  # fmt: skip


def _other_rows(rank: RankTruth, clock: Clock, through_host: bool) -> Iterator[str]:
    for number, host in enumerate(rank.host_rows):
        if through_host and host.name == "cudaEventSynchronize":
            continue  # torch does not record that the host waits for gloo
        if not rank.window_start <= host.start < host.end <= rank.window_end:
            continue
        if host.kind == "sync":
            args = f'"cbid": 165, "correlation": {10**7 + number}'
            yield row("cuda_runtime", host.name, clock.pid, clock.pid, clock, host.start, host.end, args)
        else:
            name = LOADER if host.kind == "input" else host.name
            yield row("user_annotation", name, clock.pid, clock.pid, clock, host.start, host.end)
