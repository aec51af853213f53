"""Whether a rank that computes longer is slower, or has more to do, and how efficiently shared work may run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from changed import replace
from msgspec import UNSET

from traceops.across.stragglers import best_pace
from traceops.across.work import compare_work
from traceops.core.facts import Fact
from traceops.measure.inventory import KernelStats
from traceops.pipeline.analyze import analyze
from traceops.traces.model import CommArgs

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
