"""Ranks and waits merged, and the drawing of them: nothing lost, nothing on top of each other."""

from __future__ import annotations

import itertools

import pytest
from changed import replace
from msgspec import structs
from sample_hang import dead_with_log, many, mismatch, nobody_waits, skipped, two_roots

from traceops.hangs.model import Diagnosis, Wait
from traceops.render.hang.graph import MOST_NODES, WIDTH, WaitGraph, wait_graphs
from traceops.report.hang_rows import merged_ranks, merged_waits

DRAWN = (skipped(), two_roots(), mismatch(), many(), skipped(2, 1), many(64, 2))


@pytest.mark.parametrize("diagnosis", [*DRAWN, dead_with_log(), nobody_waits()])
@pytest.mark.parametrize("most", [3, 14, 1000])
def test_merging_keeps_every_rank_once(diagnosis: Diagnosis, most: int) -> None:
    groups = merged_ranks(diagnosis, most)
    ranks = sorted(rank for group in groups for rank in group.ranks)
    assert ranks == sorted(row.rank for row in diagnosis.ranks)
    blamed = {rank for root in diagnosis.roots for rank in root.ranks}
    assert all((group.root is not None) == bool(blamed & set(group.ranks)) for group in groups)


def test_what_merged_ranks_do_not_share_is_counted() -> None:
    (gathering,) = [group for group in merged_ranks(many(), 14) if group.shared("op") == "_all_gather_base"]
    assert len(gathering.ranks) == 448
    assert gathering.shared("group") is None and len(gathering.differ["group"]) == 64


def test_merged_waits_are_the_same_waits() -> None:
    for diagnosis in DRAWN:
        merged = merged_waits(diagnosis.waits)
        again = {(r, on, w.reason, w.group, w.op, w.sequence) for w in merged for r in w.ranks for on in w.on}
        assert again == {(w.rank, w.on, w.reason, w.group, w.op, w.sequence) for w in diagnosis.waits}
    assert len(merged_waits(many().waits)) == 65


@pytest.mark.parametrize("diagnosis", DRAWN)
@pytest.mark.parametrize("which", [0, 1])
def test_boxes_lie_apart_and_inside(diagnosis: Diagnosis, which: int) -> None:
    graphs = wait_graphs(diagnosis)
    assert graphs is not None
    graph = graphs[which]
    assert 2 <= len(graph.nodes) <= MOST_NODES
    for node in graph.nodes:
        assert node.x >= 0 and node.x + WIDTH <= graph.width
        assert node.y >= 0 and node.y + node.height <= graph.height
    for one, other in itertools.combinations(graph.nodes, 2):
        beside = abs(one.x - other.x) >= WIDTH
        above = one.y + one.height <= other.y or other.y + other.height <= one.y
        assert beside or above
    if which:
        assert graph.width <= 400


def arrows(graph: WaitGraph) -> set[tuple[str, str]]:
    return {(graph.nodes[edge.start].lines[0], graph.nodes[edge.end].lines[0]) for edge in graph.edges}


def test_arrows_lead_to_causes_at_the_right_and_last_in_a_column() -> None:
    graphs = wait_graphs(two_roots())
    assert graphs is not None
    wide, tall = graphs
    assert arrows(wide) == arrows(tall)
    assert ("Ranks 3, 7 … (4 in all)", "Ranks 2, 6 … (3 in all)") in arrows(wide)
    causes = [node for node in wide.nodes if node.kind == "root"]
    assert min(node.x for node in causes) > max(node.x for node in wide.nodes if node.kind != "root")
    below = [node.y for node in tall.nodes if node.kind == "root"]
    assert min(below) > max(node.y for node in tall.nodes if node.kind != "root")


def test_waiting_through_others_lies_further_out() -> None:
    graphs = wait_graphs(many())
    assert graphs is not None
    assert {node.lines[0]: node.layer for node in graphs[0].nodes} == {
        "Rank 29": 0, "Ranks 5, 13 … (63 in all)": 1, "Ranks 0–4, 6–12 … (448 in all)": 2,
    }  # fmt: skip


def test_waiting_in_a_circle_is_drawn() -> None:
    circle = tuple(Wait(rank, (rank + 1) % 3, "not_called") for rank in range(3))
    rows = tuple(structs.replace(row, where=f"line {row.rank}") for row in skipped(4).ranks[:3])
    for roots in ((), (replace(skipped().roots[0], ranks=(0, 1, 2), waiting=()),)):
        graphs = wait_graphs(replace(skipped(), ranks=rows, waits=circle, roots=roots))
        assert graphs is not None and len(graphs[0].edges) == 3


def test_nobody_waiting_is_no_graph() -> None:
    assert wait_graphs(nobody_waits()) is None and wait_graphs(dead_with_log()) is None


def test_who_only_a_root_says_is_waiting_is_drawn() -> None:
    graphs = wait_graphs(replace(mismatch(), waits=()))
    assert graphs is not None and arrows(graphs[0]) == {("Ranks 0–1, 3 (3)", "Rank 2")}
