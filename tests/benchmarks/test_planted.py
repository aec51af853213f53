"""The scorer of benchmarks/planted/runs.py, on reports made by hand."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planted.cases import BY_NAME, CASES, HEALTHY, QUIET, expectation, rank_of
from benchmarks.planted.pack import pack, share_out, unpack
from benchmarks.planted.score import Score, confusion, markdown, score, totals

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
