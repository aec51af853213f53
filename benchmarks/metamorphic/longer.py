"""Changes of how much was recorded, and of how long things take."""

from __future__ import annotations

import copy
import random
from decimal import Decimal

from benchmarks.metamorphic.change import DEVICE, SECOND, Changed, Make, copied, each, moved
from benchmarks.metamorphic.traces import Event, Trace, Traces, is_mark, timed


def scaled(factor: int) -> Make:
    def change(trace: Trace) -> None:
        first = min(Decimal(str(e["ts"])) for e in timed(trace.events))
        for event in timed(trace.events):
            event["ts"] = first + (Decimal(str(event["ts"])) - first) * factor
            if "dur" in event:
                event["dur"] = Decimal(str(event["dur"])) * factor
            args = event.get("args")
            if isinstance(args, dict) and isinstance(args.get("memory bandwidth (GB/s)"), (int, float, Decimal)):
                args["memory bandwidth (GB/s)"] = Decimal(str(args["memory bandwidth (GB/s)"])) / factor

    def make(run: Traces, rng: random.Random) -> Changed | None:
        """About one moment, so that clocks keep their differences, doubled."""
        run = copied(run)
        first = min(Decimal(str(e["ts"])) for t in run.traces for e in timed(t.events))
        for trace in run.traces:
            own = min(Decimal(str(e["ts"])) for e in timed(trace.events))
            change(trace)
            moved(trace.events, (own - first) * (factor - 1))
        return Changed(run)

    return make


def step_more(run: Traces, rng: random.Random) -> Changed | None:
    """The last step again, a step later on every rank."""
    if any(len(t.marks()) < 2 for t in run.traces):
        return None
    run = copied(run)
    period = max(Decimal(str(t.marks()[-1]["dur"])) for t in run.traces)
    for trace in run.traces:
        mark = trace.marks()[-1]
        name = mark["name"]
        begin = Decimal(str(mark["ts"]))
        launched = {e["args"]["correlation"] for e in trace.events
                    if e.get("cat") not in DEVICE and e.get("ph") == "X" and "correlation" in (e.get("args") or {})
                    and Decimal(str(e["ts"])) >= begin}  # fmt: skip
        again = []
        for event in trace.events:
            if event.get("ph") != "X" or event.get("cat") in ("Trace", "overhead", "python_function", None):
                continue
            args = event.get("args") or {}
            own = args.get("correlation") in launched if event.get("cat") in DEVICE and "correlation" in args else (
                Decimal(str(event["ts"])) >= begin)  # fmt: skip
            if not own:
                continue
            new = copy.deepcopy(event)
            new["ts"] = Decimal(str(event["ts"])) + period
            for key in ("correlation", "External id"):
                if isinstance(new.get("args", {}).get(key), int) and new["args"][key] > 0:
                    new["args"][key] += 1 << 27
            if is_mark(event):
                new["name"] = f"ProfilerStep#{int(name.partition('#')[2]) + 1}"
            if "Seq" in new.get("args", {}):
                return None
            again.append(new)
        trace.events += again
    return Changed(run)


def step_fewer(run: Traces, rng: random.Random) -> Changed | None:
    """Without the last step's mark: its events are behind the last one."""
    if any(len(t.marks()) < 3 for t in run.traces):
        return None

    def change(trace: Trace) -> None:
        mark = trace.marks()[-1]
        begin = Decimal(str(mark["ts"]))
        launched = {e["args"]["correlation"] for e in trace.events
                    if e.get("cat") not in DEVICE and e.get("ph") == "X" and "correlation" in (e.get("args") or {})
                    and Decimal(str(e["ts"])) >= begin}  # fmt: skip

        def gone(event: Event) -> bool:
            if event.get("ph") != "X" or event.get("cat") == "Trace":
                return False
            args = event.get("args") or {}
            if event.get("cat") in DEVICE and "correlation" in args:
                return args["correlation"] in launched
            if is_mark(event):
                return bool(event["name"] == mark["name"])
            return Decimal(str(event["ts"])) >= begin

        trace.events = [e for e in trace.events if not gone(e)]

    return each(run, change)


def idle_end(run: Traces, rng: random.Random) -> Changed:
    """A second behind the last event, and one operator of the host then."""

    def change(trace: Trace) -> None:
        ends = [
            Decimal(str(e["ts"])) + Decimal(str(e.get("dur", 0))) for e in timed(trace.events) if e.get("ph") == "X"
        ]
        host = next((e for e in trace.events if e.get("cat") == "cpu_op"), None)
        if host is not None:
            late = {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": host["pid"], "tid": host["tid"],
                    "ts": max(ends) + SECOND, "dur": Decimal(3), "args": {}}  # fmt: skip
            trace.events.append(late)
        for event in trace.events:
            if event.get("cat") == "Trace" and "dur" in event:
                event["dur"] = Decimal(str(event["dur"])) + SECOND + 100

    return each(run, change)


def one_more(run: Traces, rng: random.Random) -> Changed | None:
    """A rank again, under a new number; only where all communicate in one group."""
    world = len(run.traces)
    texts = {str((e.get("args") or {}).get("Process Group Ranks", "")) for t in run.traces for e in t.events} - {
        "",
        "[]",
    }
    if world < 2 or texts != {"[" + ", ".join(map(str, range(world))) + "]"}:
        return None
    ops = {str((e.get("args") or {}).get("Collective name", "")) for t in run.traces for e in t.events}
    if any("send" in op or "recv" in op or "all_to_all" in op.lower() for op in ops):
        return None
    run = copied(run)
    more = copy.deepcopy(run.traces[0])
    more.rank = world
    more.file = f"rank_{world}.pt.trace.json"
    run.traces.append(more)
    members = "[" + ", ".join(map(str, range(world + 1))) + "]"
    for trace in run.traces:
        info = trace.document.get("distributedInfo")
        if isinstance(info, dict):
            info["world_size"] = world + 1
            if trace is more:
                info["rank"] = world
            for group in info.get("pg_config", []) or []:
                if isinstance(group, dict) and group.get("ranks"):
                    group["ranks"] = list(range(world + 1))
                    if "pg_size" in group:
                        group["pg_size"] = world + 1
        for event in trace.events:
            args = event.get("args")
            if isinstance(args, dict) and args.get("Process Group Ranks", "[]") != "[]":
                args["Process Group Ranks"] = members
                if "Group size" in args:
                    args["Group size"] = world + 1
    return Changed(run)
