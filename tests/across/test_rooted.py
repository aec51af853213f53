"""Who waits for whom in a broadcast or reduce, told by the times of several."""

from types import SimpleNamespace

import numpy as np
import pytest

from traceops.across.clocks import ClockFit, with_roots
from traceops.across.match import Collective, MatchedCollectives

US = 1000
SENT = 50 * US  # a root hands its data over in this time, and a member that has it goes on


def run(op, operations, a_step=1):
    """Ranks and collectives of [(begin, end) of each member in µs] for each operation, so many in a step."""
    members = range(len(operations[0]))
    ranks = [
        SimpleNamespace(
            rank=rank,
            comm=SimpleNamespace(
                start=np.array([own[rank][0] for own in operations]) * US,
                end=np.array([own[rank][1] for own in operations]) * US,
                step=np.arange(len(operations)) // a_step,
            ),
        )
        for rank in members
    ]
    collectives = []
    for number, own in enumerate(operations):
        spent = [(end - begin) * US for begin, end in own]
        waits = tuple(one - min(spent) for one in spent)
        collectives.append(
            Collective(tuple(members), "", op, 4, "float", tuple((r, number) for r in members), min(spent), waits)
        )
    clocks = SimpleNamespace(fits={rank: ClockFit() for rank in members}, unaligned=())
    found = with_roots(MatchedCollectives(tuple(collectives), 0, {}), ranks, clocks).collectives
    return [(one.needs, tuple(ns // US for ns in one.wait_ns), one.last_rank) for one in found]


def test_receivers_wait_for_the_root_and_a_late_one_keeps_nobody():
    found = run("broadcast", [
        [(500, 550), (0, 560), (100, 570)],  # the root comes last
        [(1000, 1050), (1100, 1130), (3000, 3040)],  # rank 2 comes last: nobody waits
        [(5000, 5050), (4200, 5060), (4900, 5070)],
    ])  # fmt: skip
    assert [needs[1:] for needs, _, _ in found] == [((0, 1), (0, 2))] * 3
    assert [waits for _, waits, _ in found] == [(0, 500, 400), (0, 0, 0), (0, 800, 100)]
    assert {last for _, _, last in found} == {None}


def test_a_root_that_cannot_hand_over_waits_too():
    """Its data is larger than what fits on the way: it ends only after the receivers came."""
    (_, first), (needs, second) = [
        (needs, waits)
        for needs, waits, _ in run("broadcast", [[(9000, 9050), (0, 9060)], [(20_000, 21_400), (21_000, 21_500)]])
    ]
    assert first == (0, 9000) and second == (900, 0)
    assert needs == ((0, 1), (0, 1))


def test_the_root_of_a_reduce_waits_for_the_others():
    found = run("reduce", [
        [(0, 8), (10, 830), (800, 835)],
        [(2000, 2030), (2001, 2950), (2900, 2940)],
        [(4000, 4030), (4700, 4740), (4100, 4150)],  # the root comes last: the others had gone on
    ])  # fmt: skip
    assert {needs[1] for needs, _, _ in found} == {(0, 1, 2)}, "rank 1 is the root"
    assert [waits for _, waits, _ in found][:2] == [(0, 790, 0), (0, 899, 0)]


def test_where_all_wait_for_the_last_it_is_no_matter_who_is_the_root():
    found = run("broadcast", [
        [(0, 1050), (1000, 1060), (500, 1055)],
        [(2900, 3050), (2000, 3060), (3000, 3055)],
        [(5000, 5050), (4000, 5060), (4500, 5055)],
    ])  # fmt: skip
    assert [last for _, _, last in found] == [1, 2, 0]


def test_each_place_of_a_step_may_have_a_root_of_its_own():
    """ZeRO's optimizers send from rank after rank, and nobody was charged for what the others wait."""
    first = [(500, 550), (900, 950), (100, 570)]  # rank 2 waits for rank 0, and nobody for rank 1
    second = [(600, 1560), (650, 1570), (1500, 1550)]  # and here for rank 2
    steps = [[(b + 9000 * n, e + 9000 * n) for b, e in own] for n in range(4) for own in (first, second)]
    found = run("broadcast", steps, a_step=2)
    assert [needs for needs, _, _ in found[:2]] == [((0, 2), (0, 1), (0, 2)), ((0, 2), (1, 2), (0, 1, 2))]
    assert [waits for _, waits, _ in found[:2]] == [(0, 0, 400), (900, 850, 0)]


def test_who_ends_as_soon_as_another_has_come_waited_for_it():
    """Several broadcasts are in flight at once, handed on along a tree: it is another one each time."""
    found = run("broadcast", [
        [(0, 9010), (0, 900), (9000, 9020)],
        [(20_000, 20_050), (20_010, 29_030), (29_000, 29_040)],
        [(49_000, 49_030), (40_000, 49_020), (40_100, 40_200)],
    ])  # fmt: skip
    assert [waits for _, waits, _ in found] == [(9000, 0, 0), (10, 8990, 0), (0, 9000, 0)]
    assert found[0][0] == ((0, 1, 2), (0, 1), (0, 1, 2)), "rank 1 had ended before rank 2 came"


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    "operations",
    [
        [[(0, 50), (0, 50), (0, 50)]] * 3,  # nobody waits
        [
            [(0, 900), (300, 330), (800, 2500)],
            [(5000, 5010), (4000, 9000), (4100, 4150)],
        ],  # waiting for nobody's coming
    ],
)
def test_where_times_tell_nothing_nothing_is_said(op, operations):
    assert [(needs, last) for needs, _, last in run(op, operations)] == [((), None)] * len(operations)
