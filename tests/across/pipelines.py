"""Made traces of pipelines on GPUs: stages that compute, send and receive as torch's schedules do, with known times."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRANSFER_US = 40.0
BACKWARD = 2.0  # times what forward takes
STEP_MARK_US = 10.0
ELEMENTS = 4096

Op = tuple[str, int, int]  # "F" or "B" and "", or "send" or "recv" with its way; micro-batch; peer
Call = tuple[str, list[tuple[str, str, int, int]]]


@dataclass
class Rank:
    """What a rank does in a step: ("F" or "B", micro-batch), or a group of (send or recv, way, micro-batch, peer)."""

    program: list[Any]
    events: list[dict[str, Any]] = field(default_factory=list)
    host: float = 0.0
    compute: float = 0.0
    comm: float = 0.0
    correlation: int = 0


def gpipe(stage: int, stages: int, micro_batches: int) -> list[Any]:
    """All forwards, then all backwards."""
    program: list[Any] = []
    for way, before, after in (("F", stage - 1, stage + 1), ("B", stage + 1, stage - 1)):
        for i in range(micro_batches):
            program += [[("recv", way, i, before)]] if 0 <= before < stages else []
            program.append((way, i))
            program += [[("send", way, i, after)]] if 0 <= after < stages else []
    return program


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Any]:
    """As torch's Schedule1F1B: sends and receives of one neighbour in one call where both come together."""
    ahead = min(micro_batches, stages - stage)
    program: list[Any] = []

    def call(*parts: tuple[str, str, int, int]) -> None:
        kept = [p for p in parts if 0 <= p[3] < stages and 0 <= p[2] < micro_batches]
        if kept:
            program.append(kept)

    for i in range(ahead):
        call(("recv", "F", i, stage - 1))
        program.append(("F", i))
        if i < ahead - 1:
            call(("send", "F", i, stage + 1))
    for i in range(micro_batches):
        forward = i + ahead
        call(("send", "F", forward - 1, stage + 1), ("recv", "B", i, stage + 1))
        program.append(("B", i))
        call(("send", "B", i, stage - 1), ("recv", "F", forward, stage - 1))
        if forward < micro_batches:
            program.append(("F", forward))
    return program


def write_pipeline(
    folder: Path,
    forward_us: Sequence[float],
    micro_batches: int,
    schedule: Callable[[int, int, int], list[Any]] = gpipe,
    steps: int = 4,
    own_metadata: bool = False,
    first: int = 0,
    world: int | None = None,
) -> None:
    """A trace a stage, whose micro-batch takes so long forward and twice that backward, µs.

    The first step is not marked: the window opens after it. `own_metadata`: single sends and receives say in the
    kernel what they are, as without grouping. The stages are ranks from `first` on of a `world`.
    """
    stages = len(forward_us)
    ranks = [Rank(schedule(stage, stages, micro_batches)) for stage in range(stages)]
    for step in range(steps):
        _step(ranks, forward_us, step, own_metadata, first)
    for number, rank in enumerate(ranks):
        info = {
            "backend": "nccl", "rank": first + number, "world_size": world or stages,
            "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world or stages))}],
        }  # fmt: skip
        trace = {"distributedInfo": info, "baseTimeNanoseconds": 0, "traceEvents": rank.events}
        (folder / f"rank_{first + number}.json").write_text(json.dumps(trace))


def _step(ranks: list[Rank], forward_us: Sequence[float], step: int, own_metadata: bool, first: int) -> None:
    """Runs a step of all ranks: whatever can go on does, until nothing is left."""
    starts = [rank.host for rank in ranks]
    at = [0] * len(ranks)
    posted: dict[tuple[int, int], tuple[float, list[Any]]] = {}  # rank, place in its program: begun, what it waits for
    over: dict[tuple[int, int], float] = {}
    where = {
        (number, *part): place
        for number, rank in enumerate(ranks)
        for place, call in enumerate(rank.program)
        if isinstance(call, list)
        for part in call
    }
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            while at[number] < len(rank.program):
                place, call = at[number], rank.program[at[number]]
                if isinstance(call, tuple):
                    _computed(rank, call[0], forward_us[number] * (BACKWARD if call[0] == "B" else 1.0))
                else:
                    key = number, place
                    if key not in posted:
                        posted[key] = (max(rank.comm, rank.compute), call)
                        moved = True
                    peers = [(peer, where[peer, _other(kind), way, i, number]) for kind, way, i, peer in call]
                    if not all(peer in posted for peer in peers):
                        break
                    begun = posted[key][0]
                    over[key] = max([begun, *(posted[peer][0] for peer in peers)]) + TRANSFER_US
                    _exchanged(rank, first, call, begun, over[key], own_metadata)
                at[number] += 1
                moved = True
    assert all(done == len(rank.program) for done, rank in zip(at, ranks, strict=True)), "the schedule is stuck"
    for number, rank in enumerate(ranks):
        end = rank.host + STEP_MARK_US
        if step:  # the first one is what the window opens on
            mark = _event("user_annotation", f"ProfilerStep#{step}", 1, starts[number], end - starts[number])
            rank.events.append(mark)
        ready = rank.compute - 500.0  # the host is little ahead of the device
        if ready > end + 1.0:
            rank.events.append(_event("cuda_runtime", "cudaEventSynchronize", 1, end, ready - end))
        rank.host = max(end + 1.0, ready)


def _other(kind: str) -> str:
    return "recv" if kind == "send" else "send"


def _computed(rank: Rank, way: str, us: float) -> None:
    call = "autograd::engine::evaluate_function: AddmmBackward0" if way == "B" else "aten::linear"
    rank.events.append(_event("cpu_op", call, 1, rank.host, 6.0))
    start = max(rank.compute, rank.host + 5.0)
    _launch(rank, f"gemm_{way}", 7, start, us, rank.host + 2.0)
    rank.compute = start + us
    rank.host += 8.0


def _exchanged(rank: Rank, first: int, call: list[Any], begun: float, over: float, own_metadata: bool) -> None:
    grouped = not own_metadata or len(call) > 1
    args: dict[str, Any] = {}
    for kind, _, _, peer in call:
        args = {
            "Collective name": kind, "In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "BFloat16",
            "Process Group Name": "0", "Process Group Description": "default_pg",
            ("Dst Rank" if kind == "send" else "Src Rank"): first + peer,
        }  # fmt: skip
        rank.events.append(_event("cpu_op", "record_param_comms", 1, rank.host, 3.0, **args))
        rank.host += 4.0 if grouped else 0.0
    if grouped:
        rank.events.append(_event("user_annotation", "nccl:coalesced", 1, rank.host, 3.0))
    _launch(rank, "ncclDevKernel_SendRecv", 17, max(begun, rank.host + 2.0), over - begun, rank.host + 1.0,
            **({} if grouped else args))  # fmt: skip
    rank.host += 5.0
    rank.comm = over
    if any(kind == "recv" for kind, *_ in call):
        rank.compute = max(rank.compute, over)


def _launch(rank: Rank, name: str, stream: int, start: float, us: float, called: float, **args: Any) -> None:
    rank.correlation += 1
    rank.events.append(_event("cuda_runtime", "cudaLaunchKernel", 1, called, 0.5, correlation=rank.correlation))
    rank.events.append(_event("kernel", name, stream, start, us, stream=stream, correlation=rank.correlation, **args))


def _event(cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": args}
