"""A small training with one fault, for examples of what is said of it (sentences.md).

traceops run --nproc 2 -- benchmarks/verdicts/faults.py exception
torchrun --nproc-per-node 2 -m benchmarks.verdicts.faults late_schedule OUT     # where it records itself
"""

from __future__ import annotations

import ctypes
import fcntl
import gc
import mmap
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", LOCAL_RANK % torch.cuda.device_count()) if ON_GPU else torch.device("cpu")
DIM = int(os.environ.get("DIM", "2048" if ON_GPU else "128"))
STEPS = int(os.environ.get("STEPS", "30"))
PAUSE = float(os.environ.get("PAUSE", "0.15"))  # seconds a step that every second rank loses
FAULTY, AT = 1, 4  # the rank and the step of the fault
HERE = Path(os.environ.get("TMPDIR", "/tmp"))


class Samples(Dataset[torch.Tensor]):
    """Random samples; `spoil` is called with each index in the process that loads it."""

    def __init__(self, spoil: Callable[[int], None]) -> None:
        self.spoil = spoil

    def __len__(self) -> int:
        return 8 * (STEPS + 1)

    def __getitem__(self, index: int) -> torch.Tensor:
        self.spoil(index)
        return torch.randn(DIM)


def start(seconds: float = 60) -> None:
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    shared = ON_GPU and torch.cuda.device_count() < WORLD  # which NCCL refuses
    dist.init_process_group("nccl" if ON_GPU and not shared else "gloo", timeout=timedelta(seconds=seconds))


def network() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()) for _ in range(4))).to(DEVICE)


def train(
    each: Callable[[int], None] = lambda step: None,
    spoil: Callable[[int], None] = lambda index: None,
    after: Callable[[int, nn.Module], None] = lambda step, model: None,
    end: Callable[[], None] = lambda: None,
    workers: int = 0,
    sync: bool = True,
) -> None:
    """DDP over all ranks. each: before a step; after: behind it; end: where the iteration ends; sync: of gradients."""
    model = DistributedDataParallel(network(), device_ids=[DEVICE.index] if ON_GPU else None)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    batches = iter(DataLoader(Samples(spoil), batch_size=8, num_workers=workers))
    for step in range(STEPS):
        each(step)
        batch = next(batches).to(DEVICE)
        if ON_GPU:
            batch = batch.repeat(512, 1)
        if sync:
            model(batch).square().mean().backward()
        else:
            with model.no_sync():
                model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after(step, model)
        end()


def learn(model: nn.Module, rows: Callable[[int], torch.Tensor] | None = None, steps: int = STEPS) -> None:
    """Steps of a model on rows drawn for each, or on eight random ones."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(steps):
        model(torch.randn(8, DIM) if rows is None else rows(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def on_one_rank(fault: Callable[[], object]) -> Callable[[int], None]:
    def each(step: int) -> None:
        if RANK == FAULTY and step == AT:
            fault()

    return each


# What crashes.


def key_error() -> None:
    {"input_ids": 1}["labels"]


def assertion() -> None:
    lengths = torch.tensor([128, 96])
    assert torch.unique(lengths).numel() == 1, "samples of a batch differ in length"


def nan_loss() -> None:
    loss = float("nan")
    print(f"Loss is {loss}, stopping training", flush=True)
    sys.exit(1)


def bus_error() -> None:
    path = HERE / f"mapped.{os.getpid()}"
    path.write_bytes(bytes(1 << 16))
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
    path.unlink()
    mapped[1 << 15] = 1


def segmentation_fault() -> None:
    ctypes.string_at(0)


def state_dict() -> None:
    nn.Linear(8, 4).load_state_dict(nn.Linear(16, 4).state_dict())


def ddp_names() -> None:
    saved = {f"module.{name}": value for name, value in nn.Linear(8, 4).state_dict().items()}
    nn.Linear(8, 4).load_state_dict(saved)


def cut_checkpoint() -> None:
    path = HERE / f"model.{os.getpid()}.pt"
    torch.save(network().state_dict(), path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    torch.load(path)


def lfs_pointer() -> None:
    path = HERE / f"pytorch_model.{os.getpid()}.bin"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 438007537\n")
    torch.load(path)


def shared_view() -> None:
    class Scaled(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)
            self.register_buffer("scale", torch.ones(1).expand(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return cast(torch.Tensor, self.inner(x) * self.scale)

    model = DistributedDataParallel(Scaled())
    model(torch.randn(2, 8)).sum().backward()


def modified_inplace() -> None:
    model = nn.Linear(8, 8)
    hidden = torch.sigmoid(model(torch.randn(2, 8)))
    hidden += 1
    torch.autograd.backward(hidden.sum())


def two_devices() -> None:
    other = torch.device("cuda", 0) if ON_GPU else torch.device("meta")
    nn.Linear(8, 8).to(DEVICE)(torch.randn(2, 8, device=other))


def load_device() -> None:
    torch.load(os.environ["CHECKPOINT"])


def no_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    torch.save(network().state_dict(), HERE / f"checkpoint.{os.getpid()}.pt")


def open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [torch.randn(4) for _ in range(200)]
    batches = list(DataLoader(kept, num_workers=2))  # type: ignore[arg-type]
    print(len(batches))


def host_memory() -> None:
    torch.empty(1 << 50, dtype=torch.uint8)


def large_batch() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    kept = []
    while True:
        kept.append(bytearray(1 << 26))


# What only a GPU does.


def out_of_memory() -> None:
    kept = []
    while True:
        kept.append(torch.empty(8 << 30, dtype=torch.uint8, device=DEVICE))


def fragmented() -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(DEVICE)
    whole = torch.empty(int(0.95 * free), dtype=torch.uint8, device=DEVICE)
    del whole  # the allocator keeps it, and cuts what follows from it
    size = 96 << 20
    kept = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for _ in range(int(0.93 * free / size))]
    del kept[::2]
    torch.empty(8 << 30, dtype=torch.uint8, device=DEVICE)


def others() -> None:
    torch.empty(40 << 30, dtype=torch.uint8, device=DEVICE)


def raw_kernel(code: str) -> None:
    cupy = import_module("cupy")
    with cupy.cuda.Device(DEVICE.index):
        cupy.RawKernel(f'extern "C" __global__ void bad(float* x) {{ {code} }}', "bad")((1,), (1,), (0,))
    torch.cuda.synchronize(DEVICE)
    torch.zeros(1, device=DEVICE).item()


def trap() -> None:
    raw_kernel('asm("trap;");')


def illegal_access() -> None:
    raw_kernel("x[1] = 1.0f;")


def index_out_of_range() -> None:
    nn.Embedding(10, 4).to(DEVICE)(torch.tensor([11], device=DEVICE)).sum().item()


def no_kernel() -> None:
    """A library that was built for another GPU only; LIBRARY is made by verdict_runs.sh."""
    ctypes.CDLL(os.environ["LIBRARY"]).launch()
    torch.zeros(1, device=DEVICE).add_(1)
    torch.cuda.synchronize(DEVICE)


def no_such_gpu() -> None:
    torch.zeros(1, device="cuda:9")


def gpu_error_in_nccl() -> None:
    cupy = import_module("cupy")
    x = torch.ones(1 << 20, device=DEVICE)
    with cupy.cuda.Device(DEVICE.index):
        cupy.RawKernel('extern "C" __global__ void bad(float* x) { x[1] = 1; }', "bad")((1,), (1,), (0,))
    group = dist.new_group(list(range(WORLD)))
    dist.all_reduce(x, group=group)


CRASHES: dict[str, Callable[[], object]] = {
    one.__name__: one
    for one in (
        key_error, assertion, nan_loss, bus_error, segmentation_fault, state_dict, ddp_names, cut_checkpoint,
        lfs_pointer, modified_inplace, two_devices, load_device, no_room, open_files, host_memory, large_batch,
        out_of_memory, fragmented, others, trap, illegal_access, index_out_of_range, no_kernel, no_such_gpu,
        gpu_error_in_nccl,
    )
}  # fmt: skip


# What ends before the first step.


def late_start() -> None:
    """One rank reads its data for ever before it makes the process group."""
    if RANK == FAULTY:
        time.sleep(3600)
    start()
    train()


def alone() -> None:
    """RANK=0 WORLD_SIZE=2 python … : the other rank was never started."""
    start(8)


def unreachable() -> None:
    """One rank has an interface of its own that the other cannot reach."""
    start(20)
    dist.all_reduce(torch.ones(1))


def rank_twice() -> None:
    """Three processes, two of them with one rank; STORE is HOST:PORT of a store that somebody else keeps."""
    torch.cuda.set_device(DEVICE)
    host, port = os.environ["STORE"].split(":")
    own = int(os.environ["MY_RANK"])
    store = cast(Any, dist).TCPStore(host, int(port), is_master=False)
    dist.init_process_group("nccl", store=store, rank=own, world_size=3, timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1, device=DEVICE))
    torch.cuda.synchronize()


def stuck_later() -> None:
    """A rank goes away after the steps that are recorded."""

    def away(step: int) -> None:
        if RANK == FAULTY and step == 20:
            time.sleep(3600)

    start()
    train(each=away)


def views() -> None:
    start()
    shared_view()


def _half(seconds: float) -> None:
    """Sleeps on every second rank."""
    if RANK % 2:
        time.sleep(seconds)


def slow_half_input() -> None:
    """The data of every second rank comes late; with eight ranks and more that is a group."""
    start()
    train(spoil=lambda index: _half(PAUSE if index % 8 == 0 else 0.0))


def slow_half_host() -> None:
    """Every second rank does something between its steps that the others do not."""
    start()
    train(after=lambda step, model: _half(PAUSE))


def slow_half_both() -> None:
    """As much of the one as of the other, so that neither explains why every second rank is slower."""
    start()
    train(spoil=lambda index: _half(PAUSE / 2 if index % 8 == 0 else 0.0), after=lambda step, model: _half(PAUSE / 2))


def slow_half_gpu() -> None:
    """Every second rank computes on a few of its GPU's multiprocessors, so that the same kernels take longer there."""
    start()
    if RANK % 2:
        few: Any = torch.cuda.green_contexts.GreenContext.create(num_sms=16, device_id=DEVICE.index)
        few.set_context()
    batch = torch.randn(2048, DIM, device=DEVICE)
    learn(DistributedDataParallel(network(), device_ids=[DEVICE.index]), lambda step: batch)


def network_down() -> None:
    """For a network namespace of its own (unshare -n): the loopback device goes down while ranks use it."""

    def unplug() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = bytearray(struct.pack("16sH14s", b"lo", 0, b""))
            fcntl.ioctl(any_socket, 0x8913, request)  # SIOCGIFFLAGS
            flags = struct.unpack_from("H", request, 16)[0] & ~1  # IFF_UP
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", flags, b""))  # SIOCSIFFLAGS

    start()
    train(on_one_rank(unplug))


def loader_dies() -> None:
    def spoil(index: int) -> None:
        if RANK == FAULTY and index == 8 * AT:
            os._exit(1)

    start()
    train(spoil=spoil, workers=1)


# Steps unlike the others.


def evaluation() -> None:
    quiet = network().eval()

    def evaluate(step: int, model: nn.Module) -> None:
        if step == 11:
            with torch.no_grad(), record_function("evaluate"):
                for _ in range(400):
                    quiet(torch.randn(64, DIM, device=DEVICE))

    start()
    train(after=evaluate)


def checkpoint() -> None:
    def save(step: int, model: nn.Module) -> None:
        if step == 11:
            with record_function("save_checkpoint"):
                for part in range(40):
                    torch.save(model.state_dict(), HERE / f"part{RANK}.{part}.pt")

    start()
    train(after=save)


def recompiled() -> None:
    """Every tenth step has another number of rows, for which torch.compile compiles again."""
    start()
    compiled: Any = torch.compile(DistributedDataParallel(network()), backend="aot_eager", dynamic=False)
    learn(compiled, lambda step: torch.randn(8 + (step if step % 10 == 0 else 0), DIM))


def garbage() -> None:
    gc.disable()
    kept: list[object] = [[{} for _ in range(10)] for _ in range(150_000)]

    def collect(step: int) -> None:
        if step == 13:
            with record_function("gc.collect"):
                gc.collect()

    start()
    train(each=collect)
    del kept


def slow_batch() -> None:
    def spoil(index: int) -> None:
        if index == 8 * 13:
            time.sleep(0.4)

    start()
    train(spoil=spoil)


# Traces that a program records itself.


def recorded(
    out: Path, wait: int = 3, active: int = 3, on: tuple[ProfilerActivity, ...] = (), sync: bool = True
) -> None:
    """Trains and writes rank_N.pt.trace.json with torch's own profiler."""
    activities = on or ((ProfilerActivity.CPU, ProfilerActivity.CUDA) if ON_GPU else (ProfilerActivity.CPU,))
    out.mkdir(parents=True, exist_ok=True)

    def write(done: profile) -> None:
        done.export_chrome_trace(str(out / f"rank_{RANK}.pt.trace.json"))

    with profile(
        activities=activities, schedule=schedule(wait=wait, warmup=1, active=active), on_trace_ready=write
    ) as own:
        train(end=own.step, sync=sync)


def window(out: Path) -> None:
    """Random matrix products without any iteration, recorded as one window."""
    out.mkdir(parents=True, exist_ok=True)
    x = torch.randn(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as own:
        for number in range(7):
            (x @ torch.randn(64, 64 + number)).sum()
        dist.all_reduce(x)
        torch.linalg.svd(x)
    own.export_chrome_trace(str(out / f"rank_{RANK}.pt.trace.json"))


def late_schedule(out: Path) -> None:
    recorded(out, wait=3 + RANK)


def full_disk(out: Path) -> None:
    """One rank's trace is cut, as a copy on a full disk is."""
    recorded(out)
    if RANK == FAULTY:
        path = out / f"rank_{RANK}.pt.trace.json"
        os.truncate(path, path.stat().st_size * 2 // 3)


def other_host(out: Path) -> None:
    """Each rank on a host of its own, by name: in a namespace, so that this machine keeps its own."""
    new_uts = 0x04000000
    if ctypes.CDLL(None, use_errno=True).unshare(new_uts) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUTS)")
    socket.sethostname(f"node{RANK}")
    recorded(out)


def no_gpu_activity(out: Path) -> None:
    recorded(out, on=(ProfilerActivity.CPU,))


def not_synchronised(out: Path) -> None:
    recorded(out, sync=False)


def pairs_only(out: Path) -> None:
    """Pairs of ranks that have nothing to do with each other."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    mine, x = groups[RANK // 2], torch.randn(1 << 16)

    def together(step: int, model: nn.Module) -> None:
        dist.all_reduce(x, group=mine)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    out.mkdir(parents=True, exist_ok=True)

    def write(done: profile) -> None:
        done.export_chrome_trace(str(out / f"rank_{RANK}.pt.trace.json"))

    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule(wait=3, warmup=1, active=3), on_trace_ready=write
    ) as own:
        for step in range(8):
            model(torch.randn(8, DIM)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            together(step, model)
            own.step()


def own_profiler() -> None:
    """The program starts a profiler of its own after a while."""
    own = profile(activities=[ProfilerActivity.CPU])

    def begin(step: int) -> None:
        if step == 10:
            own.start()

    train(each=begin)
    own.stop()


def unsynchronised() -> None:
    train(sync=False)


def short_profiler() -> None:
    """The program profiles one backward pass itself, in the first step that `traceops run` would record."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for step in range(STEPS):
        loss = model(torch.randn(8, DIM)).square().mean()
        if step == 10:
            with profile(activities=[ProfilerActivity.CPU]):
                loss.backward()
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def apart() -> None:
    """Pairs of ranks that have nothing to do with each other, in one job."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)]
    learn(DistributedDataParallel(network(), process_group=groups[RANK // 2]))


def ended_early() -> None:
    """A model a rank, as the folds of a cross-validation, and nothing that waits: rank 1 has fewer batches."""
    learn(network(), steps=8 if RANK == FAULTY else STEPS)


def slow_pair() -> None:
    """Two pairs of GPUs; one of them goes through the host's memory."""
    group = [dist.new_group([0, 1]), dist.new_group([2, 3])][RANK // 2]
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(8))).to(DEVICE)
    replicas = DistributedDataParallel(model, device_ids=[DEVICE.index], process_group=group)
    learn(replicas, lambda step: torch.randn(4096, 4096, device=DEVICE))


STARTED: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (evaluation, checkpoint, garbage, slow_batch, loader_dies, late_start, alone, unreachable, rank_twice,
        views, network_down, stuck_later, slow_half_input, slow_half_host, slow_half_both, slow_half_gpu, recompiled,
        ended_early)
}  # fmt: skip
TRAINED: dict[str, Callable[[], None]] = {
    one.__name__: one for one in (own_profiler, unsynchronised, slow_pair, short_profiler, apart)
}
RECORDED: dict[str, Callable[[Path], None]] = {
    one.__name__: one
    for one in (window, late_schedule, full_disk, other_host, no_gpu_activity, not_synchronised, pairs_only)
}  # fmt: skip


def main() -> None:
    name = sys.argv[1]
    if name == "slow_pair" and RANK >= 2:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    if name in STARTED:
        STARTED[name]()
    elif name in CRASHES:
        start()
        train(on_one_rank(CRASHES[name]))
    elif name in TRAINED:
        start()
        TRAINED[name]()
    elif name in RECORDED:
        start()
        RECORDED[name](Path(sys.argv[2]))
    else:  # nothing is wrong
        start()
        train()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
