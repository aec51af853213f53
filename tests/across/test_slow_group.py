"""Many ranks that are slow alike are found as one group, with what they have in common, what it costs, and why."""

import numpy as np
import pytest
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

from traceops.across.run_use import CoreWaits
from traceops.across.slow_group import apart_ranks
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.lead import cure_of, late_together, lead_finding
from traceops.rules.stragglers import judge_late
from traceops.rules.stragglers_claims import Late, Slower, shared_place

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
    assert card_of(report).headline == "8 of 16 ranks are late, and the others wait for them"
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
