"""Jobs that hang in a known way: simulated ranks and groups, written as flight-recorder dumps."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changed import replace


@dataclass(frozen=True)
class Step:
    """One operation of the whole job: a collective of `ranks`, or a message from ranks[0] to ranks[1]."""

    group: str
    ranks: tuple[int, ...]
    op: str = "all_reduce"
    elements: int = 1024
    p2p: bool = False


@dataclass(frozen=True)
class Fault:
    """What goes wrong on `rank` at the operation with this index of the job, or at its next one.

    kind: 'host' it never calls it; 'gpu' its GPU never gets there; 'lost' its GPU's completions are never seen
    from there on; 'size' it calls it with other sizes; 'op' it calls another operation; 'network' the
    operation itself never ends.
    """

    kind: str
    rank: int
    at: int


@dataclass
class Job:
    """A program in one order that all ranks keep; `ahead` is how many operations a host may be in front."""

    world: int
    steps: list[Step]
    groups: dict[str, tuple[int, ...]]
    ahead: int = 4
    state: dict[tuple[int, int], str] = field(default_factory=dict)

    def own(self, rank: int) -> list[int]:
        """Indices of the operations that this rank takes part in."""
        return [i for i, step in enumerate(self.steps) if rank in step.ranks]


def random_job(rng: random.Random, world: int, length: int = 60, p2p: bool = True) -> Job:
    """Groups as in data, tensor and pipeline parallel training, and a program over them."""
    size = rng.choice([n for n in (2, 4, 8) if world % n == 0 and n < world] or [world])
    groups = {"world": tuple(range(world))}
    for start in range(0, world, size):
        groups[f"tp{start // size}"] = tuple(range(start, start + size))
    for offset in range(size):
        groups[f"dp{offset}"] = tuple(range(offset, world, size))
    steps: list[Step] = []
    while len(steps) < length:
        kind = rng.choice(["tp", "tp", "dp", "world", "p2p" if p2p and world > size else "tp"])
        if kind == "p2p":
            for offset in range(size):
                column = groups[f"dp{offset}"]
                at = rng.randrange(len(column) - 1) if len(column) > 1 else 0
                if len(column) > 1:
                    pair = (column[at], column[at + 1])
                    steps.append(Step(f"dp{offset}", pair if rng.random() < 0.5 else pair[::-1], p2p=True))
            continue
        op = rng.choice(["all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast"])
        elements = 1 << rng.randrange(6, 20)
        for name, ranks in groups.items():
            if name.startswith(kind):
                steps.append(Step(name, ranks, op, elements))
    return Job(world, steps, groups, ahead=rng.randrange(0, 12))


def run(job: Job, faults: Sequence[Fault]) -> Job:
    """Let the job run until nothing moves; `state` is then that of each operation called, by (rank, index)."""
    state: dict[tuple[int, int], str] = {}
    own = {rank: job.own(rank) for rank in range(job.world)}
    called = dict.fromkeys(own, 0)
    stop = {(f.kind, f.rank): _first_own(own[f.rank], f.at) for f in faults}
    odd = {(f.rank, _first_own(own[f.rank], f.at)) for f in faults if f.kind in ("size", "op")}
    broken = {_first_own(own[f.rank], f.at) for f in faults if f.kind == "network"}
    moved = True
    while moved:
        moved = False
        for rank, mine in own.items():
            while called[rank] < len(mine):
                index = mine[called[rank]]
                if index >= stop.get(("host", rank), len(job.steps)):
                    break
                unseen = stop.get(("lost", rank), len(job.steps))
                if sum(state[rank, i] != "completed" or i >= unseen for i in mine[: called[rank]]) > job.ahead:
                    break
                state[rank, index] = "scheduled"
                called[rank] += 1
                moved = True
        for (rank, index), now in list(state.items()):
            if now != "scheduled" or index >= stop.get(("gpu", rank), len(job.steps)):
                continue
            group = job.steps[index].group
            if all(state[rank, i] == "completed" for i in own[rank] if i < index and job.steps[i].group == group):
                state[rank, index] = "started"
                moved = True
        for index, step in enumerate(job.steps):
            ready = all(state.get((rank, index)) == "started" for rank in step.ranks)
            if ready and index not in broken and not any((rank, index) in odd for rank in step.ranks):
                for rank in step.ranks:
                    state[rank, index] = "completed"
                moved = True
    for rank in own:
        lost = stop.get(("lost", rank))
        for (other, index), _ in list(state.items()):
            if lost is not None and other == rank and index >= lost:
                state[rank, index] = "started"
    return replace(job, state=state)


def _first_own(mine: Sequence[int], at: int) -> int:
    return next((index for index in mine if index >= at), mine[-1])


def dumps(
    job: Job,
    faults: Sequence[Fault],
    *,
    timed: bool = True,
    active_only: bool = False,
    ring: int | None = None,
    hashed_names: bool = False,
) -> dict[int, dict[str, Any]]:
    """What torch's flight recorder would hold of each rank, as Python objects."""
    odd = {(f.rank, _first_own(job.own(f.rank), f.at)): f.kind for f in faults if f.kind in ("size", "op")}
    return {
        rank: _dump(job, rank, odd, timed=timed, active_only=active_only, ring=ring, hashed=hashed_names)
        for rank in range(job.world)
    }


def _dump(
    job: Job,
    rank: int,
    odd: dict[tuple[int, int], str],
    *,
    timed: bool,
    active_only: bool,
    ring: int | None,
    hashed: bool,
) -> dict[str, Any]:
    mine = [name for name, ranks in job.groups.items() if rank in ranks]
    names = {name: hash_text(name, job.groups[name]) if hashed else str(i * (rank + 1)) for i, name in enumerate(mine)}
    if not hashed:
        names["world"] = "0"
    entries: list[dict[str, Any]] = []
    collective: dict[str, int] = dict.fromkeys(mine, 0)
    messages: dict[str, int] = dict.fromkeys(mine, 0)
    done: dict[str, int] = dict.fromkeys(mine, 0)
    last: dict[str, int] = dict.fromkeys(mine, 0)  # the status counts messages and collectives in one field
    for index in job.own(rank):
        if (rank, index) not in job.state:
            continue
        step, now = job.steps[index], job.state[rank, index]
        counted = messages if step.p2p else collective
        counted[step.group] += 1
        last[step.group] = counted[step.group]
        if now == "completed":
            done[step.group] = counted[step.group]
        entries.append(_entry(job, rank, index, names, mine, collective, messages, len(entries), now, timed, odd))
    status = {
        str(mine.index(name)): {
            "last_enqueued_collective": last[name], "last_started_collective": -1,
            "last_completed_collective": done[name],
        }
        for name in mine
        if last[name]
    }  # fmt: skip
    if active_only:
        entries = [entry for entry in entries if entry["state"] != "completed"]
    return {
        "version": "2.10",
        "pg_config": {
            names[name]: {
                "name": names[name],
                "desc": "default_pg" if name == "world" else name.rstrip("0123456789").upper(),
                "ranks": str(list(job.groups[name])),
            }
            for name in mine
            if last[name]  # torch lists a group with its first operation
        },
        "comm_lib_version": "2.28.9",
        "pg_status": status,
        "entries": entries[-ring:] if ring else entries,
    }


def hash_text(name: str, ranks: tuple[int, ...]) -> str:
    """A name as newer torch makes them: no number, and the same on all members."""
    return hashlib.sha1(f"{name}{ranks}".encode()).hexdigest()


def _entry(
    job: Job, rank: int, index: int, names: dict[str, str], mine: list[str], collective: dict[str, int],
    messages: dict[str, int], number: int, now: str, timed: bool, odd: dict[tuple[int, int], str],
) -> dict[str, Any]:  # fmt: skip
    step = job.steps[index]
    op, elements = step.op, step.elements
    if odd.get((rank, index)) == "size":
        elements += 7
    if odd.get((rank, index)) == "op":
        op = "all_to_all" if op != "all_to_all" else "all_reduce"
    size, out = elements, elements
    if op == "_all_gather_base":
        out = elements * len(step.ranks)
    if op == "_reduce_scatter_base":
        size = elements * len(step.ranks)
    name = op
    if step.p2p:
        members = job.groups[step.group]
        here = members.index(rank)
        there = members.index(step.ranks[1] if rank == step.ranks[0] else step.ranks[0])
        name = f"send {here}->{there}" if rank == step.ranks[0] else f"recv {here}<-{there}"
    shown = now if now == "completed" or timed else "scheduled"
    created = 1_700_000_000_000_000_000 + index * 1_000_000 + rank
    return {
        "record_id": number, "pg_id": mine.index(step.group),
        "process_group": (names[step.group], "x"), "collective_seq_id": collective[step.group],
        "p2p_seq_id": messages[step.group], "op_id": number, "profiling_name": f"nccl:{name}",
        "time_created_ns": created, "input_sizes": [[size]], "input_dtypes": ["Float"], "output_sizes": [[out]],
        "output_dtypes": ["Float"], "state": shown, "time_discovered_started_ns": created if timed else None,
        "time_discovered_completed_ns": created if now == "completed" else None, "retired": now == "completed",
        "timeout_ms": 600000, "is_p2p": step.p2p,
        "frames": [{"name": "train", "filename": "/home/me/train.py", "line": 10 + index % 50}],
    }  # fmt: skip


def write(folder: Path, contents: dict[int, dict[str, Any]], name: str = "nccl_trace_rank_{}") -> Path:
    """One file a rank, as torch names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, content in contents.items():
        (folder / name.format(rank)).write_bytes(pickle.dumps(content, protocol=2))
    return folder
