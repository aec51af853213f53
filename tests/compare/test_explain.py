"""The first explanation is the planted cause, on real pairs and on made ones; what is new, gone or renamed is found."""

from typing import Any

import msgspec
import numpy as np
import pytest
from comparison_reports import collective, edited, kernel, made, real

from traceops.compare import ComparedCapture, compare
from traceops.compare.changes import environment_changes, find_changes
from traceops.compare.comparable import refusals
from traceops.compare.model import Change, Comparison
from traceops.report.inventory import ComputeRows, OperatorRow
from traceops.traces.snapshot_rows import NO_STACK

# What a change of the step can come from; an explanation names one.
CAUSES = (
    "collectives", "bandwidth", "blocking_calls", "input", "straggler", "compute", "launch", "memory", "peak_memory",
    "waiting", "other",
)  # fmt: skip

REAL = [
    ("ddp", "one_bucket", "collectives", "14 all-reduces per step became 1 (the same 470 MB)"),
    ("ddp", "tiny_buckets", "collectives", "14 all-reduces per step became 34 (the same 470 MB)"),
    ("ddp", "item_sync", "blocking_calls", "aten::item makes the host wait for the GPU 40 times per step (0 before)"),
    ("ddp", "no_p2p", "bandwidth", "the same collectives move at 24.7 GB/s of bus bandwidth, 264 before"),
    ("ddp", "socket", "bandwidth", "the same collectives move at 4.33 GB/s of bus bandwidth, 264 before"),
    ("resnet50_workers_4", "resnet50_workers_0", "input", "enumerate(DataLoader)#_SingleProcessDataLoaderIter"),
    ("trace_diff_control", "trace_diff_test", "compute", "volta_sgemm_128x32_nt"),
]  # fmt: skip


@pytest.mark.parametrize(("base", "head", "cause", "words"), REAL)
def test_real_pairs(base: str, head: str, cause: str, words: str) -> None:
    result = compare([real(base)], [real(head)], force=True)
    first = result.explanations[0]
    assert first.cause == cause and words in first.text
    assert all(explanation.cause in CAUSES for explanation in result.explanations)


@pytest.mark.parametrize(("base", "head", "cause", "words"), REAL)
def test_the_other_way_round_it_is_the_same_cause(base: str, head: str, cause: str, words: str) -> None:
    result = compare([real(head)], [real(base)], force=True)
    assert result.explanations[0].cause == cause
    assert result.verdict != "regression" or head == "one_bucket"  # which has fewer collectives


def test_regressions_of_the_public_pairs_are_found() -> None:
    slower = compare([real("resnet50_workers_4")], [real("resnet50_workers_0")])
    assert slower.verdict == "regression" and "waits longer for input" in slower.sentence
    faster = compare([real("resnet50_workers_0")], [real("resnet50_workers_4")])
    assert faster.verdict == "improvement" and faster.sentence.startswith("Faster: step time 177")


def test_a_change_beyond_every_step_of_the_other_side_needs_no_more_steps() -> None:
    """Sockets instead of NVLink were 'inconclusive, looks like +641 %', and +80 % was open too."""
    for name, pct, gbs in (("socket", "+641", "4.33 GB/s"), ("no_p2p", "+80.2", "24.7 GB/s")):
        result = compare([real("ddp")], [real(name)])
        assert result.verdict == "regression"
        assert result.sentence.startswith("Regression: step time 23 ms → ")
        assert f"({pct}" in result.sentence and "at least" in result.sentence and gbs in result.sentence


def test_the_headline_says_the_cause_before_it_asks_for_more_steps() -> None:
    pair = [made(profiled=[level] * 3, at=at) for at, level in enumerate((100.0, 140.0))]
    said = compare(pair[:1], pair[1:]).sentence
    assert said.startswith("It looks slower, though that is not certain: step time 100 ms → 140 ms (+40.0 %).")
    assert said.index("Inconclusive: 3 steps a side") < said.index("Capture more steps")


def test_what_makes_a_step_longer_is_no_reason_for_one_that_looks_shorter() -> None:
    """-5.6 % was explained by 40 blocking calls more, for which the GPU idles longer, and by a new finding."""
    said = compare([real("ddp")], [real("item_sync")]).sentence
    assert "(-5.6 %). Ranks wait less for each other: -2.29 ms per step" in said
    assert "aten::item" not in said and "New in head" not in said
    said = compare([real("socket")], [real("ddp")]).sentence
    assert said.startswith("Faster: step time") and "264 GB/s" in said and "New in head" not in said


def test_variables_that_differ_are_named_in_the_headline() -> None:
    pair = [
        made(profiled=[100.0 + 40.0 * at] * 3, at=at, environment={"OMP_NUM_THREADS": threads, "A": "1"})
        for at, threads in enumerate(("8", "1"))
    ]
    said = compare(pair[:1], pair[1:]).sentence
    assert "OMP_NUM_THREADS is 1, 8 before." in said and said.index("OMP_NUM") < said.index("Capture more steps")


def steps(level: float) -> list[float]:
    return [float(x) for x in level * (1 + np.random.default_rng(1).normal(0, 0.001, 10))]


def first(base: dict[str, Any], head: dict[str, Any], levels: tuple[float, float] = (100.0, 110.0)) -> Comparison:
    sides = [made(steps(level), steps(level), at=n, **side) for n, (level, side) in enumerate(
        zip(levels, (base, head), strict=True))]  # fmt: skip
    return compare([sides[0]], [sides[1]])


def test_a_new_straggler_takes_its_waiting_with_it() -> None:
    finding = {"rule": "TO-S001", "severity": "error", "confidence": "high", "ranks": [1], "cause": "gpu_compute",
               "title": "A rank is late", "message": "late", "evidence": [{"metric": "m", "value": 1}]}  # fmt: skip
    result = first(
        {"inventory": {"kernels": [kernel("gemm", 10, 20.0)]}},
        {"inventory": {"kernels": [kernel("gemm", 10, 24.0)]}, "findings": [finding],
         "buckets": {"comm_wait": 6.0}},
    )  # fmt: skip
    assert [e.cause for e in result.explanations] == ["straggler"]
    assert "Rank 1 (it computes longer) makes the others wait" in result.sentence
    assert "gemm takes 20.00 → 24.00 ms" in result.sentence
    assert [f.rule for f in result.new_findings] == ["TO-S001"] and not result.gone_findings


def test_launched_later_names_the_operators_over_all_shapes() -> None:
    def op(shapes: str, ms: float) -> dict[str, Any]:
        return {"name": "aten::cat", "shapes": shapes, "count_per_step": 5.0, "host_ms_per_step": ms,
                "device_ms_per_step": 0.0}  # fmt: skip

    result = first(
        {"inventory": {"operators": [op("[[1]]", 1.0), op("[[2]]", 1.0)]}},
        {"inventory": {"operators": [op("[[1]]", 5.0), op("[[2]]", 6.0)]}, "buckets": {"idle_host": 10.0}},
    )
    assert result.explanations[0].cause == "launch"
    assert "aten::cat 2.00 → 11.00 ms of host time" in result.explanations[0].text


def test_more_bytes_are_said() -> None:
    result = first({"inventory": {"collectives": [collective(10, 10**7)]}},
                   {"inventory": {"collectives": [collective(10, 2 * 10**7)]},
                    "buckets": {"comm_transfer": 10.0}})  # fmt: skip
    assert "10 all-reduces per step became 10 (100 MB became 200 MB)" in result.explanations[0].text
    assert "exposes 10.00 ms more communication" in result.explanations[0].text


def test_a_slower_link_names_the_variable() -> None:
    def rows(ms: float) -> list[dict[str, Any]]:
        return [{"op": "allreduce", "ranks": [0, 1], "bytes": 10**8, "count": 10, "total_ms": ms}]

    result = first({"collectives": rows(10.0)},
                   {"collectives": rows(60.0), "buckets": {"comm_transfer": 10.0},
                    "environment": {"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1"}})  # fmt: skip
    assert result.explanations[0].cause == "bandwidth"
    assert "head has NCCL_P2P_DISABLE=1" in result.explanations[0].text


def test_what_offsets_the_change_comes_last() -> None:
    result = first({"buckets": {"idle_host": 20.0}}, {"buckets": {"idle_input": 40.0}})
    assert [e.cause for e in result.explanations] == ["input", "compute", "launch"]
    assert [e.ms > 0 for e in result.explanations] == [True, False, False]


def test_an_explanation_that_points_the_other_way_is_no_reason() -> None:
    # Two blocking calls are gone, which saves little; the kernel is what makes the step slower.
    def calls(count: float) -> list[dict[str, Any]]:
        return [{"call": "cudaStreamSynchronize", "operator": "aten::item", "count_per_step": count,
                 "ms_per_step": count / 10}]  # fmt: skip

    result = first(
        {"inventory": {"kernels": [kernel("gemm", 10, 20.0)], "blocking_calls": calls(2)},
         "buckets": {"idle_sync": 0.2}},
        {"inventory": {"kernels": [kernel("gemm", 10, 40.0)], "blocking_calls": calls(0)}},
        (100.0, 120.0),
    )  # fmt: skip
    assert [e.cause for e in result.explanations][:2] == ["compute", "blocking_calls"]
    less = first({"buckets": {"comm_transfer": 20.0}}, {"buckets": {"comm_transfer": 1.0}})
    assert less.explanations[0].ms > 0  # slower: the reason is what grew


def test_where_nothing_grew_no_reason_is_given() -> None:
    base = made(steps(100.0), [100.0] * 8)
    head = made(steps(110.0), [95.0] * 8, at=1)
    result = compare([base], [head])
    assert result.verdict == "regression" and "The profiled steps do not show why." in result.sentence


def test_a_slower_link_is_named_beside_other_collectives() -> None:
    def rows(ms: float, count: int) -> dict[str, Any]:
        return {"collectives": [{"op": "allreduce", "ranks": [0, 1], "bytes": 10**8, "count": count, "total_ms": ms}],
                "inventory": {"collectives": [collective(count, 10**8)]}}  # fmt: skip

    result = first(rows(10.0, 1), {**rows(900.0, 10), "buckets": {"comm_transfer": 10.0},
                                   "environment": {"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1"}})  # fmt: skip
    assert result.explanations[0].cause == "bandwidth"
    assert "collectives" in {e.cause for e in result.explanations}
    assert "NCCL_P2P_DISABLE=1" in result.sentence


def test_one_new_blocking_call_a_step_is_named() -> None:
    call = {"call": "cudaStreamSynchronize", "operator": "aten::item", "count_per_step": 1.0, "ms_per_step": 0.1}
    result = first(
        {"inventory": {"blocking_calls": []}}, {"inventory": {"blocking_calls": [call]}, "buckets": {"idle_sync": 9.0}}
    )
    assert result.explanations[0].text.startswith("aten::item makes the host wait for the GPU once per step (0 before)")


def test_a_straggler_that_moved_is_named() -> None:
    def late(rank: int) -> dict[str, Any]:
        return {"rule": "TO-S001", "severity": "error", "confidence": "high", "ranks": [rank], "cause": "host",
                "title": "A rank is late", "message": "late", "evidence": [{"metric": "m", "value": 1}]}  # fmt: skip

    moved = first({"findings": [late(0)]}, {"findings": [late(1)], "buckets": {"comm_wait": 10.0}})
    assert "rank 1 (its host launches later) makes the others wait" in moved.explanations[0].text
    assert "rank 0 (its host launches later) no longer" in moved.explanations[0].text
    grew = first({"findings": [late(1)]}, {"findings": [late(1)], "buckets": {"comm_wait": 10.0}})
    assert "makes the others wait longer than before" in grew.explanations[0].text


def test_no_change_needs_no_explanation() -> None:
    result = first({}, {}, (100.0, 100.0))
    assert result.verdict == "no_regression" and not result.explanations and not result.changes
    assert "500 kernels per step" in result.unchanged and "the same environment variables" in result.unchanged
    assert "would have found" not in result.sentence and "would have been found 9 times of 10" in result.sentence


def test_a_count_that_grew_is_not_explained_by_time_that_shrank() -> None:
    """'Regression: collectives per step 25 → 109. Compute -6.78 ms per step' gave what is better as the reason."""
    old = {"kernels": [kernel("adam", 40, 20.0)], "collectives": [collective(10, 10**7)]}
    new = {"kernels": [kernel("adam", 20, 10.0)], "collectives": [collective(30, 10**7)]}
    sides = [
        made([], [level] * 3, at=at, inventory=inventory, counts={"collectives": count},
             buckets={"idle_dependency": idle})
        for at, (level, inventory, count, idle) in enumerate(((100.0, old, 10, 0.0), (101.0, new, 30, 11.0)))
    ]  # fmt: skip
    result = compare(sides[:1], sides[1:])
    assert result.explanations[0].cause == "compute" and result.explanations[0].ms < 0
    assert "Regression: collectives per step 10 → 30" in result.sentence
    assert "10 all-reduces per step became 30" in result.sentence and "Compute" not in result.sentence
    finding = next(f for f in result.findings if "collectives per step" in f.message)
    assert "10 all-reduces per step became 30" in finding.message


def test_collectives_are_called_by_their_names_and_one_of_them_is_one() -> None:
    """'17 -all-gather-bases a step came in; 1 all-reduce per step (18.9 MB) are gone'."""
    old = {"collectives": [{**collective(1, 10**7), "op": "_reduce_scatter_base"}]}
    new = {"collectives": [{**collective(17, 10**7), "op": "_allgather_base"}]}
    text = next(e.text for e in first({"inventory": old}, {"inventory": new}).explanations if e.cause == "collectives")
    assert text.startswith("17 all-gathers per step (170 MB) came in; 1 reduce-scatter per step (10.0 MB) is gone")


def test_a_collective_that_is_called_otherwise_is_the_same_one() -> None:
    """'8 all-gathers per step (80.0 MB) came in; 6 all-gathers per step (60.0 MB) are gone'."""
    old = {"collectives": [{**collective(6, 10**7), "op": "_allgather_base"}]}
    new = {"collectives": [{**collective(8, 10**7), "op": op} for op in ("allgather", "allreduce_coalesced")]}
    text = next(e.text for e in first({"inventory": old}, {"inventory": new}).explanations if e.cause == "collectives")
    assert text.startswith(
        "8 coalesced all-reduces per step (80.0 MB) came in; 6 all-gathers per step became 8 (60.0 MB became 80.0 MB)"
    )


def test_several_late_ranks_are_several() -> None:
    finding = {"rule": "TO-S001", "severity": "error", "confidence": "high", "ranks": [0, 1], "cause": "input",
               "title": "Ranks are late", "message": "late", "evidence": [{"metric": "m", "value": 1}]}  # fmt: skip
    result = first({}, {"findings": [finding], "buckets": {"comm_wait": 10.0}})
    assert "ranks 0–1 (they wait longer for their input) make the others wait" in result.explanations[0].text


def changes(base: dict, head: dict, step_ms: float = 100.0) -> list[Change]:  # type: ignore[type-arg]
    return list(find_changes([made(inventory=base)], [made(at=1, inventory=head)], step_ms))


def test_new_gone_and_changed_kernels() -> None:
    found = changes(
        {"kernels": [kernel("gemm", 10, 8.0), kernel("old", 4, 1.0, "aten::add"), kernel("same", 5, 5.0)]},
        {"kernels": [kernel("gemm", 10, 12.0), kernel("new", 2, 3.0, "aten::mul"), kernel("same", 5, 5.01)]},
    )
    assert [(c.name, c.status, round(c.delta_ms, 2)) for c in found] == [
        ("gemm", "changed", 4.0), ("new", "new", 3.0), ("old", "vanished", -1.0),
    ]  # fmt: skip


def test_a_renamed_kernel_is_launched_by_the_same_operator_as_often_at_the_same_place() -> None:
    base = {"kernels": [kernel("sm80_gemm", 8, 8.0, place=0.2), kernel("sm80_gemm_t", 8, 4.0, place=0.8)]}
    head = {"kernels": [kernel("sm90_gemm", 8, 6.0, place=0.21), kernel("sm90_gemm_t", 8, 3.0, place=0.79)]}
    found = changes(base, head)
    assert [(c.status, c.name, c.head_name) for c in found] == [
        ("renamed", "sm80_gemm", "sm90_gemm"), ("renamed", "sm80_gemm_t", "sm90_gemm_t"),
    ]  # fmt: skip
    other_count = {"kernels": [kernel("sm90_gemm", 20, 6.0, place=0.21)]}
    assert {c.status for c in changes(base, other_count)} == {"new", "vanished"}
    other_operator = {"kernels": [kernel("sm90_gemm", 8, 6.0, "aten::bmm", 0.21)]}
    assert {c.status for c in changes(base, other_operator)} == {"new", "vanished"}


def test_more_calls_of_the_same_kernel_are_a_change_however_short() -> None:
    (found,) = changes({"kernels": [kernel("k", 10, 0.001)]}, {"kernels": [kernel("k", 12, 0.0012)]})
    assert (found.base_count, found.head_count, found.status) == (10, 12, "changed")


def test_small_and_short_differences_are_not_worth_a_line() -> None:
    base = {"kernels": [kernel("long", 10, 50.0), kernel("short", 10, 0.1)]}
    head = {"kernels": [kernel("long", 10, 51.0), kernel("short", 10, 0.15)]}
    assert not changes(base, head)


def test_collectives_are_told_apart_by_size_and_kind() -> None:
    base = {"collectives": [collective(12, 10_000_000), collective(1, 4)]}
    head = {"collectives": [collective(1, 120_000_000), collective(1, 4)]}
    found = changes(base, head)
    assert {(c.status, c.base_count, c.head_count) for c in found} == {("vanished", 12, 0), ("new", 0, 1)}
    assert all(c.kind == "collective" and "2 ranks, Float" in c.detail for c in found)


def test_operators_by_shape_only_where_both_sides_have_shapes() -> None:
    def op(shapes: str, count: float) -> dict:  # type: ignore[type-arg]
        return {"name": "aten::mm", "shapes": shapes, "count_per_step": count,
                "host_ms_per_step": count, "device_ms_per_step": 0.0}  # fmt: skip

    both = changes({"operators": [op("[[2]]", 5), op("[[4]]", 5)]}, {"operators": [op("[[2]]", 10)]})
    assert {(c.detail, c.head_count) for c in both} == {("[[2]]", 10), ("[[4]]", 0)}
    assert not changes({"operators": [op("[[2]]", 5), op("[[4]]", 5)]}, {"operators": [op("", 10)]})


def test_counts_are_means_over_the_captures_of_a_side() -> None:
    base = [made(at=at, inventory={"kernels": [kernel("k", n, n / 2)]}) for at, n in ((0, 10), (2, 6))]
    (found,) = find_changes(base, [made(at=1, inventory={"kernels": [kernel("k", 10, 5.0)]})], 100.0)
    assert (found.base_count, found.base_ms) == (8, 4.0)


def test_a_report_that_does_not_say_what_runs_is_no_report_of_nothing() -> None:
    known = {"kernels": [kernel("k", 10, 5.0)], "collectives": [collective(8, 1000)]}
    silent = made(at=2, inventory={})
    assert not find_changes([made(inventory=known), silent], [made(at=1, inventory=known)], 100.0)
    assert not find_changes([silent], [made(at=1, inventory=known)], 100.0)


def test_a_kernel_whose_operator_was_lost_is_the_same_kernel() -> None:
    base = {"kernels": [kernel("gemm", 6, 30.0), kernel("gemm", 4, 30.0, "aten::bmm")]}
    (found,) = changes(base, {"kernels": [kernel("gemm", 10, 66.0, "")]})
    assert (found.status, found.base_ms, found.head_ms) == ("changed", 60.0, 66.0)


def test_variables_that_change_how_it_runs() -> None:
    base = made(environment={"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5", "SLURM_JOB_ID": "1"})
    head = made(at=1, environment={"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "1", "SLURM_JOB_ID": "2"})
    found = {c.name: (c.status, c.base_value, c.head_value) for c in environment_changes([base], [head])}
    assert found == {"NCCL_IB_HCA": ("vanished", "mlx5", None), "NCCL_P2P_DISABLE": ("new", None, "1")}
    other = made(at=3, environment={"NCCL_DEBUG": "WARN", "NCCL_P2P_DISABLE": "0"})
    (_, mixed) = environment_changes([base], [head, other])
    assert (mixed.name, mixed.head_value) == ("NCCL_P2P_DISABLE", "several values")
    assert not environment_changes([made(environment={})], [head])  # a trace without run.json says nothing


def test_what_ties_pairs_up_the_same_way_whatever_the_order_of_a_set() -> None:
    base = {"kernels": [kernel(f"old_{i}", 8, 4.0, place=0.5) for i in range(6)]}
    head = {"kernels": [kernel(f"new_{i}", 8, 3.0, place=0.5) for i in range(6)]}
    found = {(c.name, c.head_name) for c in changes(base, head)}
    assert found == {(f"old_{i}", f"new_{i}") for i in range(6)}


GIB = 1 << 30


def twice(at: float, *of: Any, **more: int) -> tuple[ComparedCapture, ...]:
    """Two captures of the same code."""
    return tuple(holding(at + apart, *of, **more) for apart in (0, 10))


def holding(at: float, peak: int, lines: dict[str, int] | None = None, **more: int) -> ComparedCapture:
    """A capture whose rank 1 held most: `peak` GiB, 4 of them between steps."""
    row: dict[str, Any] = {
        "rank": 1, "peak_bytes": peak * GIB, "between_steps_bytes": 4 * GIB, "parameters_bytes": GIB,
        "gradients_bytes": GIB, "optimizer_state_bytes": 2 * GIB, **{k: v * GIB for k, v in more.items()},
        "lines": [{"line": line, "held_bytes": size * GIB, "blocks": 3} for line, size in (lines or {}).items()],
    }  # fmt: skip

    def edit(report: dict[str, Any]) -> None:
        report["memory"] = {"ranks": [{"rank": 0, "peak_bytes": GIB}, row]}

    return edited(made([100.0] * 20, at=at, peak=peak * GIB), edit)


def reason(base: tuple[ComparedCapture, ...], head: tuple[ComparedCapture, ...]) -> str:
    result = compare(base, head)
    assert result.sentence.startswith("Regression: peak memory") and "%). At its peak rank 1" in result.sentence
    assert " GiB → " in result.sentence and "GB" not in result.sentence  # one unit in all of it
    assert result.verdict == "regression"
    [found] = [one for one in result.explanations if one.cause == "peak_memory"]
    [finding] = [one for one in result.findings if "memory" in one.message]
    assert found.text[1:] in finding.message
    return found.text


def test_activations_grew() -> None:
    text = reason(twice(0, 10), twice(100, 16))
    assert text.startswith("at its peak rank 1 holds 6.00 GiB more: 6.00 GiB more activations and temporaries within")


def test_the_optimizer_grew() -> None:
    more = {"between_steps_bytes": 8, "optimizer_state_bytes": 6}
    assert "4.00 GiB more optimizer state" in reason(twice(0, 10), twice(100, 14, **more))


def test_by_line() -> None:
    base = twice(0, 10, {"model.py:40 forward": 6, "train.py:9 main": 4})
    head = twice(100, 17, {"model.py:40 forward": 6, "train.py:9 main": 4, "train.py:77 keep": 7})
    assert reason(base, head).endswith("7.00 GiB more made in train.py:77 keep")


def test_lines_that_moved_are_the_same_lines() -> None:
    """Four lines were put in above `forward`, which holds 6 GiB as before; `keep` is new."""
    base = twice(0, 10, {"model.py:40 forward": 5, "model.py:44 forward": 1, "train.py:9 main": 4})
    lines = {"model.py:45 forward": 5, "model.py:49 forward": 1, "train.py:9 main": 4, "train.py:77 keep": 7}
    text = reason(base, twice(100, 17, lines))
    assert text.endswith("holds 7.00 GiB more: 7.00 GiB more made in train.py:77 keep")


def test_what_has_no_stack_is_made_in_no_line() -> None:
    base, head = twice(0, 10, {NO_STACK: 6}), twice(100, 17, {NO_STACK: 13})
    assert reason(base, head).endswith("7.00 GiB more made where no stack was recorded")


def test_nothing_is_said_where_a_side_does_not_tell() -> None:
    result = compare([made([100.0] * 20, peak=10 * GIB)], [holding(100, 16)])
    assert not [one for one in result.explanations if one.cause == "peak_memory"]


def row(name, ms, *, module="", phase="forward", flops=1e12, calls=4.0):
    return OperatorRow(
        name=name, kind="product", shape="8192×4096 4096×4096", calls=calls, ms=ms, flops=flops, bytes=1e9,
        attainable_ms=ms / 2, cause=None, known_ms=ms, phase=phase, module=module,
    )  # fmt: skip


def with_work(capture, *rows):
    busy = sum(one.ms for one in rows)
    compute = ComputeRows(
        rank=0, busy_ms=busy, attainable_ms=busy / 2, efficiency_pct=50.0, rates="measured", bound="device", losses=(),
        operators=rows,
    )  # fmt: skip
    return msgspec.structs.replace(capture, report=msgspec.structs.replace(capture.report, compute=compute))


SAME = {"inventory": {"kernels": [{"name": "k", "kind": "compute", "count_per_step": 1.0, "ms_per_step": 1.0}]}}


def test_gpu_time_changes_by_module_and_by_operator():
    base = with_work(
        made(**SAME), row("mm", 10.0, module="GPT/Block"), row("softmax", 3.0, module="GPT/Block/Attention")
    )
    head = with_work(
        made(at=1, **SAME), row("mm", 10.0, module="GPT/Block"), row("softmax", 9.0, module="GPT/Block/Attention")
    )
    found = {(change.kind, change.name): change for change in find_changes([base], [head], 50.0)}
    assert set(found) == {("module", "GPT/Block/Attention (forward)"), ("gpu_operator", "softmax")}
    assert found["gpu_operator", "softmax"].more_ms == pytest.approx(6.0)


def test_gpus_of_two_kinds_compare_where_they_do_the_same_work():
    base = with_work(made(), row("mm", 10.0))
    head = with_work(made(at=1, device="AMD Instinct MI300X"), row("mm", 7.0))
    other = with_work(made(at=1, device="AMD Instinct MI300X"), row("mm", 7.0, flops=2e12))
    assert refusals([base], [head]) == []
    assert refusals([base], [other]) == ["device: base NVIDIA H200, head AMD Instinct MI300X"]
    assert refusals([base], [made(at=1, device="AMD Instinct MI300X")])
