"""What is new, gone, renamed, or not what it was."""

from comparison_reports import collective, kernel, made

from traceops.compare.changes import environment_changes, find_changes
from traceops.compare.model import Change


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
