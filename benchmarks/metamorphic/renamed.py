"""Changes of what does not matter: names, numbers, clocks, order, style of files."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from benchmarks.metamorphic.change import DEVICE, SECOND, Changed, Make, copied, each, moved
from benchmarks.metamorphic.traces import Trace, Traces, timed


def permuted(run: Traces, rng: random.Random) -> Changed | None:
    old = sorted(t.rank for t in run.traces)
    if len(old) < 2:
        return None
    world = {t.document.get("distributedInfo", {}).get("world_size") for t in run.traces}
    if any(isinstance(w, int) and w != len(old) for w in world):
        return None
    new = old[1:] + old[:1] if len(old) < 4 else _shuffled(old, rng)
    ranks = dict(zip(old, new, strict=True))
    run = copied(run)
    for trace in run.traces:
        _with_ranks(trace, ranks)
    run.traces.sort(key=lambda t: t.rank)
    return Changed(run, ranks)


def _shuffled(old: list[int], rng: random.Random) -> list[int]:
    new = old[:]
    while any(a == b for a, b in zip(old, new, strict=True)):
        rng.shuffle(new)
    return new


def _with_ranks(trace: Trace, ranks: dict[int, int]) -> None:
    """A member's number within its group follows the group's order, which is by rank."""
    info = trace.document.get("distributedInfo")
    trace.rank = ranks[trace.rank]
    trace.file = f"rank_{trace.rank}.pt.trace.json"
    if isinstance(info, dict):
        if "rank" in info:
            info["rank"] = ranks[int(info["rank"])]
        for group in info.get("pg_config", []) or []:
            if isinstance(group, dict) and "ranks" in group:
                group["ranks"] = _members(group["ranks"], ranks)
    for event in trace.events:
        args = event.get("args")
        if not isinstance(args, dict) or "Process Group Ranks" not in args:
            continue
        old = args["Process Group Ranks"]
        before = [int(n) for n in re.findall(r"\d+", str(old))]
        if "..." in str(old) or not before:
            continue
        after = sorted(ranks.get(n, n) for n in before)
        args["Process Group Ranks"] = _members(old, ranks)
        for key in ("Rank", "Src Rank", "Dst Rank"):
            if isinstance(args.get(key), int) and 0 <= args[key] < len(before):
                args[key] = after.index(ranks.get(before[args[key]], before[args[key]]))


def _members(value: Any, ranks: dict[int, int]) -> Any:
    """A list or its text."""
    new = sorted(ranks.get(int(n), int(n)) for n in re.findall(r"\d+", str(value)))
    return new if isinstance(value, list) else "[" + ", ".join(map(str, new)) + "]"


def shift(by_us: Callable[[int], Decimal]) -> Make:
    def change(run: Traces, rng: random.Random) -> Changed | None:
        if len(run.traces) < 2:
            return None
        return each(run, lambda trace: moved(trace.events, by_us(trace.rank)))

    return change


def base(run: Traces, rng: random.Random) -> Changed:
    """Times move from the events into the header or back."""

    def change(trace: Trace) -> None:
        base = trace.document.get("baseTimeNanoseconds")
        whole = Decimal(base) / 1000 if isinstance(base, int) and base else None
        if whole is None:
            least = min(Decimal(str(e["ts"])) for e in timed(trace.events))
            whole = -Decimal(int(least) - 1000)
        moved(trace.events, whole)
        trace.document["baseTimeNanoseconds"] = 0 if base else int(-whole * 1000)

    return each(run, change)


def shuffle(run: Traces, rng: random.Random) -> Changed:
    return each(run, lambda trace: rng.shuffle(trace.events))


def in_order(run: Traces, rng: random.Random) -> Changed:
    return each(run, lambda trace: trace.events.sort(key=lambda e: Decimal(str(e.get("ts", 0)))))


def numbers(run: Traces, rng: random.Random) -> Changed:
    """pids, tids, correlation and external ids; of the device, streams."""

    def change(trace: Trace) -> None:
        pids: dict[int, int] = {}
        tids: dict[tuple[int, int], int] = {}
        for event in trace.events:
            args: dict[str, Any] = event["args"] if isinstance(event.get("args"), dict) else {}
            for key in ("correlation", "External id"):
                if isinstance(args.get(key), int) and args[key] > 0:
                    args[key] = (args[key] * 7 + 3) % (1 << 31)
            if event.get("cat") in ("ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd") and isinstance(
                event.get("id"), int
            ):
                event["id"] = (event["id"] * 7 + 3) % (1 << 31) if event["cat"] == "ac2g" else event["id"] + 5
            pid, tid = event.get("pid"), event.get("tid")
            if not isinstance(pid, int) or pid < 64:  # a device
                continue
            event["pid"] = pids.setdefault(pid, 700_001 + len(pids) * 13)
            if isinstance(tid, int) and event.get("ph") != "M":
                event["tid"] = tids.setdefault((pid, tid), 31_337 + 17 * len(tids))
            elif isinstance(tid, int) and (pid, tid) in tids:
                event["tid"] = tids[pid, tid]

    return each(run, change)


def streams(run: Traces, rng: random.Random) -> Changed | None:
    if not any(e.get("cat") in DEVICE for t in run.traces for e in t.events):
        return None

    def change(trace: Trace) -> None:
        for event in trace.events:
            args = event.get("args")
            if event.get("cat") not in DEVICE or not isinstance(args, dict):
                continue
            if isinstance(event.get("tid"), int):
                event["tid"] += 100
            if isinstance(args.get("stream"), int):
                args["stream"] += 100

    return each(run, change)


def process_names(run: Traces, rng: random.Random) -> Changed:
    def change(trace: Trace) -> None:
        for event in trace.events:
            if event.get("name") == "process_name":
                event["args"] = {"name": "pt_main_thread"}
            elif event.get("name") == "process_labels" and "GPU" not in str(event.get("args")):
                event["args"] = {"labels": "host"}

    return each(run, change)


def without_names(run: Traces, rng: random.Random) -> Changed:
    def change(trace: Trace) -> None:
        trace.events = [e for e in trace.events if e.get("ph") != "M"]

    return each(run, change)


def style(style: str, suffix: str = "") -> Make:
    def change(trace: Trace) -> None:
        trace.style = style
        trace.file += suffix

    return lambda run, rng: each(run, change)


def file_names(template: str) -> Make:
    def change(trace: Trace) -> None:
        trace.file = template.format(
            rank=trace.rank, pid=4000 + 3 * trace.rank, time=1795_470_555_794_165_435 + trace.rank * 10**6
        )

    def make(run: Traces, rng: random.Random) -> Changed | None:
        unknown = "{rank}" not in template and any(
            "rank" not in t.document.get("distributedInfo", {}) for t in run.traces
        )
        return None if unknown else each(run, change)

    return make


def two_windows(run: Traces, rng: random.Random) -> Changed:
    """The same again, 20 s later, as the second of two windows."""
    later = copied(run)
    earlier = copied(run)
    for trace in later.traces:
        moved(trace.events, Decimal(20 * SECOND))
        trace.file = f"rank_{trace.rank}/host_77{trace.rank}.1795470575794.pt.trace.json"
    for trace in earlier.traces:
        trace.file = f"rank_{trace.rank}/host_77{trace.rank}.1795470555794.pt.trace.json"
    return Changed(Traces(earlier.traces + later.traces))


def beside(run: Traces, rng: random.Random) -> Changed:
    run = copied(run)
    run.beside = {
        "config.json": b'{"lr": 0.1, "rank": 3, "traceEvents_are": "not here"}',
        "metrics.jsonl": b'{"loss": 1.0}\n{"loss": 0.9}\n',
        "trainer_state.json": b'{"log_history": [{"step": 1, "loss": 2.0}], "global_step": 1}',
        "train.log": b"step 1 loss 2.0\nstep 2 loss 1.9\n",
        "notes/rank_info.txt": b"rank 0 is on host a\n",
        "wandb/files/wandb-metadata.json": b'{"os": "Linux", "pid": 7}',
        "checkpoint/rng_state_0.pth": b"PK\x03\x04 not a trace",
        "deepspeed_config.json": b'{"train_batch_size": 8, "zero_optimization": {"stage": 2}}',
        "list.json": b"[1, 2, 3]",
    }
    return Changed(run)
