"""Ranks that are slow: alike as one group with what they share, or with more to do than others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from changed import replace
from generated_run import (
    SlowCompute,
    SlowCopy,
    SlowHost,
    SlowInput,
    ddp,
    fsdp2,
    hsdp,
    simulate,
    step_time,
    write_traces,
)
from measured_runs import CAUSES, across, program, true_step
from msgspec import UNSET

from traceops.across.run_use import CoreWaits
from traceops.across.slow_group import apart_ranks
from traceops.across.stragglers import best_pace
from traceops.across.work import compare_work
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.measure.inventory import KernelStats
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.lead import cure_of, late_together, lead_finding
from traceops.rules.stragglers import judge_late
from traceops.rules.stragglers_claims import Late, Slower, shared_place
from traceops.traces.model import CommArgs

WORLD = 32


def slowed(builder, kind, ranks):
    made = program(builder, steps=4, layers=2, sync=kind is SlowInput)
    extra = 0.8 * true_step(simulate(made, 4)) / 1e3
    healthy = simulate(made, WORLD, ranks_per_host=4)
    return healthy, simulate(made, WORLD, [kind(rank, extra_us=extra) for rank in ranks], ranks_per_host=4)


@pytest.mark.parametrize(
    ("builder", "kind", "cause", "ranks", "place"),
    [
        (fsdp2, SlowCompute, "gpu_compute", range(16, 28), "all ranks of 3 hosts: host4, host5, host6"),
        (ddp, SlowInput, "input", (*range(1, WORLD, 4), 2, 7, 11, 30), ""),
    ],
)
def test_slow_ranks_are_one_group_with_what_they_share(builder, kind, cause, ranks, place):
    healthy, run = slowed(builder, kind, sorted(ranks))
    measured = across(run)
    verdicts = judge_late(measured, 1.0)
    [found] = [one for verdict in verdicts for one in verdict.findings]
    assert (found.rule, found.severity, found.ranks) == ("TO-S003", "error", tuple(sorted(ranks)))
    assert found.cause == cause
    assert found.impact_ms == pytest.approx((step_time(run) - step_time(healthy)) / 1e6, rel=0.1)
    assert [e.value for e in found.evidence if e.fact is Fact.IN_COMMON] == ([place] if place else [])
    claim = claim_of(found, Slower)
    assert (claim.count, claim.of, claim.place) == (12, WORLD, place)


def test_one_rank_that_is_slower_than_its_group_is_told():
    """Eight ranks 0.8 ms late and one 2.5 ms were '9 of 32 ranks take 0.82 ms longer', and nobody was the worst."""
    made = program(ddp, steps=4, layers=2)
    step = true_step(simulate(made, WORLD)) / 1e3
    late = [SlowCompute(rank, extra_us=(1.5 if rank == 20 else 0.5) * step) for rank in (*range(8, 16), 20)]
    verdicts = judge_late(across(simulate(made, WORLD, late)), 1.0)
    [found] = [one for verdict in verdicts for one in verdict.findings]
    assert found.rule == "TO-S003" and found.ranks == (*range(8, 16), 20)
    assert [(e.value, e.rank) for e in found.evidence if e.fact is Fact.WORST_OF_THEM] == [
        (pytest.approx(2.452, abs=1e-3), 20)
    ]
    assert claim_of(found, Slower).count == 9
    claim = claim_of(found, Slower)
    assert (round(claim.longer_least, 2), round(claim.longer_most, 2), claim.worst) == (0.81, 2.45, 20)


TWO = [  # late ranks of 16, slower for reasons of their own: (fault, ranks, part of the step)
    (fsdp2, [(SlowCompute, range(4), 0.3), (SlowInput, range(8, 12), 0.8)]),  # were not told at all
    (hsdp, [(SlowCompute, range(8, 12), 0.5), (SlowHost, [1], 0.4)]),  # was one of five whose GPUs are slow
    (ddp, [(SlowCompute, range(8, 12), 0.5), (SlowHost, [1], 3.0)]),  # the group was not told
]


@pytest.mark.parametrize(("builder", "plants"), TWO)
def test_late_ranks_of_unlike_cause_are_told_apart_each_with_its_own_cost(builder, plants):
    """The cost is what the cure saves with the other plant cured already: against a run with this plant alone."""
    made = program(builder, steps=3, layers=2, sync=True)
    step = true_step(simulate(made, 4)) / 1e3
    faults = [[kind(rank, extra_us=part * step) for rank in ranks] for kind, ranks, part in plants]
    healthy = true_step(simulate(made, 16))
    measured = across(simulate(made, 16, [one for own in faults for one in own]))
    found = [one for verdict in judge_late(measured, 1.0) for one in verdict.findings]
    told = {(one.rule, one.ranks, one.cause): one.impact_ms for one in found}
    wanted = {
        ("TO-S003" if len(ranks) > 1 else "TO-S001", tuple(ranks), CAUSES[kind]): own
        for (kind, ranks, _), own in zip(plants, faults, strict=True)
    }
    assert set(told) == set(wanted)
    for one, own in wanted.items():
        alone = true_step(simulate(made, 16, own))
        if one[1] != (1,) or plants[1][2] < 1:  # who is far beyond all is told without the others' cure
            assert told[one] == pytest.approx((alone - healthy) / 1e6, rel=0.1)
    together = tuple(sorted(rank for _, ranks, _ in plants for rank in ranks))
    [cured] = [p.step_ns.mean() for p in measured.replay.what_if.predictions if p.ranks == together]
    assert cured == pytest.approx(healthy, rel=0.1)


def test_the_headline_of_two_groups_gives_what_curing_both_would(tmp_path):
    made = program(ddp, steps=3, layers=2, sync=True)
    step = true_step(simulate(made, 4)) / 1e3
    faults = [SlowCompute(rank, extra_us=0.5 * step) for rank in range(4)]
    faults += [SlowInput(rank, 0.8 * step) for rank in range(12, 16)]
    write_traces(simulate(made, 16, faults), tmp_path)
    report = analyze(tmp_path)
    lead = lead_finding(report)
    assert len(late_together(report, lead)) == 2
    groups = [claim_of(one, Slower) for one in late_together(report, lead)]
    assert [(one.ranks, one.does) for one in groups] == [((12, 13, 14, 15), "input"), ((0, 1, 2, 3), "slower")]
    assert card_of(report).headline.startswith("8 of 16 ranks are late")
    assert 1 <= card_of(report).fixed_ms < 2
    cure = cure_of(report, lead)
    assert card_of(report).fixed_ms == cure.then_ms


def test_a_rank_beside_others_is_promised_what_its_cure_alone_would_give(tmp_path):
    """'At its peers' pace a step would take 2.82 ms' was true only with the two other late ranks cured."""
    made = program(ddp, steps=5, sync=True)
    step = true_step(simulate(made, 8)) / 1e3
    others = [SlowInput(6, 0.3 * step), SlowCompute(3, extra_us=step, steps=(4,))]
    write_traces(simulate(made, 8, [SlowCopy(1, 0.5 * step), *others]), tmp_path)
    report = analyze(tmp_path)
    cure = cure_of(report, lead_finding(report))
    assert lead_finding(report).ranks == (1,) and claim_of(lead_finding(report), Late).beside == (3, 6)
    assert cure.then_ms == pytest.approx(true_step(simulate(made, 8, others)) / 1e6, rel=0.05)
    assert card_of(report).fixed_ms == cure.then_ms


@pytest.mark.parametrize(("part", "named"), [(0.95, False), (0.3, True)])
def test_a_group_that_waits_for_cores_is_not_said_to_be_slow(part, named):
    """Four ranks of a crowded host were 'slower: their hosts launch later', as no single rank of them was."""
    made = program(ddp, steps=4, layers=2, sync=True, device="cpu")
    longer_us = 0.8 * true_step(simulate(made, 4)) / 1e3
    measured = across(simulate(made, 8, [SlowCompute(rank, extra_us=longer_us) for rank in range(4, 8)]))
    waited = round(part * longer_us * 1e3)
    waits = {rank: dict.fromkeys(measured.replay.lateness.steps, waited) for rank in range(4, 8)}
    verdicts = judge_late(measured, 1.0, waits=CoreWaits(waits))
    assert {rank for one in verdicts for found in one.findings for rank in found.ranks} == (
        {4, 5, 6, 7} if named else set()
    )
    if not named:
        assert "they wait for cores there: the machine is the cause" in verdicts[-1].not_evaluated


@pytest.mark.parametrize(("kind", "cause"), [(SlowInput, "input"), (SlowHost, "host")])
@pytest.mark.parametrize(("ranks", "telling"), [(8, ()), (16, (0, 8))])
def test_half_of_the_ranks_without_a_gpu_are_one_group_and_no_rank_by_itself(kind, cause, ranks, telling):
    """Four ranks of eight were four errors of TO-S001, and TO-S003 was clear; eight of sixteen were a remark.

    telling: ranks that note what they wait for cores. Of sixteen TO-S001 names none, so that each host has to tell.
    """
    made = program(ddp, steps=4, layers=2, sync=True, device="cpu")
    longer_us = 0.8 * true_step(simulate(made, 4)) / 1e3
    slow = tuple(range(1, ranks, 2))
    measured = across(simulate(made, ranks, [kind(rank, longer_us) for rank in slow]))
    waits = {rank: dict.fromkeys(measured.replay.lateness.steps, 100_000) for rank in telling}
    verdicts = judge_late(measured, 1.0, waits=CoreWaits(waits))
    [found] = [one for verdict in verdicts for one in verdict.findings]
    assert (found.rule, found.severity, found.ranks, found.cause) == ("TO-S003", "error", slow, cause)
    saved = true_step(simulate(made, ranks, [kind(rank, longer_us) for rank in slow]))
    saved -= true_step(simulate(made, ranks))
    assert found.impact_ms == pytest.approx(saved / 1e6, rel=0.1)
    assert f"{len(slow)} of {ranks} ranks" in found.message and claim_of(found, Slower).doubt is None


@pytest.mark.parametrize("telling", [(), (0,)], ids=["nobody", "the other host"])
def test_a_group_without_a_gpu_is_a_remark_where_nothing_tells_what_it_waits_for_cores(telling):
    """A host whose Linux tells no waits for cores was taken for one that has cores enough."""
    made = program(ddp, steps=4, layers=2, sync=True, device="cpu")
    longer_us = 0.8 * true_step(simulate(made, 4)) / 1e3
    slow = tuple(range(1, 16, 2))
    measured = across(simulate(made, 16, [SlowHost(rank, longer_us) for rank in slow]))
    waits = {rank: dict.fromkeys(measured.replay.lateness.steps, 100_000) for rank in telling}
    [found] = [one for verdict in judge_late(measured, 1.0, waits=CoreWaits(waits)) for one in verdict.findings]
    assert (found.rule, found.severity, found.ranks) == ("TO-S003", "info", slow)
    assert claim_of(found, Slower).doubt.kind == "group_cores"


def test_ranks_that_differ_a_little_or_one_by_one_are_no_group():
    random = np.random.default_rng(7)
    alike = {rank: 1e6 + random.normal(0, 5e4, 5) for rank in range(WORLD)}
    assert apart_ranks(alike, 5e4) is None
    assert apart_ranks({rank: alike[rank] + 1e5 * rank for rank in alike}, 5e4) is None
    one = {**alike, 3: alike[3] + 1e6, 9: alike[9] + 1e6}
    assert apart_ranks(one, 5e4) is None
    most = {rank: steps + (1e6 if rank >= 12 else 0) for rank, steps in alike.items()}
    assert apart_ranks(most, 5e4) is None, "most of the ranks are what is usual"
    half = {rank: steps + (1e6 if rank % 2 else 0) for rank, steps in alike.items()}
    assert apart_ranks(half, 5e4) == (tuple(range(1, WORLD, 2)), tuple(range(0, WORLD, 2)))
    assert apart_ranks({rank: half[rank] for rank in range(7)}, 5e4) is None, "too few"


HOSTS = {rank: f"node-{rank // 8}" for rank in range(64)}


@pytest.mark.parametrize(
    ("ranks", "hosts", "said"),
    [
        (range(8, 16), HOSTS, "all ranks of node-1"),
        ((*range(8, 16), *range(24, 32)), HOSTS, "all ranks of 2 hosts: node-1, node-3"),
        (range(9, 13), HOSTS, "all on node-1"),
        (range(3, 64, 8), HOSTS, "local rank 3 of each host"),
        ((*range(3, 64, 8), *range(7, 64, 8)), HOSTS, "local ranks 3 and 7 of each host"),
        (range(1, 64, 4), dict.fromkeys(HOSTS), "every 4th rank from 1"),
        (range(0, 64, 2), dict.fromkeys(HOSTS), "every 2nd rank from 0"),
        ((1, 5, 9), dict.fromkeys(HOSTS), ""),
        ((1, 12, 40, 41, 50), HOSTS, ""),
        (range(8, 16), {**HOSTS, 3: None}, ""),
        (range(64), HOSTS, ""),
        ((3,), HOSTS, ""),
    ],
)
def test_what_ranks_have_in_common(ranks, hosts, said):
    assert shared_place(ranks, hosts) == said


DATA = Path(__file__).parents[1] / "data"


class Rank:
    """The part of a RankSummary that is compared: kernels of one step and the sizes of collectives."""

    def __init__(self, rank, kernels, all_to_alls=()):
        self.rank = rank
        self.kernels = tuple(
            KernelStats(name, "compute", count, us, 0.0, 0.0, blocks) for name, count, us, blocks in kernels
        )
        self.step_numbers = (0,)
        self.comm = self
        self.args = tuple(CommArgs("all_to_allv", own, other) for own, other in all_to_alls)


GEMM, NORM, PERSISTENT = ("gemm", 10, 8000.0, 5000), ("norm", 10, 2000.0, 900), ("nvjet", 4, 9000.0, 132)
PEERS = (GEMM, NORM, PERSISTENT)


def kind_of(own, peers=PEERS, own_sizes=(), peer_sizes=()):
    ranks = [Rank(1, peers, peer_sizes), Rank(2, peers, peer_sizes)]
    return compare_work(Rank(0, own, own_sizes), ranks)


def times(kernels, factor, blocks=1.0):
    return tuple((n, c, us * factor, round(b * blocks)) for n, c, us, b in kernels)


def test_the_same_launches_that_take_longer_are_a_slower_device():
    found = kind_of(times(PEERS, 1.3))
    assert (found.kind, found.work) == ("slower", 1.0)
    assert found.speed == pytest.approx(1.3)


def test_larger_grids_are_more_work_also_where_persistent_kernels_hide_it():
    own = (*times((GEMM, NORM), 2.0, blocks=2.0), ("nvjet", 4, 18000.0, 132))
    found = kind_of(own)
    assert (found.kind, found.work) == ("more_work", 2.0)


def test_more_launches_are_more_work():
    own = (("gemm", 20, 16000.0, 10000), NORM, PERSISTENT)
    assert kind_of(own).kind == "more_work"


def test_a_few_kernels_that_are_launched_more_often_are_no_share_of_the_work():
    """Sharing it evenly is no cure: peers launch them too, but the rest of the step is the same on all."""
    twice = (GEMM, ("norm", 20, 4000.0, 1800), PERSISTENT)
    assert kind_of(twice).kind == "more_calls"
    larger = (GEMM, ("norm", 10, 4000.0, 1800), PERSISTENT)
    assert kind_of(larger).kind == "more_work"
    everything = tuple((name, 2 * count, 2 * us, 2 * blocks) for name, count, us, blocks in PEERS)
    assert kind_of(everything).kind == "more_work"


def test_extra_products_of_a_kernel_that_the_peers_run_too():
    """A quarter of a step of 4096³ products on rank 1, with a kernel that the model's own backward uses."""
    [found] = [f for f in analyze(DATA / "slow_hsdp4").findings if f.rule == "TO-S001"]
    assert (found.ranks, found.cause, found.computes_longer) == ((1,), "gpu_compute", "more_calls")
    assert "launches some kernels more often" in found.message and "shared evenly" not in found.message
    assert "more often on this rank" in found.advice
    assert not any(e.fact is Fact.WORK_OF_ITS_PEERS for e in found.evidence)


def test_more_tokens_in_an_all_to_all_are_more_work_where_grids_tell_nothing():
    own = (("nvjet_a", 4, 27000.0, 132),)
    found = kind_of(own, (PERSISTENT,), [(100, 300), (300, 100)], [(100, 100), (100, 100)])
    assert (found.kind, found.work) == ("more_work", 3.0)


def test_slightly_more_tokens_do_not_explain_a_far_slower_device():
    found = kind_of(times(PEERS, 1.5), PEERS, [(100, 106)], [(100, 100)])
    assert found.kind == "slower"


def test_kernels_that_no_peer_runs_are_extra():
    found = kind_of((*PEERS, ("logging", 1, 9000.0, 40)))
    assert found.kind == "extra_kernels"
    assert found.alone_ms == pytest.approx(9.0)


def test_a_small_kernel_more_does_not_make_a_slow_device_a_busy_one():
    own = (*times(PEERS, 1.4), ("fill", 1, 5.0, 1))
    assert kind_of(own, (*PEERS, ("fill", 1, 2.0, 1))).kind == "slower"
    more_often = (*times(PEERS, 1.4), ("fill", 9, 18.0, 9))
    assert kind_of(more_often, (*PEERS, ("fill", 1, 2.0, 1))).kind == "slower"


def test_another_choice_of_kernel_for_the_same_work_is_not_extra_work():
    own = (GEMM, NORM, ("nvjet_other_tile", 4, 15000.0, 132))
    assert kind_of(own).kind is UNSET


def test_the_same_work_by_other_kernels_is_not_more_of_it():
    """Attention without its fused kernel: 'it has more to compute', 'work of its peers 44.27 times', was said.

    Kernels as on 2 H200 (case other_attention of `benchmarks/planted/runs.py`), where elementwise kernels that the
    model runs on activations run on matrices of scores too.
    """
    model = (("nvjet_a", 33, 23400.0, 132), ("nvjet_b", 25, 16300.0, 132), ("norm", 17, 4800.0, 17000))
    fused = (("flash_backward", 8, 2700.0, 4096), ("flash_forward", 8, 850.0, 2048))
    bmm = tuple((f"sm80_gemm_{number}", 8, 7000.0, 65536) for number in range(6))
    scores = (("softmax", 8, 10400.0, 65536), ("where", 16, 6700.0, 1 << 20))
    own = (*model, ("copy", 87, 9000.0, 6_000_000), ("add", 24, 7300.0, 5_000_000), *bmm, *scores)
    found = kind_of(own, (*model, ("copy", 55, 600.0, 140_000), ("add", 17, 900.0, 110_000), *fused))
    assert (found.kind, found.work) == ("extra_kernels", 1.0)


def test_a_part_of_the_work_that_explains_the_time_is_more_work_however_small_it_is():
    """Experts of a tenth of the step with three times the tokens."""
    peers = (("nvjet", 4, 90000.0, 132), ("expert", 8, 10000.0, 4000))
    assert kind_of((peers[0], ("expert", 8, 30000.0, 12000)), peers).kind == "more_work"


def test_nothing_is_said_without_peers_or_where_it_does_not_compute_longer():
    assert compare_work(Rank(0, PEERS), []).kind is UNSET
    assert kind_of(PEERS).kind is UNSET


def test_a_skewed_expert_is_cured_by_sharing_the_work():
    """Measured with tokens shared evenly on the same machine: 39.2 ms a step."""
    report = analyze(DATA / "expert_skew2")
    [found] = [f for f in report.findings if f.rule == "TO-S001"]
    assert (found.ranks, found.cause, found.computes_longer) == ((1,), "gpu_compute", "more_work")
    shared = next(row for row in report.what_if if row.change == "work shared evenly")
    assert shared.predicted_step_time_ms == pytest.approx(39.2, rel=0.03)
    assert found.impact_ms == pytest.approx(shared.step_time_ms - shared.predicted_step_time_ms, abs=0.01)
    assert not any(row.change == "all ranks as their median" for row in report.what_if)
    [ratio] = [e.value for e in found.evidence if e.fact is Fact.WORK_OF_ITS_PEERS]
    assert ratio == pytest.approx(3.0, abs=0.05)  # 75 % of the tokens against 25 %
    assert "clocks" not in found.advice


def test_extra_products_on_one_gpu_are_kernels_that_its_peers_do_not_run():
    [found] = [f for f in analyze(DATA / "slow_gpu4").findings if f.rule == "TO-S001"]
    assert (found.ranks, found.cause, found.computes_longer) == ((2,), "gpu_compute", "extra_kernels")


def test_a_rank_that_waits_for_input_computes_no_longer():
    [found] = [f for f in analyze(DATA / "slow_loader4").findings if f.rule == "TO-S001"]
    assert found.computes_longer is UNSET
    assert replace(found, cause="input") == found


def rank(*kernels: tuple[str, int, float], steps: int = 2) -> Any:
    """A rank whose kernels (name, blocks a launch, µs) run once a step."""
    rows = [
        SimpleNamespace(name=name, kind="compute", count=steps, blocks=blocks * steps, total_us=us * steps)
        for name, blocks, us in kernels
    ]
    return SimpleNamespace(kernels=rows, step_numbers=range(steps))


def test_all_work_goes_at_the_pace_of_the_rank_whose_sizes_suit_best() -> None:
    # Shares 0.5 and 1.5 of the work: 120 µs for half a share, 300 for one and a half.
    light = rank(("gelu", 100, 20.0), ("small_matrices", 132, 100.0))
    heavy = rank(("gelu", 300, 60.0), ("large_matrices", 132, 240.0))
    assert best_pace([light, heavy], [0.0, 0.0]) == pytest.approx(200.0 / 210.0)
    assert best_pace([heavy, heavy], [0.0, 0.0]) == 1.0


def test_what_is_not_shared_is_left_out_and_much_of_it_tells_nothing() -> None:
    optimizer, attention = ("adam", 50, 10.0), ("attention", 500, 200.0)
    light, heavy = (("gelu", 100, 20.0), ("m", 132, 100.0)), (("gelu", 300, 60.0), ("n", 132, 240.0))
    assert best_pace([rank(*light, optimizer), rank(*heavy, optimizer)], [0.0, 0.0]) == pytest.approx(210.0 / 220.0)
    assert best_pace([rank(*light, attention), rank(*heavy, attention)], [0.0, 0.0]) == 1.0


def test_kernels_that_disagree_on_the_share_tell_nothing() -> None:
    light = rank(("gelu", 100, 20.0), ("norm", 100, 20.0))
    heavy = rank(("gelu", 300, 60.0), ("norm", 120, 24.0))
    assert best_pace([light, heavy], [0.0, 0.0]) == 1.0
