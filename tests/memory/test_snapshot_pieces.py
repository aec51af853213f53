"""What is said of free pieces between blocks: by what tensors needed at their peak, not by the snapshot's moment."""

from __future__ import annotations

import pytest
from changed import replace

from traceops.render.document import Text
from traceops.render.memory import describe_device
from traceops.traces.memory_snapshot import DeviceSnapshot

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
