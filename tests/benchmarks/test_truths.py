"""The truths that benchmarks hold reports to, and their scorers, on reports and steps made by hand."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks import ROOT
from benchmarks.hangs import ras_faults
from benchmarks.observed.table import table
from benchmarks.observed.truth import device_of, is_divided, is_plain, shares_of
from benchmarks.observed_ranks.turns import ONE_RANK, RANKS, folder_of
from benchmarks.observed_ranks.turns_table import blocks_of, ratios, spread, step_of
from benchmarks.planted.cases import BY_NAME, CASES, HEALTHY, QUIET, expectation, rank_of
from benchmarks.planted.pack import pack, share_out, unpack
from benchmarks.planted.score import Score, confusion, markdown, score, totals
from traceops.core.rank_files import KERNEL, LIGHT_LOG_FIELDS, MEMCPY

WORLD, LATE_STEP = 4, 15


def truth(case: str) -> dict[str, Any]:
    return {"case": case, "world": WORLD, "shift": 0, "late_step": LATE_STEP}


def finding(rule: str, severity: str = "warning", ranks: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    defaults = {"cause": None, "steps": [], "impact_ms": 20.0}
    return {"rule": rule, "severity": severity, "ranks": list(ranks), **defaults, **more}


def report(
    *findings: dict[str, Any], step_ms: float = 100.0, what_if: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    summary = {"step_time_ms": {"median": step_ms}}
    return {"summary": summary, "findings": list(findings), "what_if": what_if or [], "checks": []}


def without(rank: int, predicted_ms: float) -> list[dict[str, Any]]:
    change = f"rank {rank} as fast as its peers"
    return [{"change": change, "ranks": [rank], "predicted_step_time_ms": predicted_ms}]


def score_one(case: str, this: dict[str, Any] | None, healthy_ms: float = 100.0) -> Score:
    """The score of `case`, beside a healthy run of its strategy."""
    healthy = HEALTHY[BY_NAME[case].strategy]
    reports = {healthy: report(step_ms=healthy_ms)}
    if this is not None:
        reports[case] = this
    return score({case: truth(case)}, reports)[0]


def test_found() -> None:
    straggler = finding("TO-S001", "error", (2,), cause="gpu_compute")
    result = score_one("slow_gpu", report(straggler, step_ms=125.0, what_if=without(2, 103.0)))
    assert result.ok
    assert result.pairs == (("gpu_compute", "gpu_compute"),)
    assert result.cost_ms == pytest.approx(25.0)
    assert result.what_if_error_pct == pytest.approx(3.0)


def test_missed() -> None:
    result = score_one("slow_gpu", report(finding("TO-O001")))
    assert not result.ok
    assert "rank 2 missed" in result.problems
    assert result.pairs == (("gpu_compute", "none"),)


def test_wrong_cause() -> None:
    straggler = finding("TO-S001", ranks=(2,), cause="host")
    result = score_one("slow_gpu", report(straggler, what_if=without(2, 100.0)))
    assert result.problems == ("rank 2: host instead of gpu_compute",)
    assert result.pairs == (("gpu_compute", "host"),)


def test_wrong_rank_is_a_miss_and_a_false_alarm_whatever_its_severity() -> None:
    result = score_one("slow_gpu", report(finding("TO-S001", "info", (1,), cause="host")))
    assert result.pairs == (("gpu_compute", "none"), ("none", "host"))
    assert any("false alarm" in problem for problem in result.problems)


def test_one_finding_that_names_an_innocent_rank_as_well() -> None:
    straggler = finding("TO-S001", ranks=(1, 2), cause="gpu_compute")
    result = score_one("slow_gpu", report(straggler, what_if=without(2, 100.0)))
    assert result.pairs == (("gpu_compute", "gpu_compute"), ("none", "gpu_compute"))
    assert not result.ok


@pytest.mark.parametrize("rule", QUIET)
def test_false_alarm_in_a_healthy_run(rule: str) -> None:
    assert score_one("healthy_ddp", report(finding(rule, "info"))).ok
    result = score_one("healthy_ddp", report(finding(rule, "warning")))
    assert not result.ok
    assert result.pairs[0][0] == "none" != result.pairs[0][1]


def test_healthy_run_may_have_findings_that_are_true() -> None:
    result = score_one("healthy_ddp", report(finding("TO-O001", "error"), finding("TO-I001")))
    assert result.ok
    assert result.pairs == (("none", "none"),)


def test_fault_too_small_to_be_reported() -> None:
    assert score_one("slow_gpu_small", report(finding("TO-S001", "info", (3,), cause="gpu_compute"))).ok
    assert not score_one("slow_gpu_small", report(finding("TO-S001", "info", (1,)))).ok
    result = score_one("slow_gpu_small", report(finding("TO-S001", "warning", (3,), cause="gpu_compute")))
    assert result.pairs == (("none", "gpu_compute"),)


def test_late_step_needs_its_rule_and_its_step() -> None:
    def late(rule: str, steps: list[int]) -> tuple[str, ...]:
        return score_one("late_step", report(finding(rule, ranks=(1,), cause="gpu_compute", steps=steps))).problems

    assert late("TO-S002", [LATE_STEP]) == ()
    assert late("TO-S002", [LATE_STEP - 1]) == ("rank 1: steps [14] without step 15",)
    assert "TO-S001 instead of TO-S002" in late("TO-S001", [LATE_STEP])[0]


def test_two_stragglers_in_one_finding_or_in_two() -> None:
    both = finding("TO-S001", ranks=(1, 3), cause="gpu_compute")
    assert score_one("two_slow", report(both)).ok
    mixed = (finding("TO-S001", ranks=(0,), cause="gpu_compute"), finding("TO-S001", ranks=(2,), cause="input"))
    assert score_one("two_slow_mixed", report(*mixed)).pairs == (("gpu_compute", "gpu_compute"), ("input", "input"))
    assert not score_one("two_slow_mixed", report(mixed[0])).ok


def test_rule_that_must_fire() -> None:
    assert score_one("sockets", report(finding("TO-C001", "error"))).pairs == (("other", "other"),)
    result = score_one("sockets", report(finding("TO-C002", "error")))
    assert result.pairs == (("other", "none"), ("none", "other"))
    assert "TO-C001 missed" in result.problems


def test_what_if_that_is_off_or_absent() -> None:
    straggler = finding("TO-S001", ranks=(2,), cause="gpu_compute")
    assert score_one("slow_gpu", report(straggler, what_if=without(2, 115.0))).problems == ("what-if off by +15 %",)
    assert score_one("slow_gpu", report(straggler, what_if=without(1, 100.0))).problems == ("no what-if",)


def test_what_if_beside_a_fault_that_its_cure_leaves_is_not_compared_with_the_healthy_run() -> None:
    input_of_all = finding("TO-I002", cause="input")
    straggler = finding("TO-S001", ranks=(1,), cause="gpu_compute")
    result = score_one("starved_slow", report(straggler, input_of_all, what_if=without(1, 130.0)))
    assert result.ok
    assert result.what_if_error_pct is None


def test_case_without_a_report() -> None:
    result = score_one("slow_gpu", None)
    assert not result.ok
    assert result.pairs == (("gpu_compute", "none"),)


def test_matrix_and_totals() -> None:
    scores = [
        score_one("healthy_ddp", report(finding("TO-S001", ranks=(3,), cause="odd"))),
        score_one("slow_gpu", report()),
        score_one("slow_host", report(finding("TO-S001", ranks=(3,), cause="input"))),
        score_one("sockets", report(finding("TO-C001"))),
    ]
    matrix = confusion(scores)
    assert (matrix["none"]["unknown"], matrix["gpu_compute"]["none"], matrix["host"]["input"]) == (1, 1, 1)
    assert totals(scores) == {
        "cases": 4, "ok": 1, "planted": 3, "found": 1, "missed": 1, "wrong_cause": 1, "false_alarms": 1
    }  # fmt: skip
    assert "| gpu_compute | 1 | 0 | 0 | 0 | 0 | 0 | 0 |" in markdown(scores)


def test_registry_is_consistent() -> None:
    assert set(HEALTHY) == {case.strategy for case in CASES}
    for world in (2, 4, 8, 16):
        for case in CASES:
            single = [(plant.kind, rank_of(plant, world, shift=1)) for plant in case.plants]
            expected = expectation(case, world, 1, LATE_STEP)
            if world >= case.min_world:
                assert len(set(single)) == len(single)
                assert len(set(expected.ranks)) == len(expected.ranks) < world
                assert not set(expected.rules) & set(expected.quiet)


def test_share_out_fills_tars_in_order_of_priority() -> None:
    sizes = {Path(name): size for name, size in (("a", 6), ("b", 5), ("c", 4), ("d", 11), ("e", 5), ("f", 1))}
    bins, left_out = share_out(sizes, bins=2, bin_bytes=10, total_bytes=18)
    assert [[case.name for case in members] for members in bins] == [["a", "c"], ["b", "f"]]
    assert [case.name for case in left_out] == ["d", "e"]


def test_packed_runs_come_back_as_they_were(tmp_path: Path) -> None:
    case = tmp_path / "made" / "slow_gpu"
    trace = case / "rank_0" / "host.pt.trace.json.gz"
    trace.parent.mkdir(parents=True)
    trace.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    (case / "truth.json").write_text("{}")
    (case / ".lock").touch()
    assert pack([case], tmp_path / "packed", tars=2, tar_mb=1, total_mb=1) == []
    unpack((tmp_path / "packed").glob("*.tar"), tmp_path / "back")
    back = tmp_path / "back" / "slow_gpu"
    assert gzip.decompress((back / "rank_0" / trace.name).read_bytes()) == b'{"traceEvents": []}'
    assert sorted(f.name for f in back.iterdir()) == ["rank_0", "truth.json"]


def test_a_fault_that_its_twin_shows_to_cost_nothing_need_not_be_told() -> None:
    """49 all-reduces of 1 MB beside backward: the rule is silent, and rightly so."""
    truths = {name: truth(name) for name in ("usual_buckets", "tiny_buckets")}
    for step_ms, ok in ((100.5, True), (125.0, False)):
        reports = {"usual_buckets": report(step_ms=100.0), "tiny_buckets": report(step_ms=step_ms)}
        found = score(truths, reports)[1]
        assert (found.ok, found.cost_ms) == (ok, pytest.approx(step_ms - 100.0))


def test_the_cost_of_slow_links_is_that_beside_the_same_model_with_fast_ones() -> None:
    found = score_one("no_p2p", report(finding("TO-C001", "error"), step_ms=140.0))
    assert found.ok and found.cost_ms == pytest.approx(40.0) and found.what_if_error_pct is None


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


@pytest.fixture(scope="module")
def site():
    path = ROOT / "benchmarks/observed/site/sitecustomize.py"
    spec = importlib.util.spec_from_file_location("site_of_observed", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:  # it runs the next sitecustomize too: not that without a compiler
        patch.setattr(sys, "path", [folder for folder in sys.path if Path(folder).name != "light_torch"])
        spec.loader.exec_module(module)
    return module


def test_jobs_step_in_turn_and_every_other_round_in_the_other_order(site, tmp_path):
    jobs, ranks, block, rounds = 3, 2, 2, 3
    shared = tmp_path / "turns"
    shared.write_bytes(bytes(jobs * ranks))
    seen: list[int] = []

    def trains(job: int, rank: int) -> None:
        turns = site._Turns(f"{shared}:{job}:{jobs}:{ranks}:{block}:{rounds}", rank)
        for step in range(1, 2 + block * rounds):
            if step > 1:
                seen.append(job)
            turns.step(step, int)
        assert not turns.late

    threads = [threading.Thread(target=trains, args=(job, rank)) for job in range(jobs) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    turn = block * ranks
    assert seen == [job for order in ((0, 1, 2), (2, 1, 0), (0, 1, 2)) for job in order for _ in range(turn)]


def test_nobody_waits_for_a_job_that_has_ended(site, tmp_path):
    shared = tmp_path / "turns"
    shared.write_bytes(bytes([0, 255]))
    turns = site._Turns(f"{shared}:0:2:1:2:3", 0)
    for step in range(1, 8):
        turns.step(step, int)
    assert not turns.late and shared.read_bytes()[0] == 4


def test_a_block_is_its_mean_step_without_what_comes_right_behind_a_turn_and_what_cupti_recorded(tmp_path):
    """Two rounds of 24 steps behind the first; round 2 has an odd step, and CUPTI records from step 40 on."""
    steps = [900.0] + [10.0] * 47  # of steps 2 to 49
    steps[24] = 5000.0  # step 26: it stood before
    steps[30] = 80.0  # step 32
    steps[38:] = [300.0] * 10
    told = {"device_ms": steps, "host_ms": [], "turns": [24, 2, False]}
    told["windows"] = [{"first": 39, "last": 49}]
    for rank in range(2):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(told))
    blocks = blocks_of(tmp_path)
    assert blocks == pytest.approx([10.0, 10.0])
    assert step_of([99.0, 10.0, 12.0, 14.0]) == 12.0
    assert spread(ratios([1, 10.0, 12.0], [1, 10.0, 10.0])) == "1.10 (1.00 to 1.20)"


def test_each_job_has_a_folder_and_each_program_is_there(tmp_path):
    for turn in (*RANKS, *ONE_RANK):
        assert (ROOT / "benchmarks" / turn.path).exists()
        assert len({folder_of(turn, job, tmp_path) for job in turn.jobs}) == turn.alone + turn.traced
    assert folder_of(RANKS[0], "alone1+A=1", tmp_path).name == "tensor_parallel.alone1_A_1"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_other_rank_is_named_and_a_healthy_job_is_quiet(tmp_path: Path, form: ras_faults.Form) -> None:
    told = {job: ras_faults.verdict(job, ras_faults.named(job, form, tmp_path)) for job in ras_faults.jobs()}
    assert "wrong" not in told.values() and sum(ras_faults.JOBS.values()) == 76 + 8
    for job, verdict in told.items():
        pair = job.fault == "op" and job.ranks == 2  # each is ahead of the other in one operation
        tells = job.fault not in ("size", "gpu", "init") and not pair
        assert verdict == ("right" if tells else "open"), job


# The pairs of benchmarks/compute: what they cover, and how truths follow from what was measured.


PROGRAMS = Path(__file__).resolve().parents[2] / "benchmarks" / "compute" / "programs"
CAUSES = {
    "float32_products",
    "float32_training",
    "float64",
    "unfused_attention",
    "masked_attention",
    "misaligned_shape",
    "channels_first_layout",
    "layout_copies",
    "unfused_elementwise",
    "optimizer_loop",
    "many_small_kernels",
    "slice_gradients",
    "one_hot_product",
    "recompute_with_free_memory",
    "redundant_casts",
    "repeated_kv",
    "scatter_or_sort",
    "dense_embedding_gradient",
    "concat_growth",
    "large_float_logits",
    "too_small_batch",
    "low_occupancy",
    "bandwidth_bound_at_limit",
    "below_attainable",
    "none",
}
OWN = ("answering", "case", "cases", "lean", "loops", "measured", "packing", "parts", "tuned", "zoo")


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `cases` and `measured`, imported as the programs import them."""
    pytest.importorskip("torch")
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(PROGRAMS))
    patch.setenv("DEVICE", "cpu")
    patch.setenv("SMALL", "1")
    yield importlib.import_module("cases"), importlib.import_module("measured")
    patch.undo()
    for name in OWN:
        sys.modules.pop(name, None)


@pytest.mark.torch
def test_pairs_cover_what_was_asked(programs: tuple[ModuleType, ModuleType]) -> None:
    cases = programs[0].CASES.values()
    pairs = [case for case in cases if not case.clean]
    assert len(pairs) >= 32
    assert sum(case.group == "inference" for case in pairs) >= 10
    assert sum(case.clean for case in cases) >= 20
    assert {label for case in cases for label in case.labels} <= CAUSES


@pytest.mark.torch
def test_half_of_the_pairs_are_set_aside_by_name(programs: tuple[ModuleType, ModuleType]) -> None:
    case = importlib.import_module("case")
    pairs = [c.name for c in programs[0].CASES.values() if not c.clean]
    kept = {name for name in pairs if case.set_aside(name)}
    assert 0.35 < len(kept) / len(pairs) < 0.65
    assert {"features_1177", "pyg_sage_scatter"} <= kept
    assert "rms_norm_by_hand" not in kept


@pytest.mark.torch
def test_a_packed_trace_is_what_was_written(programs: tuple[ModuleType, ModuleType]) -> None:
    packing = importlib.import_module("packing")
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm_64x07_1e-05",
        "ts": 1700.042,
        "dur": 0.5,
        "args": {"grid": [1, -2]},
    }
    events = [kernel, {**kernel, "ts": 3.25, "args": {"grid": [30, 0]}}, {"ph": "s", "cat": "ac2g", "id": 3}, kernel]
    trace = {"schemaVersion": 1, "traceEvents": list(events)}
    assert packing.unpack(packing.pack(trace)) == {"schemaVersion": 1, "traceEvents": [kernel, events[1], kernel]}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("sick", "fixed", "promised", "none"),
    [
        ((30.689, 30.679), (6.103, 5.845), [5.26, 6.71], False),
        ((17.753, 17.744), (18.284, 18.019), [16.86, 19.2], True),
        ((25.942, 22.79), (15.437, 26.13), [21.65, 27.44], True),
        ((2.953, 2.949), (2.367, 2.334), [2.1, 2.6], False),
    ],
)
def test_promises_follow_from_the_steps_measured(
    programs: tuple[ModuleType, ModuleType],
    sick: tuple[float, float],
    fixed: tuple[float, float],
    promised: list[float],
    none: bool,
) -> None:
    measured = programs[1]
    was, becomes = (measured.Measured(*steps, 1.0, 10.0, 1.0) for steps in (sick, fixed))
    found, no_promise = measured.promises(was, becomes)
    assert found == pytest.approx(promised, abs=0.011)
    assert no_promise is none


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["slots_by_slices", "cache_grown_and_repeated_two", "graphed_requests_of_one", "features_1177", "tuned_products"],
)
def test_sick_and_fixed_programs_step(programs: tuple[ModuleType, ModuleType], name: str) -> None:
    case = programs[0].CASES[name]
    for sick in (True, False):
        step = programs[1].make(case, sick)
        assert programs[1].milliseconds(step) > 0
