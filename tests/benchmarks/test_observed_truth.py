"""The truth that benchmarks/observed/runs.py holds reports to, on activities made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.observed.table import table
from benchmarks.observed.truth import device_of, is_divided, is_plain, shares_of
from traceops.core.rank_files import KERNEL, LIGHT_LOG_FIELDS, MEMCPY

_NAMES = ["gemm", "ncclDevKernel_AllReduce"]
_MARK = 8209


def _rows(spans: list[tuple[int, int, int]], lasted: list[int]):
    """Steps of these lengths: in each, kernels (name, begin, end) and a mark at its end, ms."""
    rows, correlation, at = [], 0, 1000
    for length in [0, *lasted]:
        for name, begin, end in spans if length else ():
            rows.append(((at + begin) * 10**6, (at + end) * 10**6, 1, name, 7, correlation, KERNEL, 0, 0, 0))
            correlation += 1
        at += length
        rows.append((at * 10**6 - 1, at * 10**6, _MARK, 2**32 - 1, 7, correlation, MEMCPY, 1, 0, 0))
        correlation += 1
    return np.array(rows, np.dtype(list(LIGHT_LOG_FIELDS)))


def _shares(lasted: list[int], name: str = _NAMES[1]):
    """Both ranks end their collective after 80 ms, and rank 1 comes to it 20 ms later."""
    own = {0: [(0, 0, 40), (1, 30, 80)], 1: [(0, 0, 40), (1, 50, 80)]}
    devices = {rank: device_of(_rows(spans, lasted), [_NAMES[0], name], _MARK) for rank, spans in own.items()}
    return shares_of(devices), is_divided(devices)


def test_waiting_is_what_a_rank_is_longer_in_a_collective_than_the_last_one():
    shares, divided = _shares([100] * 6)
    assert divided
    # 40 ms of kernels; alone in the collective from 40 on, of which until 50 the other one is missing
    assert [shares[0].busy, shares[0].waiting, shares[0].transfer, shares[0].idle] == pytest.approx(
        [40, 10, 30, 20], abs=0.01
    )
    assert [shares[1].busy, shares[1].waiting, shares[1].transfer, shares[1].idle] == pytest.approx(
        [40, 0, 30, 30], abs=0.01
    )


def test_a_long_step_among_the_recorded_ones_is_not_usual():
    assert _shares([100, 100, 100, 190, 100, 100])[0][0].idle == pytest.approx(20, abs=0.01)


def test_sends_are_not_divided():
    shares, divided = _shares([100] * 6, "ncclDevKernel_SendRecv")
    assert not divided and shares[0].waiting == 0 and shares[0].transfer == pytest.approx(40, abs=0.01)


def test_what_was_said_is_held_to_the_nearer_of_both_truths():
    def clock(step_ms: float, busy: float) -> dict:
        shares = {"0": {"busy": busy, "waiting": 0.0, "transfer": 0.0, "idle": 100 - busy}}
        times = dict.fromkeys(("step_ms", "early_ms", "late_ms", "before_ms", "thread_cpu_ms"), step_ms)
        return {"clock": {**times, "cupti_ms": step_ms, "shares": shares, "divided": True}}

    def unrecorded() -> dict:
        told = clock(0, 0)
        told["clock"]["shares"] = {}
        return told

    buckets = dict.fromkeys(("comm_transfer_ms", "comm_wait_ms", "comm_unmatched_ms", "memory_ms"), 0.0)
    rank = {"rank": 0, **buckets, "compute_ms": 52.0, "idle_ms": 52.0}
    said = {"undisturbed": {"step_ms": 104.0, "ranks": [rank]}, "findings": []}
    near = {"alone": clock(100.0, 46.0), "again": clock(102.0, 40.0), "traced": {**unrecorded(), "said": said}}
    cells = table({"one": near}).splitlines()[-1].split(" | ")
    assert cells[4] == "+2.0" and cells[11:13] == ["4.0", "4.0"]
    far = {**near, "again": clock(99.0, 44.0)}
    cells = table({"one": far}).splitlines()[-1].split(" | ")
    assert cells[4] == "+4.0 ✗" and cells[11] == "4.0"
    apart = {**near, "alone": clock(80.0, 40.0)}
    cells = table({"one": apart}).splitlines()[-1].split(" | ")
    assert cells[4] == "+2.0 ~" and cells[11] == "10.0 ✗"
    slowed = clock(100.0, 40.0)
    slowed["clock"]["cupti_ms"] = 125.0
    cells = table({"one": {"alone": slowed, "traced": near["traced"]}}).splitlines()[-1].split(" | ")
    assert [cells[5], cells[9]] == ["50.0", "50.0"], "CUPTI's steps were longer, and the device's work was not"


def test_equal_ranks_are_held_to_each_other_in_the_order_of_their_waiting():
    def ranks(waits: tuple[float, float]) -> list[dict]:
        return [{"busy": 50.0, "waiting": waited, "transfer": 0.0, "idle": 50.0 - waited} for waited in waits]

    def clock(waits: tuple[float, float]) -> dict:
        shares = dict(zip("01", ranks(waits), strict=True))
        times = dict.fromkeys(("step_ms", "early_ms", "late_ms", "before_ms", "thread_cpu_ms"), 100.0)
        return {"clock": {**times, "cupti_ms": 100.0, "shares": shares, "divided": True}}

    buckets = dict.fromkeys(("comm_transfer_ms", "comm_unmatched_ms", "memory_ms"), 0.0)
    told = [
        {"rank": n, **buckets, "compute_ms": 50.0, "comm_wait_ms": one["waiting"], "idle_ms": one["idle"]}
        for n, one in enumerate(ranks((0.0, 30.0)))
    ]
    said = {"undisturbed": {"step_ms": 100.0, "ranks": told}, "findings": []}
    result = {"alone": clock((26.0, 0.0)), "traced": {**clock((0.0, 32.0)), "said": said}}
    cells = table({"one": result}).splitlines()[-1].split(" | ")
    assert cells[11:16] == ["0.0", "30.0 ✗", "4.0", "2.0", "2.0"]


def test_steps_that_cupti_touched_are_none_of_the_plain_ones():
    told = {"windows": [{"first": 16, "last": 29}, {"first": 76, "last": 89}]}
    assert [n for n in range(100) if not is_plain(told, n)] == [*range(17, 31), *range(77, 91)]
