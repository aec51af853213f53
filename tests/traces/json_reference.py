"""What a trace holds according to Python's own JSON module and decimal arithmetic; slow and obvious."""

import gzip
import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

COLUMNS = ("index", "name", "cat", "ts", "dur", "pid", "tid", "stream", "correlation")


def read_bytes(path):
    data = Path(path).read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def reference_rows(text):
    """(rows as tuples in the order of COLUMNS, what row numbers say of collectives)."""
    raw = json.loads(text, parse_float=Decimal)
    events, base = (raw, 0) if isinstance(raw, list) else (raw["traceEvents"], raw.get("baseTimeNanoseconds", 0))
    rows, comm = [], {}
    for index, event in enumerate(events):
        if event.get("ph") != "X" or event.get("cat") in (None, "python_function", "Trace"):
            continue
        if event.get("ts") is None or event.get("dur") is None or event["dur"] < 0:
            continue
        args = event.get("args", {})
        if "Collective name" in args:
            comm[len(rows)] = {key: args.get(key) for key in COMM_KEYS}
        rows.append((
            index, event.get("name", ""), event["cat"], _ns(event["ts"]) + base, _ns(event["dur"]),
            _int(event.get("pid")), _int(event.get("tid")), _int(args.get("stream")), _int(args.get("correlation")),
        ))  # fmt: skip
    return rows, comm


# argument in the file -> field of CommArgs
COMM_KEYS = {
    "Collective name": "op", "In msg nelems": "elements_in", "Out msg nelems": "elements_out", "dtype": "dtype",
    "Group size": "group_size", "Process Group Name": "group_name", "Process Group Description": "group_description",
    "Seq": "sequence",
}  # fmt: skip


def loaded_rows(events):
    """The same rows from loaded columns."""
    names, cats = [events.names[i] for i in events.name], [events.cats[i] for i in events.cat]
    numbers = [getattr(events, column).tolist() for column in ("ts", "dur", "pid", "tid", "stream", "correlation")]
    return list(zip(events.index.tolist(), names, cats, *numbers, strict=True))


def _ns(value):
    return int((Decimal(value) * 1000).quantize(Decimal(1), ROUND_HALF_EVEN))


def _int(value):
    return value if isinstance(value, int) else int(value) if isinstance(value, str) and value.isdigit() else -1
