"""Bandwidth between the ranks by nccl-tests' rules [nccl-tests, doc/PERFORMANCE.md], in a rank's process group."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch
import torch.distributed as dist
from msgspec import Struct
from torch import nn

from traceops.across.links import bus_factor
from traceops.core.claims import reason
from traceops.doctor.isolate import pair_order
from traceops.doctor.job import Reporter

FAULT_ENV = "TRACEOPS_DOCTOR_FAULT"
_SLOW_S = 0.05


class Fault(Struct, frozen=True):
    """A fault to test the doctor with: ``stage:device:hang|die|fail|wrong|slow``, and ``:VARIABLE`` that cures it."""

    stage: str
    kind: str

    @staticmethod
    def of(text: str | None, device: int) -> Fault | None:
        """That of this device, numbered as in its job."""
        if not text:
            return None
        stage, faulty, kind, *cure = text.split(":")
        cured = any(name in os.environ for name in cure)
        return None if cured or int(faulty) != device else Fault(stage, kind)


class WorkerContext(Struct):
    """A rank of the job. device: of its tensors. stage: the one it is in. store: once it has met the others."""

    rank: int
    world_size: int
    device: torch.device
    reporter: Reporter
    fault: Fault | None
    stage: str = "start"
    store: Any = None  # torch's, which has no types to name

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def enter(self, stage: str) -> None:
        """Begin a stage, unless a fault keeps this rank from it."""
        self.stage = stage
        if self._has("hang"):
            while True:
                time.sleep(60)
        self.reporter.say("begin", stage=stage)
        if self._has("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._has("fail"):
            raise RuntimeError("a fault that was asked for")

    def at(self, key: str, **facts: Any) -> None:
        """Note what this rank is about to do, in case it never returns from it: a text of words/doctor.ini."""
        self.reporter.say("at", stage=self.stage, what=reason("doctor", key, **facts))
        self.pace()

    def report(self, event: Literal["wrong", "note", "skipped"], key: str, **facts: Any) -> None:
        """What was wrong, noted or left out, as words/doctor.ini says it."""
        self.reporter.say(event, stage=self.stage, text=reason("doctor", key, **facts))

    def pace(self) -> None:
        """Before each operation: a fault may slow it down."""
        if self._has("slow"):
            time.sleep(_SLOW_S)

    def finish(self) -> None:
        """End the stage once the device has done all of it."""
        self.synchronize()
        self.reporter.say("end", stage=self.stage)

    def synchronize(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def pattern(self, count: int, dtype: torch.dtype, ranks: Sequence[int]) -> torch.Tensor:
        """The sum of what `ranks` send: small whole numbers, exact in every type, that differ by place and rank."""
        places = torch.arange(count, device=self.device) % 5
        return (places * len(ranks) + sum(rank % 8 for rank in ranks)).to(dtype)

    def check(self, got: torch.Tensor, expected: torch.Tensor, key: str, **facts: Any) -> bool:
        """Compare; where they differ report how many elements of what `key` names, and the first of them."""
        if self._has("wrong"):
            got = got.clone()
            got[-1] += 1
        differs = got != expected
        if wrong := int(differs.sum()):
            first = int(differs.to(torch.int32).argmax())
            values = {"got": got[first].item(), "expected": expected[first].item()}
            what = reason("doctor", key, **facts)
            self.report("wrong", "elements", what=what, wrong=wrong, all=got.numel(), first=first, **values)
        return not wrong

    def most(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [float(value) for value in tensor.tolist()]

    def free_bytes(self) -> int:
        """Memory of the device that nobody uses."""
        if self.on_gpu:
            return int(torch.cuda.mem_get_info(self.device)[0])
        return int(psutil.virtual_memory().available) // self.world_size

    def _has(self, kind: str) -> bool:
        return self.fault == Fault(self.stage, kind)


# Odd counts leave a remainder wherever work is cut by powers of two; the last one is 16 MB of float32.
_CASES = (
    (torch.float32, (1, 1023, 65_537, 4_194_301)),
    (torch.bfloat16, (1, 65_537, 4_194_301)),
    (torch.float16, (1023,)),
    (torch.int64, (1, 65_537)),
)
_EXACT_BFLOAT16 = 256
_PAIR_COUNTS = (1, 65_537, 1_048_577)
_LONG = timedelta(hours=1)  # the deadline is the parent's


def all_reduce(context: WorkerContext) -> None:
    """Sums over all ranks against values known beforehand; reports what is wrong on this rank."""
    everyone = range(context.world_size)
    for dtype, counts in _CASES:
        for count in counts:
            expected = context.pattern(count, torch.float32, everyone)
            if dtype == torch.bfloat16 and float(expected.max()) > _EXACT_BFLOAT16:
                continue
            facts = {"count": count, "type": str(dtype).removeprefix("torch.")}
            context.at("sum", **facts)
            tensor = context.pattern(count, dtype, [context.rank])
            dist.all_reduce(tensor)
            context.check(tensor, expected.to(dtype), "sum", **facts)


def pairs(context: WorkerContext) -> None:
    """Send and receive both ways, and an all-reduce, with each partner; the pairs of a round run side by side."""
    if not (order := pair_order(context.world_size)):
        context.report("skipped", "pairs_need_two")
        return
    groups = {}
    for pair in order:
        # All ranks make all groups: torch 2.13 and older name a group by how many groups a rank has made, so the
        # members of one alone may not find each other. NCCL starts a communicator only when it is used.
        context.at("making_group", pair=_name(pair))
        groups[pair] = dist.new_group(list(pair), timeout=_LONG)
    for pair in order:
        if context.rank in pair:
            context.reporter.say("pair", stage=context.stage, ranks=pair, state="began")
            # whether they receive what the other sent, through the communicator of all ranks, which exists already, and
            # sum through their own
            group = groups[pair]
            peer = pair[1] if context.rank == pair[0] else pair[0]
            right = True
            each = [{"pair": _name(pair), "count": count} for count in _PAIR_COUNTS]
            for count, facts in zip(_PAIR_COUNTS, each, strict=True):
                context.at("exchange", **facts)
                received = torch.full((count,), -1.0, device=context.device)
                exchange(context.pattern(count, torch.float32, [context.rank]), peer, received, peer)
                expected = context.pattern(count, torch.float32, [peer])
                right &= context.check(received, expected, "exchange_from", peer=peer, **facts)
            for count, facts in zip(_PAIR_COUNTS, each, strict=True):
                context.at("sum_of_pair", **facts)
                tensor = context.pattern(count, torch.float32, [context.rank])
                dist.all_reduce(tensor, group=group)
                right &= context.check(tensor, context.pattern(count, torch.float32, pair), "sum_of_pair", **facts)
            context.reporter.say("pair", stage=context.stage, ranks=pair, state="ok" if right else "wrong")


def exchange(sent: torch.Tensor | None, to: int, received: torch.Tensor | None, source: int) -> None:
    """Send and receive at once. As a batch, because NCCL then makes no communicator for each pair."""
    operations = []
    if sent is not None:
        operations.append(dist.P2POp(dist.isend, sent, to))
    if received is not None:
        operations.append(dist.P2POp(dist.irecv, received, source))
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def ddp_step(context: WorkerContext) -> None:
    """One step of a tiny model under DDP against the same model on the batches of all ranks together."""
    context.at("building")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)).to(context.device)
    alone = copy.deepcopy(model)
    batches = torch.randn(context.world_size, 16, 32, generator=torch.Generator().manual_seed(1)).to(context.device)
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[context.device.index] if context.on_gpu else None)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    context.at("forward_backward")
    parallel(batches[context.rank]).square().mean().backward()
    alone(batches.flatten(0, 1)).square().mean().backward()
    gradient, expected = _gradient(model), _gradient(alone)
    if not bool(gradient.isfinite().all()):
        context.report("wrong", "not_finite")
    elif not torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5):
        context.report("wrong", "off", off=float((gradient - expected).abs().max()))
    context.at("optimizer")
    optimizer.step()
    context.at("comparing")
    gathered = [torch.empty_like(gradient) for _ in range(context.world_size)]
    dist.all_gather(gathered, gradient)
    others = [rank for rank, other in enumerate(gathered) if not torch.allclose(other, gradient, rtol=1e-5)]
    if others:
        context.report("wrong", "differ", ranks=others)


def _gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _name(pair: tuple[int, int]) -> str:
    return f"ranks {pair[0]} and {pair[1]}"


_OPS = ("all_reduce", "all_gather", "reduce_scatter")
_WARM = 2
_LEAST, _MOST = 5, 50  # timed iterations of one measurement
_SHARE_S = 0.15  # what the iterations of one measurement should take together
_ITEM = 4  # float32
_MEMORY = 4  # of the free memory at most one in so many
_LITTLE = 32  # a first message tells whether one so many times larger would take too long
_LONG_S = 0.2
PAIR_BYTES = {"cuda": 128 << 20, "cpu": 4 << 20}


def sweep(context: WorkerContext, sizes: Sequence[int], budget_s: float) -> None:
    """All operations at each size while the budget lasts; the time of one is the slowest rank's median. One buffer
    serves all, in place. It holds zeros, which stay what they are however often they are summed."""
    if context.world_size < 2:
        context.report("skipped", "bandwidth_needs_two")
        return
    room = -int(context.most([-context.free_bytes()])[0]) // _MEMORY
    if not (fitting := [size for size in sizes if size <= room]):
        raise MemoryError(f"no room for buffers of {min(sizes)} bytes: {room * _MEMORY} bytes are free")
    if len(fitting) < len(sizes):
        context.report("note", "sizes_left_out", bytes=fitting[-1], free=room * _MEMORY)
    buffer = torch.zeros(fitting[-1] // _ITEM, device=context.device)
    began, elapsed, before = time.monotonic(), 0.0, dict.fromkeys(_OPS, (0, 0.0))
    for size in fitting:
        for op in _OPS:
            smaller, took = before[op]
            needed = took * size / smaller * (_WARM + 1 + _LEAST) if smaller else 0.0
            if elapsed + needed > budget_s:
                context.report("note", "sizes_stopped", op=op, bytes=size, budget=budget_s)
                return
            used, run = _operation(context, op, buffer, size)
            context.at("operation", op=op, bytes=used)
            _timed(context, run, _WARM)
            [once] = context.most([median(_timed(context, run, 1))])
            seconds = median(_timed(context, run, _iterations(once)))
            seconds, elapsed = context.most([seconds, time.monotonic() - began])  # the same numbers on all ranks
            before[op] = (size, seconds)
            _report(context, op, range(context.world_size), used, seconds, bus_factor(op, context.world_size))


def _operation(context: WorkerContext, op: str, buffer: torch.Tensor, size: int) -> tuple[int, Callable[[], object]]:
    """Bytes as nccl-tests counts them (the larger of input and output), and the operation."""
    count = size // _ITEM // context.world_size  # elements a rank
    whole = buffer[: count * context.world_size]
    own = whole[count * context.rank : count * (context.rank + 1)]
    operations: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, own),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(own, whole),
    }
    return whole.numel() * _ITEM, operations[op]


def _iterations(once: float) -> int:
    return max(_LEAST, min(_MOST, int(_SHARE_S / max(once, 1e-9))))


def _timed(context: WorkerContext, run: Callable[[], object], iterations: int) -> list[float]:
    """Seconds of each iteration. On a GPU they are queued one behind the other, and events tell them apart."""
    if context.on_gpu:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]  # type: ignore[no-untyped-call]
        events[0].record()
        for event in events[1:]:
            context.pace()
            run()
            event.record()
        context.synchronize()
        return [one.elapsed_time(other) / 1e3 for one, other in pairwise(events)]
    times = []
    for _ in range(iterations):
        began = time.perf_counter()
        context.pace()
        run()
        times.append(time.perf_counter() - began)
    return times


def pair_bandwidth(context: WorkerContext, budget_s: float) -> None:
    """One large message one way, the other way and both ways at once, for one pair at a time. Over a slow link the
    message is smaller, so that its time is bearable. Who waits for its turn waits at the store, so that its GPU is
    idle."""
    if not (order := pair_order(context.world_size)):
        context.report("skipped", "pairs_need_two")
        return
    size = -int(context.most([-min(PAIR_BYTES[context.device.type], context.free_bytes() // _MEMORY)])[0])
    out = torch.zeros(size // _ITEM, device=context.device)
    into = torch.zeros_like(out)
    context.synchronize()
    began = time.monotonic()
    for number, pair in enumerate(order):
        if number and context.rank in pair:
            context.at("turn")
        if number and context.store.get(f"pair_bandwidth/{number - 1}") != b"go on":
            context.report("note", "pairs_stopped", done=number, all=len(order), budget=budget_s)
            return
        if context.rank in pair:
            _measure_pair(context, pair, out, into)
        if context.rank == pair[0]:
            over = time.monotonic() - began > budget_s
            context.store.set(f"pair_bandwidth/{number}", "stop" if over else "go on")


def _measure_pair(context: WorkerContext, pair: tuple[int, int], out: torch.Tensor, into: torch.Tensor) -> None:
    first = context.rank == pair[0]
    peer = pair[1] if first else pair[0]
    ways: tuple[tuple[str, tuple[int, int], bool, bool], ...] = (
        ("send_recv", pair, first, not first),
        ("send_recv", (pair[1], pair[0]), not first, first),
        ("send_recv_both", pair, True, True),
    )
    whole, little = out.numel(), out.numel() // _LITTLE
    for op, gpus, sends, receives in ways:
        context.at("one_way", op=op, bytes=whole * _ITEM, source=gpus[0], target=gpus[1])
        run = partial(_exchange_part, out if sends else None, into if receives else None, peer)
        _timed(context, partial(run, little), _WARM)
        expected = min(_timed(context, partial(run, little), _WARM)) * _LITTLE
        agreed = f"pair_bandwidth/{op}/{gpus[0]}/{gpus[1]}"
        if first:
            count = whole if expected < _LONG_S else little
            context.store.set(agreed, f"{count} {_iterations(expected * count / whole)}")
        count, iterations = map(int, context.store.get(agreed).split())
        _timed(context, partial(run, count), 1)
        seconds = median(_timed(context, partial(run, count), iterations))
        _report(context, op, gpus, count * _ITEM, seconds, 1.0)


def _exchange_part(out: torch.Tensor | None, into: torch.Tensor | None, peer: int, count: int) -> None:
    """The first `count` elements of what is sent and received."""
    exchange(None if out is None else out[:count], peer, None if into is None else into[:count], peer)


def _report(context: WorkerContext, op: str, ranks: Sequence[int], size: int, seconds: float, factor: float) -> None:
    row = {"op": op, "ranks": list(ranks), "bytes": size, "time_us": seconds * 1e6}
    context.reporter.say("measured", stage=context.stage, row=row | {"busbw_gbs": size / seconds / 1e9 * factor})
