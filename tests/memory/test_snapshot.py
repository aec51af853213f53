"""Snapshots of torch's allocator: what held memory at the peak, what is lost or in pieces, what is refused."""

from __future__ import annotations

import importlib.util
import os
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from changed import replace

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.render.document import Text
from traceops.render.memory import describe_device
from traceops.traces.memory_snapshot import DeviceSnapshot, difference, read_snapshot

MIB = 1 << 20


def stack(*lines: str) -> list[dict[str, Any]]:
    """Frames, innermost first, of `file:line:function`."""
    return [
        {"filename": file, "line": int(line), "name": name} for file, line, name in (text.split(":") for text in lines)
    ]


MODEL = stack(
    "/x/site-packages/torch/nn/linear.py:116:forward", "/home/me/model.py:40:forward", "/home/me/train.py:9:main"
)
LOSS = stack("/home/me/train.py:12:loss")
BASE = 0x7F0000000000


def snapshot(extra: int = 0, oom: int | None = None) -> dict[str, Any]:
    """As torch writes it: a parameter made before the recording, an activation that is held, a loss that was freed.

    Segment 0 has 10 MiB: 4 of the parameter, 1 free, 2 + `extra` of the activation, the rest free; segment 1 is free.
    """
    activation = (2 + extra) * MIB

    def block(at: int, size: int, frames: Any = None) -> dict[str, Any]:
        state = "inactive" if frames is None else "active_allocated"
        return {"address": at, "size": size, "requested_size": size, "state": state, "frames": frames or []}

    blocks = [
        block(BASE, 4 * MIB, []),
        block(BASE + 4 * MIB, MIB),
        block(BASE + 5 * MIB, activation, MODEL),
        block(BASE + 5 * MIB + activation, (3 - extra) * MIB),
    ]
    free = [block(BASE << 1, 20 * MIB)]
    segment = {"device": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "frames": []}
    sized = {"allocated_size": 6 * MIB, "active_size": 6 * MIB, "requested_size": 6 * MIB}
    event = {"stream": 0, "time_us": 1}
    trace = [
        {"action": "alloc", "addr": BASE + 5 * MIB, "size": activation, "frames": MODEL, **event},
        {"action": "alloc", "addr": BASE << 1, "size": 11 * MIB, "frames": LOSS, **event},
        {"action": "free_requested", "addr": BASE << 1, "size": 11 * MIB, "frames": [], **event},
        {"action": "free_completed", "addr": BASE << 1, "size": 11 * MIB, "frames": [], **event},
    ]
    if oom is not None:
        trace.append({"action": "oom", "addr": 0, "device_free": 7 * MIB, "size": oom, "frames": LOSS, **event})
    return {
        "segments": [
            {**segment, **sized, "address": BASE, "total_size": 10 * MIB, "blocks": blocks},
            {**segment, **sized, "address": BASE << 1, "total_size": 20 * MIB, "blocks": free,
         "allocated_size": 0, "active_size": 0},
        ],
        "device_traces": [trace, []],
        "allocator_settings": {"expandable_segments": False},
    }  # fmt: skip


def saved(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def torchs_own_reader() -> ModuleType:
    """torch/cuda/_memory_viz.py, which needs no torch."""
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    spec = importlib.util.spec_from_file_location("memory_viz", Path(found.origin).parent / "cuda" / "_memory_viz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_peak_by_line(tmp_path: Path) -> None:
    (device,) = read_snapshot(saved(tmp_path / "a.pickle", snapshot()))
    assert (device.peak, device.allocated, device.reserved) == (17 * MIB, 6 * MIB, 30 * MIB)
    assert [(held.place, held.bytes // MIB) for held in device.at_peak] == [
        ("train.py:12 loss", 11),
        ("no stack: made before the recording began, or without stacks", 4),
        ("model.py:40 forward", 2),
    ]
    assert (device.free_whole, device.free_between, device.largest_free) == (20 * MIB, 4 * MIB, 3 * MIB)


@pytest.mark.torch
def test_torch_reads_our_snapshot_and_counts_alike() -> None:
    said = torchs_own_reader().segsum(snapshot())
    assert "30.0MiB" in said and "6.0MiB" in said


def test_two_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = saved(tmp_path / "a.pickle", snapshot()), saved(tmp_path / "b.pickle", snapshot(extra=1))
    (change,) = difference(read_snapshot(before)[0], read_snapshot(after)[0])
    assert (change.place, change.bytes) == ("model.py:40 forward", MIB)
    assert main(["memory", str(before), str(after)]) == 0
    said = capsys.readouterr().out
    assert "+1.0       1  model.py:40 forward" in said
    assert "GPU 0: +1.00 MiB at the peak, by the line that made it:\n" in said
    assert main(["memory", str(before), str(before)]) == 0
    said = capsys.readouterr().out
    assert "GPU 0: at the peak the second holds what the first holds." in said
    assert f"{before}, GPU 0:" in " ".join(said.split()), "files of one name are told by their folders"
    assert main(["memory", str(before), str(after), str(after)]) == 2


@pytest.mark.parametrize(("asked", "why"), [(25, "fragmented"), (64, "more than was free in all")])
def test_out_of_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: int, why: str) -> None:
    assert main(["memory", str(saved(tmp_path / "a.pickle", snapshot(oom=asked * MIB)))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Out of memory" in said and why in said


def test_what_was_free_when_memory_ran_out_and_not_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """70 GiB were in use then, and lay free when the program had caught the error and saved the snapshot."""
    content, gib = snapshot(), 1 << 30
    block = {"address": BASE, "size": 70 * gib, "state": "inactive", "frames": []}
    content["segments"] = [{**content["segments"][0], "total_size": 70 * gib, "blocks": [block]}]
    event = {"addr": BASE, "size": 70 * gib, "frames": LOSS}
    content["device_traces"] = [
        [{"action": "segment_alloc", **event}, {"action": "alloc", **event},
         {"action": "oom", "size": 20 * gib, "device_free": 5 * gib, "frames": []},
         {"action": "free_completed", **event}]
    ]  # fmt: skip
    assert main(["memory", str(saved(tmp_path / "a.pickle", content))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "5.00 GiB free and torch 0.00 GiB unused; that is more than was free in all" in said


def test_a_process_with_a_limit_of_its_own_is_not_fragmented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["memory", str(saved(tmp_path / "a.pickle", snapshot(oom=6 * MIB)))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the device had enough" in said and "fragmented" not in said


def test_two_ranks_of_a_host_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = snapshot(extra=1)
    for segment in other["segments"]:
        segment["device"] = 1
    other["device_traces"].reverse()
    names = [str(saved(tmp_path / "a.pickle", snapshot())), str(saved(tmp_path / "b.pickle", other))]
    assert main(["memory", *names]) == 0
    assert "+1.0       1  model.py:40 forward" in capsys.readouterr().out
    both = snapshot()
    both["segments"] += other["segments"]
    both["segments"][0]["device"] = 2
    assert main(["memory", str(saved(tmp_path / "c.pickle", both)), names[1]]) == 0
    assert "+" in capsys.readouterr().out


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_a_hostile_pickle_is_refused_and_does_nothing(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pickle", {"segments": [Hostile(tmp_path / "ran")]})
    with pytest.raises(InputError, match=r"it asks for posix\.mkdir"):
        read_snapshot(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [None, [], {}, {"segments": 3}, {"segments": [{}]}, {"segments": [{"total_size": float("inf"), "blocks": []}]},
     {"segments": [{"total_size": 10**400, "blocks": []}]}, {"segments": [{"total_size": -5, "blocks": []}]},
     {"segments": [], "device_traces": [[{"action": "alloc"}]]}, {"segments": [], "device_traces": [["alloc"]]}],
)  # fmt: skip
def test_what_is_no_snapshot_is_named(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError, match="is not a memory snapshot of torch"):
        read_snapshot(saved(tmp_path / "a.pickle", content))


def test_a_file_cut_off_or_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "a.pickle", snapshot())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="is not a memory snapshot"):
        read_snapshot(path)
    assert main(["memory", str(tmp_path / "none.pickle")]) == 3
    assert "none.pickle does not exist" in capsys.readouterr().err


def test_no_escape_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = snapshot()
    content["segments"][0]["blocks"][2]["frames"] = stack("/home/me/\x1b[31mx.py:4:\x1b[2J")
    assert main(["memory", str(saved(tmp_path / "a.pickle", content))]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_a_stack_of_c_alone_is_told_by_the_node_of_backward(tmp_path: Path) -> None:
    """Every allocation of backward was made by `??:0 torch::unwind::unwind()`, the innermost frame with a name."""
    inner = [
        {"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
        {"filename": "??", "line": 0, "name": "torch::CapturedTraceback::gather(bool, bool, bool)"},
        {"filename": "", "line": 0, "name": "c10::cuda::CUDACachingAllocator::Native::malloc(void**, int)"},
        {"filename": "??", "line": 0, "name": "at::detail::empty_cuda(c10::ArrayRef<long>)"},
        {"filename": "R.cpp", "line": 0, "name": "at::(anonymous namespace)::wrapper_mm(at::Tensor const&)"},
    ]
    node = "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)"
    for more, said in ((node, "MmBackward0 in backward"), ("main", "at::wrapper_mm")):
        stacked = snapshot()
        stacked["device_traces"][0][1]["frames"] = [*inner, {"filename": "??", "line": 0, "name": more}]
        (device,) = read_snapshot(saved(tmp_path / "memory.pickle", stacked))
        assert said in [held.place for held in device.at_peak]


GIB = 1 << 30
AT_END = DeviceSnapshot(
    device=0,
    reserved=24 * GIB,
    allocated=6 * GIB,
    free_whole=11 * GIB,
    free_between=7 * GIB,
    largest_free=GIB // 4,
    recorded=1000,
    peak=23 * GIB,
    at_peak=(),
    asked=None,
    device_free=None,
)


def said(device: DeviceSnapshot) -> str:
    blocks = describe_device("a", device)
    return " ".join(block.plain for block in blocks if isinstance(block, Text))


def test_pieces_that_the_peak_had_filled_cost_nothing() -> None:
    told = said(AT_END)
    assert "needed all but 1.00 GiB of that: little is lost" in told and "expandable_segments" not in told


def test_pieces_that_no_peak_needed() -> None:
    told = said(replace(AT_END, peak=12 * GIB))
    assert "never held more than 12.00 GiB at once here" in told and "expandable_segments:True may help" in told


def test_without_a_history_the_peak_is_not_known() -> None:
    told = said(replace(AT_END, recorded=0, peak=6 * GIB))
    assert "expandable_segments:True may help" in told and "at once" not in told


@pytest.mark.parametrize(("largest", "why"), [(3, "another stream, of a CUDA graph"), (1, "fragmented")])
def test_a_piece_that_torch_may_not_use_is_no_fragmentation(largest: int, why: str) -> None:
    short = replace(AT_END, asked=2 * GIB, device_free=GIB // 2, unused_then=18 * GIB, largest_free=largest * GIB)
    assert why in said(short)


def test_what_is_free_at_the_end_is_not_what_was_free_when_memory_ran_out() -> None:
    short = replace(AT_END, asked=2 * GIB, device_free=GIB // 2, unused_then=4 * GIB, largest_free=3 * GIB)
    assert "fragmented" in said(short)


@pytest.mark.torch
def test_a_page_of_torchs_memory_viz_is_the_snapshot_in_it(tmp_path):
    """It was "not a memory snapshot of torch: invalid load key, '<'"."""
    from torch.cuda import _memory_viz

    source = Path(__file__).parents[1] / "data" / "memory" / "runs" / "leak" / "rank_1" / "memory.pickle"
    page = tmp_path / "trace.html"
    page.write_text(_memory_viz.trace_plot(pickle.loads(source.read_bytes())))
    assert read_snapshot(page) == read_snapshot(source)
    (tmp_path / "other.html").write_text("<!DOCTYPE html><html></html>")
    with pytest.raises(InputError, match="page that holds no snapshot"):
        read_snapshot(tmp_path / "other.html")
