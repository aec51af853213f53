"""A child process of the doctor: one rank that joins the others and runs the stages of a job."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from traceops.core.claims import reason
from traceops.core.installation import uncollected
from traceops.doctor.job import LAUNCH, SIZES, Reporter, WorkerTask, own_cause, worker_problem

if TYPE_CHECKING:
    import torch

    from traceops.doctor.bench import WorkerContext

# Deadlines are the parent's affair: no limit of torch's may end a test before they do.
_LONG = timedelta(hours=1)
_FAREWELL_S = 10.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    task = WorkerTask.from_text(os.environ[WorkerTask.ENV])
    # Have the kernel kill this process when its parent ends, however that happens. Linux only.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != task.parent:
        os._exit(1)
    reporter = Reporter(task.reports)
    sys.excepthook = partial(_end, reporter)
    with uncollected():
        import torch  # noqa: F401

    reporter.say("end", stage=LAUNCH)
    context = _join(task, reporter)
    _run_stages(task, context)
    # Wait for the others: a rank that leaves takes its connections with it, and rank 0 the store.
    from torch.distributed import DistError

    with suppress(DistError):  # the store went first, or the others do not come
        context.store.add("done", 1)
        until = time.monotonic() + _FAREWELL_S
        while context.store.add("done", 0) < context.world_size and time.monotonic() < until:
            time.sleep(0.01)
    reporter.say("left")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking NCCL down in order could hang, and the end of the process frees all


def _end(reporter: Reporter, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report the exception that ends this process, and end it at once: torch's own end may hang."""
    text = "".join(traceback.format_exception_only(kind, error)).strip()
    reporter.say("error", text=text, cause=own_cause(error))
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def _join(task: WorkerTask, reporter: Reporter) -> WorkerContext:
    """Be part of the process group: the stage ``start``."""
    import torch
    import torch.distributed as dist

    from traceops.doctor.bench import FAULT_ENV, Fault, WorkerContext

    on_gpu = task.job.backend == "nccl"
    device = torch.device("cuda", task.device) if on_gpu else torch.device("cpu")
    fault = Fault.of(os.environ.get(FAULT_ENV), task.device)
    context = WorkerContext(task.rank, task.job.world_size, device, reporter, fault)
    context.enter("start")
    if on_gpu:
        _take_gpu(device)
    if not dist.is_available() or not dist.is_backend_available(task.job.backend):
        raise worker_problem("no_backend", f"this torch ({torch.__version__}) was built without {task.job.backend}")
    context.at("meeting")
    context.store = _store(task)
    context.at("starting", backend=task.job.backend)
    dist.init_process_group(
        task.job.backend, store=context.store, rank=task.rank, world_size=task.job.world_size, timeout=_LONG
    )
    context.at("barrier")
    dist.barrier(device_ids=[device.index] if on_gpu else None)
    context.finish()
    return context


def _take_gpu(device: torch.device) -> None:
    import torch

    if not torch.cuda.is_available():
        built = reason("doctor", "built_for" if torch.version.cuda else "built_for_cpu", cuda=torch.version.cuda)
        raise worker_problem("no_gpu", reason("doctor", "no_gpu", torch=torch.__version__, built=built))
    if device.index >= torch.cuda.device_count():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        limited = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
        raise worker_problem("no_gpu", f"no GPU {device.index}: torch sees {torch.cuda.device_count()}{limited}")
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)  # makes the context, so that its errors are not taken for NCCL's


def _store(task: WorkerTask) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined, unused-ignore]

    rendezvous, world = task.job.rendezvous, task.job.world_size
    if rendezvous is not None:
        return TCPStore(rendezvous.address, rendezvous.port, world, task.rank == 0, timeout=_LONG)
    path = Path(task.folder) / "port"
    if task.rank:
        while not path.exists():  # whoever waits too long is ended from outside
            time.sleep(0.01)
        return TCPStore("127.0.0.1", int(path.read_text()), world, False, timeout=_LONG)
    # Rank 0 takes a port that is free and then tells which: nobody else can have taken it in between.
    store = TCPStore("127.0.0.1", 0, world, True, timeout=_LONG, wait_for_workers=False)
    path.with_suffix(".part").write_text(str(store.port))
    path.with_suffix(".part").rename(path)
    return store


def _run_stages(task: WorkerTask, context: WorkerContext) -> None:
    from traceops.doctor import bench

    job = task.job
    stages = {
        "all_reduce": lambda: bench.all_reduce(context),
        "pairs": lambda: bench.pairs(context),
        "ddp_step": lambda: bench.ddp_step(context),
        "sweep": lambda: bench.sweep(context, job.sizes or SIZES[job.backend], job.budget_s),
        "pair_bandwidth": lambda: bench.pair_bandwidth(context, job.budget_s),
    }
    for stage in job.stages[1:]:
        context.enter(stage)
        stages[stage]()
        context.finish()


if __name__ == "__main__":
    main()
