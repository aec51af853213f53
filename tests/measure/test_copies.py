"""Copies between host and device: which way, from what memory, what for, and what of them is exposed."""

import numpy as np
import pytest
from copies_events import copy, with_sizes
from events_builder import BACKWARD, call, kernel, note, step

from traceops.measure.activity import find_activity
from traceops.measure.copies import measure_copies
from traceops.measure.ledger import find_lane, ledger_of
from traceops.measure.steps import find_steps

MB = 1_000_000
H2D, D2H = "HtoD (Pageable -> Device)", "DtoH (Device -> Pageable)"
PINNED, BACK = "HtoD (Pinned -> Device)", "DtoH (Device -> Pinned)"


def measured(*rows):
    events = with_sizes([row for part in rows for row in (part if isinstance(part, list) else [part])])
    activity = find_activity(events)
    steps = find_steps(events, activity)
    lane = find_lane(events, activity, steps)
    found = measure_copies(events, activity, steps, lane)
    memory = ledger_of(lane, steps).buckets["memory"]
    assert (sum((kind.exposed_ns for kind in found.kinds), np.zeros_like(memory)) <= memory).all()
    return found


def exposed(found):
    return {(kind.direction, kind.memory, kind.purpose): int(kind.exposed_ns.sum()) for kind in found.kinds}


def one_step(*rows):
    """A step of 100 µs that ends with a kernel from 80 to 100."""
    return measured(step(1, 0, 100_000), *rows, kernel(80_000, 20_000, launched=60_000))


def test_a_pageable_copy_that_its_host_waits_for_is_exposed_where_no_kernel_runs():
    found = one_step(
        kernel(5_000, 10_000, launched=1_000), copy(H2D, 10_000, 30_000, launched=9_000, waits=1_000, size=4 * MB)
    )
    (kind,) = found.kinds
    assert (kind.direction, kind.memory, kind.purpose) == ("to_device", "pageable", "input")
    assert (kind.operator, kind.region, kind.beside, *kind.count, kind.size) == (
        "aten::to", "", False, 1, 4 * MB,
    )  # fmt: skip
    assert kind.exposed_ns.tolist() == [25_000]
    assert (*kind.device_ns, *kind.blocked_ns) == (30_000, 31_000)


def test_numbers_are_by_step_and_unknown_in_steps_without_copies():
    found = measured(
        step(1, 0, 100_000),
        copy(H2D, 10_000, 30_000, launched=9_000, waits=1_000, size=4 * MB),
        kernel(80_000, 20_000, launched=60_000),
        step(2, 100_000, 100_000),
        kernel(180_000, 20_000, launched=160_000),
    )
    (kind,) = found.kinds
    assert (kind.count.tolist(), kind.total_bytes.tolist()) == ([1, 0], [4 * MB, -1])
    assert (kind.bytes.tolist(), kind.device_ns.tolist()) == ([4 * MB, -1], [30_000, 0])
    assert kind.blocked_ns.tolist() == [31_000, 0]
    rest = kind.of_steps(np.array([False, True]))
    assert (rest.size, rest.gbs, kind.gbs) == (-1, None, 4 * MB / 30_000)


def test_what_runs_beside_kernels_is_not_exposed():
    found = one_step(
        kernel(5_000, 60_000, launched=1_000), copy(PINNED, 10_000, 30_000, launched=2_000, stream=9, size=MB)
    )
    assert exposed(found) == {("to_device", "pinned", "input"): 0}
    assert found.kinds[0].beside


@pytest.mark.parametrize(("launched", "held_up"), [(11_000, 29_000), (30_000, 10_000), (60_000, 0)])
def test_a_copy_nobody_waits_for_counts_from_the_launch_of_the_next_kernel(launched, held_up):
    found = measured(
        step(1, 0, 100_000),
        copy(PINNED, 10_000, 30_000, launched=2_000, size=MB),
        kernel(80_000, 20_000, launched=launched),
    )
    assert exposed(found) == {("to_device", "pinned", "input"): held_up}


@pytest.mark.parametrize(
    ("waits_from", "until", "held_up"), [(20_000, 41_000, 20_000), (20_000, 35_000, 0), (110_000, 120_000, 0)]
)
def test_a_host_that_waits_until_the_copies_are_done_is_held_up_by_them(waits_from, until, held_up):
    """A wait that ends before the copy does is for something else, one behind the last step is the profiler's."""
    found = measured(
        step(1, 0, 100_000),
        copy(PINNED, 10_000, 30_000, launched=2_000, stream=9, size=MB),
        call("cudaDeviceSynchronize", waits_from, until - waits_from),
        kernel(80_000, 20_000, launched=60_000),
    )
    assert exposed(found) == {("to_device", "pinned", "input"): held_up}


def test_a_copy_of_its_own_behind_the_last_kernel_holds_up_nothing_that_is_known():
    found = measured(
        step(1, 0, 100_000),
        kernel(5_000, 20_000, launched=1_000),
        copy(BACK, 25_000, 30_000, launched=3_000, stream=9, size=MB),
    )
    assert exposed(found) == {("to_host", "pinned", "output"): 0}
    assert found.kinds[0].alone_ns.tolist() == [30_000]


def test_small_values_to_the_host_are_no_results():
    found = one_step(
        copy(D2H, 10_000, 2_000, launched=9_000, waits=3_000, size=8, op="aten::item"),
        copy(D2H, 20_000, 30_000, launched=19_000, waits=1_000, size=MB),
    )
    assert exposed(found) == {("to_host", "pageable", "output"): 30_000, ("to_host", "pageable", "values"): 2_000}


def test_what_goes_out_and_comes_back_is_offloaded():
    out_and_back = one_step(
        copy(D2H, 10_000, 10_000, launched=9_000, waits=1_000, size=MB),
        copy(H2D, 40_000, 10_000, launched=39_000, waits=1_000, size=MB),
    )
    assert {kind.purpose for kind in out_and_back.kinds} == {"offload"}
    in_and_out = one_step(
        copy(H2D, 10_000, 10_000, launched=9_000, waits=1_000, size=MB),
        copy(D2H, 40_000, 10_000, launched=39_000, waits=1_000, size=MB),
    )
    assert {kind.purpose for kind in in_and_out.kinds} == {"input", "output"}


@pytest.mark.parametrize(
    ("ways", "expected"),
    [
        ([H2D, D2H], {"input", "output"}),
        ([D2H, H2D], {"input", "output"}),
        ([H2D, *[D2H] * 4, *[H2D] * 4], {"input", "offload"}),
    ],
)
def test_without_sizes_several_that_leave_and_come_are_offloaded(ways, expected):
    """Fewer are told by where they go: a tensor that leaves before one comes may be a result before data."""
    rows = [copy(way, 20_000 + 50_000 * n, 30_000, 10_000 + 50_000 * n, waits=500) for n, way in enumerate(ways)]
    found = measured(step(1, 0, 1_000_000), *rows, kernel(900_000, 20_000, launched=800_000))
    assert {kind.purpose for kind in found.kinds} == expected


def test_several_tensors_that_go_both_ways_are_offloaded_whichever_comes_first():
    rows = []
    for number in range(4):
        size = (number + 1) * MB
        rows += copy(H2D, 2_000 + 10_000 * number, 2_000, 1_000 + 10_000 * number, waits=500, size=size)
        rows += copy(D2H, 7_000 + 10_000 * number, 2_000, 6_000 + 10_000 * number, waits=500, size=size)
    assert {kind.purpose for kind in one_step(rows).kinds} == {"offload"}


@pytest.mark.parametrize(
    "around",
    [
        note("autograd::engine::evaluate_function: MulBackward0", 8_000, 30_000, BACKWARD, cat="cpu_op"),
        note("FSDP::pre_forward (layers.1)", 8_000, 30_000, BACKWARD),
    ],
)
def test_copies_inside_backward_or_a_range_of_fsdp_are_offload(around):
    found = one_step(around, copy(H2D, 10_000, 10_000, launched=9_000, waits=500, size=MB, tid=BACKWARD))
    assert [kind.purpose for kind in found.kinds] == ["offload"]


def test_the_range_around_the_call_is_named_and_idle_time_behind_the_wait_is_told():
    found = one_step(
        note("to the device", 8_000, 40_000), copy(H2D, 10_000, 30_000, launched=9_000, waits=8_000, size=MB)
    )
    assert found.kinds[0].region == "to the device"
    assert found.sync_ns.tolist() == [37_015]  # behind the copy, and as long as the host had waited


def test_two_copies_at_once_count_once():
    found = one_step(
        copy(H2D, 10_000, 20_000, launched=9_000, waits=500, size=MB),
        copy(D2H, 20_000, 20_000, launched=19_000, waits=500, size=2 * MB, tid=BACKWARD, stream=9),
    )
    assert sum(exposed(found).values()) == 30_000


def test_a_typical_size_is_one_that_is_there():
    """'2 copies of typically 38.5 MB', of 77.1 MB and of 512 bytes."""
    found = one_step(
        copy(H2D, 10_000, 20_000, launched=9_000, waits=500, size=77 * MB),
        copy(H2D, 40_000, 1_000, launched=39_000, waits=500, size=512),
    )
    assert [kind.size for kind in found.kinds] == [512]
    assert found.kinds[0].total_bytes.tolist() == [77 * MB + 512]


def test_the_best_speed_of_large_pinned_copies_is_kept():
    found = one_step(
        copy(PINNED, 10_000, 1_000, launched=2_000, size=50 * MB // 1000),
        copy(PINNED, 20_000, 20_000, launched=3_000, size=10 * MB, stream=9),
        copy(H2D, 50_000, 10_000, launched=45_000, waits=500, size=100 * MB),
    )
    assert found.best_gbs == (("to_device", 500.0),)


def test_without_sizes_nothing_is_made_up():
    found = one_step(copy(H2D, 10_000, 30_000, launched=9_000, waits=500))
    assert (found.kinds[0].size, found.kinds[0].gbs, found.best_gbs) == (-1, None, ())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("HtoD (Pinned -> Device)", ("to_device", "pinned")),
        ("DtoH (Device -> Pageable)", ("to_host", "pageable")),
        ("HtoD (Unknown -> Device)", ("to_device", "unknown")),
        ("HostToDevice", ("to_device", "unknown")),
    ],
)
def test_names_say_the_way_and_the_hosts_memory(name, expected):
    (kind,) = one_step(copy(name, 10_000, 30_000, launched=9_000, waits=500, size=MB)).kinds
    assert (kind.direction, kind.memory) == expected


def test_copies_on_the_device_are_none_and_many_kinds_become_few():
    assert one_step(copy("DtoD (Device -> Device)", 10_000, 30_000, launched=9_000, size=MB)).kinds == ()
    rows = []
    for number in range(60):
        rows += copy(H2D, 1_000 * number + 100, 500, 1_000 * number, size=MB, op=f"aten::op_{number}")
    kinds = one_step(rows).kinds
    assert len(kinds) <= 41
    assert sum(kind.count for kind in kinds) == 60


def test_a_call_without_its_copy_and_a_trace_without_a_gpu_have_none():
    assert measured(step(1, 0, 9_000), call("cudaMemcpyAsync", 100, 50)).kinds == ()
    assert measured(step(1, 0, 9_000), note("aten::to", 100, 50, cat="cpu_op")).kinds == ()
