"""Snapshots by the compiled reader and by Python's unpickler: the same rows, whatever is in the file."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.memory.test_snapshot import MIB, snapshot
from traceops.core.errors import InputError
from traceops.core.plain_pickle import load_plain
from traceops.traces.memory_snapshot import HeldMemory, at_end, read_snapshot
from traceops.traces.snapshot_rows import NO_STACK, SnapshotRows, native_rows, rows_of

RECORDED = sorted((Path(__file__).parents[1] / "data" / "memory" / "runs").rglob("*.pickle"))
OPCODES = b"]}ause(t)N.K\x94\x95\x85\x88q\x8ch"

pytest.importorskip("traceops.traces._snapshot")


def content(rows: SnapshotRows) -> list[Any]:
    """All that rows say, by segment and device."""
    found: list[Any] = []
    for device, address, size, first, count in rows.segments.tolist():
        own = rows.blocks[first : first + count].tolist()
        found.append((device, address, size, [(*b[:2], rows.places.text(b[2]) if b[3] else "") for b in own]))
    for first, count in rows.traces.tolist():
        own = slice(first, first + count)
        columns = (column[own].tolist() for column in (rows.action, rows.address, rows.size, rows.place))
        found.append(
            [
                (action, address, size, rows.places.text(place) if action == 1 else "")
                for action, address, size, place in zip(*columns, strict=True)
            ]
        )
        short = rows.shortages.tolist()
        found.append([(at - first, free) for at, free in short if first <= at < first + count])
    return found


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parents[1].name}-{path.name}")
def test_recorded_ones(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = native_rows(path)
    assert rows is not None
    assert content(rows) == content(rows_of(load_plain(path.read_bytes())))
    compiled = [msgspec.to_builtins(device) for device in read_snapshot(path)]
    monkeypatch.setenv("TRACEOPS_NATIVE", "0")
    assert native_rows(path) is None
    assert [msgspec.to_builtins(device) for device in read_snapshot(path)] == compiled


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol_of_pickles(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot(oom=1 << 60), protocol=protocol))
    rows = native_rows(path)
    assert rows is not None and content(rows) == content(rows_of(snapshot(oom=1 << 60)))


def test_a_line_that_torch_writes_without_its_sign(tmp_path: Path) -> None:
    """-1 as 2**64 - 1, as in a public snapshot."""
    found = snapshot()
    found["segments"][0]["blocks"][2]["frames"] = [{"filename": "/x/a.py", "line": (1 << 64) - 1, "name": "f"}]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(found))
    rows = native_rows(path)
    assert rows is not None and content(rows) == content(rows_of(found))


def test_damaged_ones(tmp_path: Path) -> None:
    """What the compiled reader takes of a damaged file is what the other would, or the other refuses it."""
    chance = random.Random(5)
    path, taken = tmp_path / "a.pickle", 0
    whole = [pickle.dumps(snapshot(oom=25), protocol=protocol) for protocol in (2, 4)]
    for _ in range(250):
        data = bytearray(chance.choice(whole))
        at = chance.randrange(len(data))
        match chance.randrange(5):
            case 0:
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at] = chance.choice(OPCODES)
            case 2:
                del data[at : at + chance.randrange(1, 30)]
            case 3:
                data[at:at] = bytes([chance.choice(OPCODES)])
            case _:
                start = chance.randrange(len(data))
                data[at:at] = data[start : start + chance.randrange(1, 60)]
        path.write_bytes(data)
        try:
            rows = native_rows(path)
            expected = None if rows is None else content(rows_of(load_plain(bytes(data))))
        except (EOFError, pickle.UnpicklingError):
            continue
        if rows is not None:
            assert content(rows) == expected
            taken += 1
    assert taken > 30


BELOW = {"action": "alloc", "addr": 0, "size": -1, "frames": []}
SHARED: list[Any] = [{"address": 4096, "size": MIB, "state": "inactive", "frames": []}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x", "cut off"),
        (b"\x80\x04" + b"(" * 50_000 + b"]" * 50_000, "cut off"),
        (b"\x80\x04]\x94" + b"h\x00a" * 20_000 + b".", "are missing"),
        (b"\x80\x04}\x8c\x08segmentscposix\nsystem\n.", "posix.system"),
        (pickle.dumps({"segments": [{"total_size": MIB, "blocks": SHARED}] * 1000}), "same blocks"),
        (pickle.dumps({"segments": [{"total_size": size, "blocks": SHARED} for size in (1, 2)]}), "same blocks"),
        (pickle.dumps({"segments": [], "device_traces": [[BELOW]]}), "sizes that no"),
    ],
    ids=["length", "marks", "itself", "function", "same_segment", "same_blocks", "below_zero"],
)  # fmt: skip
def test_hostile_ones_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_snapshot(path)


def drawn(chance: random.Random) -> dict[str, Any]:
    """A history of a small device, addresses used again and again, of which the last events were recorded."""
    frames = [[{"filename": f"/x/{name}.py", "line": 1, "name": "f"}] for name in "abcdefghijk"]
    live: dict[int, tuple[int, Any]] = {}
    trace: list[dict[str, Any]] = []
    for _ in range(chance.randrange(1, 120)):
        address = 512 * chance.randrange(1, 9)
        if address in live:
            size = live.pop(address)[0]
            trace.append({"action": "free_requested", "addr": address, "size": size, "frames": []})
            trace.append({"action": "free_completed", "addr": address, "size": size, "frames": []})
        else:
            live[address] = chance.randrange(1, 99), chance.choice(frames)
            size, stack = live[address]
            trace.append({"action": "alloc", "addr": address, "size": size, "frames": stack})
    blocks = [
        {"address": at, "size": size, "state": "active_allocated", "frames": stack}
        for at, (size, stack) in live.items()
    ]
    return {
        "segments": [{"device": 0, "address": 0, "total_size": 9999, "blocks": blocks}],
        "device_traces": [trace[chance.randrange(len(trace)) :]],
    }


def test_what_is_held_is_what_replaying_the_events_gives() -> None:
    chance = random.Random(3)
    for _ in range(60):
        found = drawn(chance)
        rows = rows_of(found)
        trace = found["device_traces"][0]
        held = HeldMemory(rows, 0, len(trace), at_end(rows, 0))
        # backwards from the end: before each event, address -> size
        now = {block["address"]: block["size"] for block in found["segments"][0]["blocks"]}
        before = [dict(now)]
        for event in reversed(trace):
            if event["action"] == "alloc":
                del now[event["addr"]]
            elif event["action"] == "free_completed":
                now[event["addr"]] = event["size"]
            before.append(dict(now))
        before.reverse()
        sums = [sum(one.values()) for one in before]
        assert held.before.tolist() == sums
        assert held.peak() == (max(sums), max(at for at, size in enumerate(sums) if size == max(sums)))
        # forwards: by whom
        by = dict.fromkeys(before[0], NO_STACK)
        by |= {
            block["address"]: rows.places.text(rows.places.of(block["frames"]))
            for block in found["segments"][0]["blocks"]
            if all(event["addr"] != block["address"] for event in trace)
        }
        columns = np.array([-1, *range(len(rows.places.texts))])
        over = held.over_time(np.arange(len(trace) + 1), columns).tolist()
        for at in range(len(trace) + 1):
            wanted = [0] * (len(columns) + 1)
            for address, size in before[at].items():
                number = next((n for n, text in enumerate(rows.places.texts) if text == by[address]), -1)
                wanted[number + 1] += size
            assert over[at] == wanted
            alive = held.alive(at)
            texts = map(rows.places.text, alive.place.tolist())
            assert sorted(zip(alive.bytes.tolist(), texts, strict=True)) == sorted(
                (size, by[address]) for address, size in before[at].items()
            )
            if at < len(trace) and trace[at]["action"] == "alloc":
                by[trace[at]["addr"]] = rows.places.text(rows.places.of(trace[at]["frames"]))
