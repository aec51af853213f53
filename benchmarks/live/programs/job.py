"""A training of several ranks that goes wrong at a chosen moment: what the monitor is tested on.

torchrun --nproc-per-node 2 job.py --seconds 40 --fault host --rank 1 --at 18 --truth truth.json

LOCK names a file that a job holds while it trains, so that the next one imports torch in the meantime.
"""

import argparse
import fcntl
import gc
import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FAULTS = ("none", "evaluation", "checkpoint", "longer", "loader", "host", "work", "garbage", "leak", "hang", "stop",
          "stranger", "load", "power", "recompile")  # fmt: skip


class Samples(torch.utils.data.Dataset):
    """Random ones, which come late from a moment on."""

    def __init__(self, width, is_late):
        self.width, self.is_late = width, is_late

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        if self.is_late():
            time.sleep(0.006)
        return torch.randn(self.width)


def busy(seconds):
    """Python on a core for so long, of CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(1000))


def mean_square(made):
    return made.square().mean()


class Products:
    """Products of zeros on a GPU; of random numbers they take more power, and the GPU lowers its clock."""

    def __init__(self, device):
        gpu = device.type == "cuda"
        side, self.number = (8192, 20) if gpu else (64, 1)
        kind = torch.bfloat16 if gpu else torch.float32
        self.left, self.right, self.out = (torch.zeros(side, side, device=device, dtype=kind) for _ in range(3))
        self.is_random = False

    def randomize(self):
        if not self.is_random:
            self.is_random = True
            self.left.normal_()
            self.right.normal_()

    def take(self):
        for _ in range(self.number):
            torch.mm(self.left, self.right, out=self.out)


def evaluate(model, batch, seconds):
    """Some batches without gradients."""
    until = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            model(batch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=float, default=20)
    parser.add_argument("--truth", default="")
    parser.add_argument("--base", type=float, default=0.03, help="seconds of a step that the host sleeps")
    parser.add_argument("--width", type=int, default=0)
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    lock = os.open(os.environ.get("LOCK", os.devnull), os.O_RDWR | os.O_CREAT)
    begins = Path(f"{args.truth}.begins")
    if "LOCK" in os.environ and os.environ["RANK"] == "0":
        fcntl.flock(lock, fcntl.LOCK_EX)
        begins.touch()
    while "LOCK" in os.environ and not begins.exists():  # the other ranks do not touch their GPUs either
        time.sleep(0.05)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, local = dist.get_rank(), int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    width = args.width or (4096 if gpu else 64)
    layers = [torch.nn.Linear(width, width) for _ in range(4 if gpu else 2)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    began = time.monotonic()
    mine, told = rank == args.rank, False

    def on(fault):
        return args.fault == fault and told

    loader = torch.utils.data.DataLoader(Samples(width, lambda: mine and on("loader")), batch_size=8)
    kept, repeat, load, beside, since = [], 1, None, None, 0
    products = Products(device) if args.fault == "power" else None
    # Each number of rows is compiled anew.
    loss_of = mean_square
    if args.fault == "recompile":
        loss_of = torch.compile(mean_square, dynamic=False, backend="inductor" if gpu else "aot_eager")
    stop = torch.zeros(1, device=device)
    saved = Path(f"/tmp/traceops-live-{os.getpid()}.pt")
    for number, batch in enumerate(loader):
        if number % 16 == 0:
            stop.fill_(float(time.monotonic() - began >= args.seconds))
            dist.all_reduce(stop)
            if float(stop) > 0:
                break
        if not told and time.monotonic() - began >= args.at:
            told, since = True, number
            if mine and args.truth:
                truth = {"fault": args.fault, "rank": rank, "began_ns": time.time_ns(), "step": number}
                Path(args.truth).write_text(json.dumps(truth))
        time.sleep(args.base)
        batch = batch.to(device)
        if on("longer"):
            repeat = 3
        if mine and on("host"):
            time.sleep(0.03)
        if mine and on("work"):
            busy(0.03)
        if mine and on("garbage"):
            for _ in range(4):
                kept.append([[] for _ in range(20_000)])
                gc.collect()
            del kept[:-20]
        if mine and on("leak"):
            kept.append(torch.ones(1 << 20, device=device))
            if not gpu:
                kept.append(torch.ones(1 << 20))
        if mine and on("hang"):
            time.sleep(3600)
        if mine and on("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if mine and on("load") and load is None:
            load = torch.randn(8192, 8192, device=device)
            beside = torch.cuda.Stream() if gpu else None
        extra = torch.cuda.stream(beside) if load is not None and gpu else nullcontext()
        if load is not None:
            with extra:
                for _ in range(8 if gpu else 0):
                    load @ load
        if products is not None:
            if mine and told:
                products.randomize()
            products.take()
        rows = batch.repeat(max(args.width and 1, 64) * repeat if gpu else 8 * (40 if repeat > 1 else 1), 1)
        fewer = min((number - since) // 40 + 1, 5) if on("recompile") else 0
        loss = loss_of(model(rows[: len(rows) - fewer]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.fault == "evaluation" and number % 150 == 149:
            evaluate(model.module, batch, 2.0)
        if args.fault == "checkpoint" and number % 150 == 149 and rank == 0:
            for _ in range(1 if gpu else 4):
                torch.save(model.state_dict(), saved)
        if gpu:
            loss.item()
    saved.unlink(missing_ok=True)
    dist.destroy_process_group()


main()
