"""Cuts a kineto trace down for tests: `python tests/data/cut.py <trace.json.gz> <out.json.gz>`.

What stays is byte for byte what kineto wrote (layout, order and digits), except that
- flow arrows, Python frames of less than half a ms and CPU operators inside other operators go (those of
  collectives stay),
- arguments nobody here reads go (shapes, strides, block sizes), and so do the path in `traceName`
  and the names of people and jobs.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

BETWEEN = "\n  },\n  {\n"
DROPPED_CATS = {"fwdbwd", "ac2g"}
LEAST_FRAME_US = 500
COMM_OP = re.compile(r"record_param_comms|c10d::|nccl:|gloo:")
KEPT_ARGS = {
    "External id", "device", "stream", "grid", "correlation", "bytes", "memory bandwidth (GB/s)", "wait_on_stream",
    "wait_on_cuda_event_record_corr_id", "Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Seq", "Rank", "Src Rank", "Dst Rank",
    "name", "labels", "sort_index",  # metadata events
}  # fmt: skip


def cut(text: str) -> str:
    """The trace's text without what tests do not need."""
    opening = re.search(r'"traceEvents": \[\n  \{\n', text)
    assert opening, "this is not kineto's layout"
    closing = text.rindex("\n  }\n  ]")
    parts = text[opening.end() : closing].split(BETWEEN)
    events = [json.loads("{" + part + "}") for part in parts]
    nested = nested_ops(events)
    kept = [
        shorten(part, event)
        for number, (part, event) in enumerate(zip(parts, events, strict=True))
        if event.get("cat") not in DROPPED_CATS and number not in nested and not short_frame(event)
    ]
    trailer = re.sub(r'"traceName": "[^"]*"', '"traceName": "trace.json"', text[closing:])
    header = re.sub(r'\n *"(username|tw_\w+|mast_\w+|ai_rm_\w+|logical_server_\w+)": .*', "", text[: opening.end()])
    return header + BETWEEN.join(kept) + trailer


def short_frame(event: dict[str, Any]) -> bool:
    """Whether it is a Python frame that is not read."""
    return event.get("cat") == "python_function" and event.get("dur", 0) < LEAST_FRAME_US


def nested_ops(events: list[dict[str, Any]]) -> set[int]:
    """Numbers of the CPU operators that lie inside another one and belong to no collective."""
    ops = [i for i, e in enumerate(events) if e.get("cat") == "cpu_op"]
    ops.sort(key=lambda i: (str(events[i]["tid"]), events[i]["ts"], -events[i]["dur"]))
    nested, thread, reach = set(), None, 0.0
    for i in ops:
        event = events[i]
        if event["tid"] != thread:
            thread, reach = event["tid"], float("-inf")
        if event["ts"] < reach and not COMM_OP.match(event["name"]):
            nested.add(i)
        reach = max(reach, event["ts"] + event["dur"])
    return nested


def shorten(part: str, event: dict[str, Any]) -> str:
    """The event's text with only the arguments that are read."""
    args = event.get("args")
    if not args or event["ph"] != "X":
        return part
    wanted = KEPT_ARGS | ({"Input Dims"} if COMM_OP.match(event["name"]) else set())
    kept = {key: value for key, value in args.items() if key in wanted}
    head, found, _ = part.partition('"args": {')
    assert found
    return head + '"args": {\n      ' + json.dumps(kept)[1:-1] + "\n    }"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    result = cut(gzip.decompress(source.read_bytes()).decode())
    json.loads(result)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(result.encode(), 9, mtime=0))
