"""A training on CPU that goes wrong as its plan says, or does something harmless: what `benchmarks.live.lanes` starts.

    torchrun --nproc-per-node 4 gloo_job.py plan.json

The plan: seconds, base_ms (a step's own host work that waits), compute_ms, pin (a core for each rank, or none),
habit (harmless), truth (folder), faults: fault, rank, at (s after the first step), ms (of a step), mb_s of a leak.
Each fault's beginning is written to the truth's folder; "core" and "hog" come from outside of the job then.
"""

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 192


class Samples(torch.utils.data.Dataset):
    """Random ones; slow_ms: how late a batch comes."""

    slow_ms = 0.0

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        return read_sample(self.slow_ms / 4)


def read_sample(late_ms):
    """One, from a file system that is slow at times."""
    if late_ms:
        time.sleep(late_ms / 1000)
    return torch.randn(WIDTH)


class Batches:
    """A loader without an end, whose epochs begin slowly where that is the job's habit."""

    def __init__(self, samples, epoch_s):
        self.samples, self.epoch_s = samples, epoch_s

    def __iter__(self):
        while True:
            until = time.monotonic() + self.epoch_s
            for batch in torch.utils.data.DataLoader(self.samples, batch_size=4):
                yield batch
                if time.monotonic() > until:
                    break
            time.sleep(0.8)


def prepare(ms):
    """What the host does before each step."""
    time.sleep(ms / 1000)


def augment(ms):
    """A line that is slow from a moment on."""
    time.sleep(ms / 1000)


def collect_garbage(kept, ms):
    """Python's collector, at work for about so long."""
    if not kept:
        kept.extend([[] for _ in range(50)] for _ in range(2_000))
    until = time.perf_counter() + ms / 1000
    while time.perf_counter() < until:
        gc.collect()


def save_checkpoint(state, path, ms):
    """Saved again and again, for about so long."""
    until = time.perf_counter() + ms / 1000
    while time.perf_counter() < until:
        torch.save(state, path)


def evaluate(model, batch, seconds):
    """Some batches without gradients."""
    until = time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < until:
            model(batch)


def rows_for(model, ms):
    """Rows of a batch, for which forward and backward take so long on this machine; alike on all ranks."""
    batch = torch.randn(128, WIDTH)
    for _ in range(3):
        begin = time.thread_time()
        model(batch).square().mean().backward()
        took = 1000 * (time.thread_time() - begin)
    rows = torch.tensor([128 * ms / max(took, 0.05)])
    dist.broadcast(rows, 0)
    return int(min(max(float(rows), 16), 40_000))


def main():
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, truth = dist.get_rank(), Path(plan["truth"])
    if plan.get("pin"):
        os.sched_setaffinity(0, {plan["pin"][rank]})
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
    rows = rows_for(model, plan["compute_ms"])
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    samples, habit = Samples(), plan["habit"]
    saved = Path(plan["truth"]) / f"saved.{rank}.pt"
    kept, garbage, on, stop = [], [], {}, torch.zeros(1)
    factor, base_ms = 1, plan["base_ms"]
    began = last = evaluated = time.monotonic()
    for number, batch in enumerate(Batches(samples, 6.0 if habit == "epochs" else 1e9)):
        now = time.monotonic()
        if number % 8 == 0:
            stop.fill_(float(now - began >= plan["seconds"]))
            dist.all_reduce(stop)
            if float(stop) > 0:
                break
        for at, fault in enumerate(plan["faults"]):
            if at in on or now - began < fault["at"] or fault["rank"] != rank:
                continue
            on[at] = fault
            (truth / f"began.{at}.json").write_text(
                json.dumps({**fault, "began_ns": time.time_ns(), "step": number, "pid": os.getpid()})
            )
            if fault["fault"] == "loader":
                samples.slow_ms = fault["ms"]
            elif fault["fault"] == "network":
                Path(f"{os.environ['LATE_WRITES']}.{os.getpid()}").touch()
        prepare(base_ms)
        for fault in on.values():
            kind, ms = fault["fault"], fault.get("ms", 0)
            if kind == "host":
                augment(ms)
            elif kind == "garbage":
                collect_garbage(garbage, ms)
            elif kind == "leak":
                kept.append(torch.ones(int((now - last) * fault["mb_s"] * 250_000)))
            elif kind == "storm":
                save_checkpoint(model.state_dict(), saved, ms)
            elif kind == "hang":
                time.sleep(3600)
            elif kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
        last = now
        if habit == "longer" and now - began > plan["longer_at"] and factor == 1:
            factor, base_ms = 2, 2 * base_ms
        loss = model(batch.repeat(rows * factor // len(batch) + 1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if habit == "evaluation" and now - evaluated > 5:
            evaluate(model.module, batch, 1.2)
            evaluated = time.monotonic()
        if habit == "checkpoint" and now - evaluated > 5:
            if rank == 0:
                save_checkpoint(model.state_dict(), saved, 700)
            evaluated = time.monotonic()
    saved.unlink(missing_ok=True)
    dist.destroy_process_group()


main()
