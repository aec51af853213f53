"""Many ranks that are slow alike are found as one group, with what they have in common, what it costs, and why."""

from types import SimpleNamespace

import numpy as np
import pytest
from generated_run import SlowCompute, SlowInput, ddp, fsdp2, simulate, step_time
from measured_runs import across, program, true_step

from traceops.across.slow_group import apart_ranks
from traceops.core.shared_place import shared_place
from traceops.render.report.stragglers import group_clause
from traceops.rules.stragglers import judge_late

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
    assert [e.value for e in found.evidence if e.metric == "in common"] == ([place] if place else [])
    assert f"12 of {WORLD} ranks ({place}" in found.message


def test_one_rank_that_is_slower_than_its_group_is_told():
    """Eight ranks 0.8 ms late and one 2.5 ms were '9 of 32 ranks take 0.82 ms longer', and nobody was the worst."""
    made = program(ddp, steps=4, layers=2)
    step = true_step(simulate(made, WORLD)) / 1e3
    late = [SlowCompute(rank, extra_us=(1.5 if rank == 20 else 0.5) * step) for rank in (*range(8, 16), 20)]
    verdicts = judge_late(across(simulate(made, WORLD, late)), 1.0)
    [found] = [one for verdict in verdicts for one in verdict.findings]
    assert found.rule == "TO-S003" and found.ranks == (*range(8, 16), 20)
    assert [(e.value, e.rank) for e in found.evidence if e.metric == "longest of them"] == [(2.452, 20)]
    summary = SimpleNamespace(step_time_ms=SimpleNamespace(typical=4.09))
    assert ", most of all rank 20: their" in group_clause(
        SimpleNamespace(ranks=(), what_if=(), summary=summary), found
    )
    assert "take 0.81 to 2.45 ms a step longer than the others, most of all rank 20:" in found.message


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
