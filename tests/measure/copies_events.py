"""Events of copies between host and device, for tests: rows of ns, as `events_builder` has them."""

import msgspec
import numpy as np
from events_builder import MAIN, build, call, note


def copy(name, ts, dur, launched, *, waits=0, stream=7, size=None, op="aten::to", tid=MAIN, number=None):
    """A copy on the device, the call that launched it, and its operator; `waits`: a synchronisation so long."""
    number = ts + 1 if number is None else number
    held = dur if waits else 10
    rows = [
        note(op, launched - 5, held + waits + 20, tid, cat="cpu_op"),
        call("cudaMemcpyAsync", launched, held, tid, number),
        {"name": f"Memcpy {name}", "cat": "gpu_memcpy", "ts": ts, "dur": dur, "stream": stream, "correlation": number,
         "tid": stream, "bytes": size},
    ]  # fmt: skip
    if waits:
        rows.insert(2, call("cudaStreamSynchronize", launched + held, waits, tid))
    return rows


def with_sizes(rows):
    """The events, with the bytes of copies where rows have them."""
    events = build(rows)
    sizes = [row.get("bytes") for row in rows]
    known = sorted({size for size in sizes if size is not None})
    shape = np.array([known.index(size) if size is not None else -1 for size in sizes], dtype=np.int32)
    return type(events)(**{**msgspec.structs.asdict(events), "shape": shape, "shapes": tuple(map(str, known))})
