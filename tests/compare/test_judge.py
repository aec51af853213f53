"""Which changes are regressions, which are open, what the verdict makes of them, and the settings that decide it."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison_reports import edited, made

from traceops.compare import ComparedCapture, compare
from traceops.compare.config import CompareConfig, load_config, with_thresholds
from traceops.compare.model import Comparison, MetricChange, Samples, Waiver
from traceops.compare.statistics import rounds_of
from traceops.core.errors import UsageError

NOISE = np.random.default_rng(7).normal(0.0, 0.2, 64)
QUIET = CompareConfig(launch_noise_pct=0.3)


def steps(level: float, n: int = 12) -> list[float]:
    return [level * (1 + NOISE[i] / 100) for i in range(n)]


def row(result: Comparison, name: str) -> MetricChange:
    return next(metric for metric in result.metrics if metric.metric == name)


@pytest.mark.parametrize(
    ("head", "verdict"),
    [(100.0, "no_regression"), (102.0, "no_regression"), (108.0, "regression"), (90.0, "improvement")],
)
def test_size_and_certainty_decide(head: float, verdict: str) -> None:
    result = compare([made(steps(100.0))], [made(steps(head), at=1)], QUIET)
    assert result.verdict == verdict
    step = row(result, "step_time")
    assert step.change_pct == pytest.approx(head - 100, abs=0.3)
    assert step.low_pct is not None and step.high_pct is not None
    assert step.low_pct < head - 100 + 0.3 and step.high_pct > head - 100 - 0.3


def test_a_certain_change_below_the_threshold_is_no_regression_and_said() -> None:
    step = row(compare([made(steps(100.0))], [made(steps(103.0), at=1)], QUIET), "step_time")
    assert (step.outcome, step.reason) == ("unchanged", "worse for certain, but by less than 5 %")


def test_what_stays_the_same_has_no_sign() -> None:
    sides = [made(steps(100.0), at=60.0 * number) for number in range(6)]
    sentence = compare(sides[::2], sides[1::2], CompareConfig()).sentence
    assert sentence.startswith("No regression: ") and "0.0 %" in sentence
    assert "-0.0" not in sentence and "+0.0" not in sentence


def test_a_large_change_within_noise_is_open() -> None:
    config = CompareConfig(launch_noise_pct=5.0)
    result = compare([made(steps(100.0))], [made(steps(107.0), at=1)], config)
    assert result.verdict == "inconclusive" and not result.findings
    assert row(result, "step_time").reason == "beyond the threshold, but so is noise"
    assert result.launch_noise_pct == 5.0 and "repeat" in result.sentence


def test_no_change_within_too_much_noise_is_open_too() -> None:
    result = compare([made(steps(100.0))], [made(steps(100.0), at=1)], CompareConfig(launch_noise_pct=6.0))
    assert result.verdict == "inconclusive"
    assert "cannot be ruled out" in row(result, "step_time").reason


@pytest.mark.parametrize(("unprofiled", "profiled", "known"), [(5, 5, False), (5, 6, True), (6, 2, True)])
def test_six_steps_a_side(unprofiled: int, profiled: int, known: bool) -> None:
    base, head = (made(steps(100.0 * f, unprofiled), steps(100.0 * f, profiled), at=f) for f in (1.0, 1.3))
    result = compare([base], [head], QUIET)
    assert (result.verdict == "regression") is known
    if not known:
        assert "6 needed" in result.sentence and result.checks[0].status == "not_evaluated"


def test_unprofiled_steps_are_what_counts_where_there_are_enough() -> None:
    base = made(steps(80.0), steps(100.0))
    head = made(steps(80.0), steps(130.0), at=1)  # the profiler alone got dearer
    result = compare([base], [head], QUIET)
    assert result.verdict == "no_regression"
    profiled = row(result, "profiled_step_time")
    assert profiled.change_pct == pytest.approx(30, abs=0.5) and profiled.outcome == "informative"


def test_steps_behind_a_window_are_none_without_the_profiler() -> None:
    """CUPTI slows hosts there, and does not where it was ended: the head of the same training was called faster."""

    def windows(report):
        for one in report["unprofiled_steps"]:
            one["behind_window"] = one["index"] >= 6

    base = edited(made([*steps(80.0, 6), *steps(96.0, 12)], steps(100.0)), windows)
    head = edited(made(steps(80.0, 18), steps(100.0), at=1), windows)
    result = compare([base], [head], QUIET)
    assert result.verdict == "no_regression" and row(result, "step_time").change_pct == pytest.approx(0, abs=0.5)
    assert base.info.unprofiled_steps == 6


def test_throughput_counts_what_outliers_cost() -> None:
    slow = [*steps(100.0, 12)]
    for at in range(0, 12, 3):
        slow[at] = 160.0
    result = compare([made(steps(100.0))], [made(slow, at=1)], QUIET)
    assert row(result, "step_time").change_pct == pytest.approx(0, abs=0.3)
    throughput = row(result, "throughput")
    assert throughput.base == pytest.approx(80, rel=0.01) and throughput.head == pytest.approx(66.7, rel=0.02)
    named = [step for step in result.outliers if not step.profiled]
    assert [step.step for step in named] == [0, 3, 6, 9] and {step.side for step in named} == {"head"}


@pytest.mark.parametrize(
    ("counts", "peak", "worse"),
    [
        ({}, 10**9, []),
        ({}, int(1.2e9), []),  # of one launch: it may peak higher by chance
        ({"collective_bytes": 2 * 10**8}, 10**9, ["collective_bytes"]),
        ({"collective_bytes": None}, 10**9, []),
        ({"collectives": 30}, 10**9, []),  # the step time is known not to be worse
    ],
)
def test_exact_gates(counts: dict[str, int | None], peak: int, worse: list[str]) -> None:
    result = compare([made(steps(100.0))], [made(steps(100.0), at=1, counts=counts, peak=peak)], QUIET)
    assert [m.metric for m in result.metrics if m.outcome == "regression"] == worse
    assert result.verdict == ("regression" if worse else "no_regression")


@pytest.mark.parametrize(("peaks", "worse"), [((12, 12), True), ((10, 12), False), ((10.4, 10.4), False)])
def test_peak_memory_takes_two_launches_that_agree(peaks: tuple[float, float], worse: bool) -> None:
    base = [made(steps(100.0), at=at, peak=10**10) for at in (0, 2)]
    head = [made(steps(100.0), at=at, peak=int(peak * 1e9)) for at, peak in zip((1, 3), peaks, strict=True)]
    assert (row(compare(base, head, QUIET), "peak_memory").outcome == "regression") is worse
    one = row(compare(base[:1], head[1:], QUIET), "peak_memory")
    assert one.outcome == ("inconclusive" if peaks[1] > 10.5 else "unchanged")


def test_memory_that_could_not_be_judged_is_not_kept_quiet() -> None:
    result = compare([made(steps(100.0))], [made(steps(100.0), at=1, peak=2 * 10**9)], QUIET)
    assert result.verdict == "no_regression" and "Open: peak memory (+100.0 %)" in result.sentence


def test_slower_below_the_limit_is_said_first() -> None:
    result = compare([made(steps(100.0))], [made(steps(103.0), at=1)], QUIET)
    assert result.sentence.startswith("Slower for certain, but below the limit of 5 %: step time ")


def test_counts_stand_in_for_a_time_that_could_not_be_measured() -> None:
    result = compare([made(profiled=steps(100, 3))],
                     [made(profiled=steps(100, 3), at=1, counts={"collectives": 30})], QUIET)  # fmt: skip
    assert result.verdict == "regression" and row(result, "collectives").outcome == "regression"
    assert result.sentence.startswith("Regression: collectives per step 10 → 30 (+200.0 %)")


def test_a_threshold_set_for_a_count_holds_whatever_the_time_says() -> None:
    config = CompareConfig(launch_noise_pct=0.3, thresholds={"collectives": 10.0})
    result = compare([made(steps(100.0))], [made(steps(100.0), at=1, counts={"collectives": 30})], config)
    assert row(result, "collectives").outcome == "regression"


def test_a_count_that_varies_as_much_by_itself_is_no_change() -> None:

    def vary(report: dict[str, Any]) -> None:
        for number, step in enumerate(report["steps"]):
            step["kernels"] = 500 + 200 * (number % 2)

    base = edited(made(steps(100.0)), vary)
    head = made(profiled=steps(100, 3), at=1, counts={"kernels": 690})
    kernels = row(compare([base], [head], QUIET), "kernels")
    assert (kernels.outcome, kernels.reason) == ("inconclusive", "it varies from step to step by as much")


def of_steps(at: float, counts: list[int]) -> ComparedCapture:
    """A capture whose steps have these numbers of collectives, and too few of them to say more."""

    def count(report: dict[str, Any]) -> None:
        for step in report["steps"]:
            step["collectives"] = counts[step["step"] - 10]

    return edited(made(profiled=[100.0] * len(counts), at=at), count)


def judged(base: list[int], head: list[int]) -> str:
    config = CompareConfig(launch_noise_pct=0.3, thresholds={"collectives": 10.0})
    return row(compare([of_steps(0, base)], [of_steps(1, head)], config), "collectives").outcome


def test_counts_that_alternate_are_compared_step_by_step() -> None:
    assert judged([0, 0, 0, 25], [25, 25, 25, 25]) == "regression"  # no_sync() forgotten
    assert judged([0, 0, 0, 25], [0, 0, 0, 25]) == "unchanged"
    assert judged([0, 0, 0, 25], [0, 0, 0, 50]) == "inconclusive"  # never 'the same'
    assert judged([14, 10, 10, 10], [10, 10, 10, 14]) == "unchanged"
    assert judged([14, 10, 10, 10], [13, 13, 13, 13]) == "regression"  # one odd first step hides nothing


def test_a_faster_step_excuses_its_counts() -> None:
    slower, faster = (made(profiled=steps(level, 3), at=n, counts={"collectives": c})
                      for n, (level, c) in enumerate(((100, 10), (70, 30))))  # fmt: skip
    assert compare([slower], [faster], QUIET).verdict == "inconclusive"
    bytes_too = made(steps(60), at=1, counts={"collective_bytes": 3 * 10**8})
    assert compare([made(steps(100))], [bytes_too], QUIET).verdict == "improvement"


def test_a_certain_slowdown_whose_interval_reaches_the_threshold_is_open() -> None:
    base, head = made(steps(100.0)), made(steps(104.0), at=1)
    step = row(compare([base], [head], CompareConfig(launch_noise_pct=0.7)), "step_time")
    assert step.p is not None and step.p < 0.05
    assert step.outcome == "inconclusive" and step.reason.startswith("worse, and up to")


def test_what_would_have_been_found_would_have_been() -> None:
    rng = np.random.default_rng(11)

    def side(level: float, at: int) -> list[ComparedCapture]:
        return [made([level * (1 + x) for x in rng.normal(rng.normal(0, 0.004), 0.004, 8)], at=10 * k + at)
                for k in range(4)]  # fmt: skip

    config = CompareConfig(thresholds={"throughput": None})
    printed = [row(compare(side(100, 0), side(100, 5), config), "step_time").mde_pct or 0 for _ in range(20)]
    size = float(np.median(printed))
    assert 5.0 < size < 7.0  # it must lie beyond the threshold of 5 % as well
    found = [compare(side(100, 0), side(100 + size, 5), config).verdict == "regression" for _ in range(40)]
    assert sum(found) >= 32


def test_throughput_follows_the_step_time_unless_set() -> None:
    base, head = made(steps(100.0)), made(steps(110.0), at=1)
    for thresholds, verdict in (({"step_time": 20.0}, "no_regression"), ({"step_time": None}, "no_regression"),
                                ({"step_time": 20.0, "throughput": 5.0}, "regression")):  # fmt: skip
        config = CompareConfig(launch_noise_pct=0.3, thresholds=thresholds)  # type: ignore[arg-type]
        result = compare([base], [head], config)
        assert result.verdict == verdict
        assert ("which the step time is not" in result.sentence) is (thresholds["step_time"] is None)
    waiver = Waiver("step_time", "known", date(2099, 1, 1))
    assert compare([base], [head], CompareConfig(launch_noise_pct=0.3, waivers=(waiver,))).verdict == "no_regression"


def test_ranks_that_one_side_lacks_are_left_out_and_said() -> None:

    def only_rank_0(report: dict[str, Any]) -> None:
        for table in ("steps", "unprofiled_steps", "ranks"):
            report[table] = [r for r in report[table] if r["rank"] == 0]

    def more_on_others(report: dict[str, Any]) -> None:
        for step in report["steps"]:
            step["kernels"] = 500 if step["rank"] == 0 else 900

    base, head = edited(made(steps(100.0)), more_on_others), edited(made(steps(100.0), at=1), only_rank_0)
    result = compare([base], [head], QUIET)
    assert row(result, "kernels").reason == "the same"
    assert "compared on rank 0, the ranks with a trace in every capture" in result.notes


def test_a_number_that_one_rank_does_not_know_is_not_known() -> None:

    def forget(report: dict[str, Any]) -> None:
        for step in report["steps"]:
            step["collective_bytes"] = None if step["rank"] == 0 else 3 * 10**8

    head = edited(made(steps(100.0), at=1), forget)
    nbytes = row(compare([made(steps(100.0))], [head], QUIET), "collective_bytes")
    assert nbytes.outcome == "informative" and nbytes.reason == "not known for head"


def test_sides_that_were_not_taken_in_turn_get_no_tighter_than_launches_differ() -> None:
    sides = [[made([level + x for x in NOISE[:8]], at=10 * side + k) for k in range(4)]
             for side, level in enumerate((100.0, 102.0))]  # fmt: skip
    result = compare(*sides, CompareConfig(launch_noise_pct=1.5))
    assert any("not taken in turn" in warning for warning in result.warnings)
    step = row(result, "step_time")
    assert step.low_pct is not None and step.high_pct is not None and step.high_pct - step.low_pct > 6.0


def test_pairs_of_which_one_lacks_a_number_are_left_out_together() -> None:
    base = [made(steps(100.0), at=10 * k) for k in range(6)]
    head = [made(steps(106.0), at=10 * k + 5, samples_per_step=8 if k else None) for k in range(6)]
    assert row(compare(base, head, QUIET), "throughput").samples == Samples(72, 60)
    for known in (5, 4, 1):
        some = [made(steps(106.0) if k < known else [], at=10 * k + 5) for k in range(6)]
        assert compare(base, some, QUIET).verdict == "regression"


def test_waivers_cover_what_they_say_until_their_day() -> None:
    base, head = made(steps(100.0)), made(steps(110.0), at=1)

    def verdict(limit: float | None, today: date) -> Comparison:
        waiver = Waiver("step_time", "the new loss", date(2026, 12, 31), limit)
        config = CompareConfig(launch_noise_pct=0.3, waivers=(waiver,), thresholds={"throughput": None})
        return compare([base], [head], config, today=today)

    accepted = verdict(None, date(2026, 12, 31))
    assert accepted.verdict == "no_regression" and row(accepted, "step_time").outcome == "waived"
    assert "the new loss" in row(accepted, "step_time").reason
    assert verdict(15.0, date(2026, 1, 1)).verdict == "no_regression"
    assert verdict(5.0, date(2026, 1, 1)).verdict == "regression"
    late = verdict(None, date(2027, 1, 1))
    assert late.verdict == "regression" and any("expired on 2026-12-31" in note for note in late.notes)


def test_three_captures_measure_the_noise_themselves() -> None:
    rng = np.random.default_rng(3)
    sides = [
        [made([level + rng.normal(0, 0.5) + x for x in NOISE[:8]], at=10 * k + side) for k in range(3)]
        for side, level in enumerate((100.0, 108.0))
    ]
    result = compare(*sides, CompareConfig(launch_noise_pct=50.0))
    assert result.verdict == "regression" and result.launch_noise_pct is None
    assert row(result, "step_time").samples == Samples(24, 24)


def test_ledger_metrics_gate_where_asked() -> None:
    base = made(steps(100.0), [100.0] * 8, buckets={"idle_input": 1.0})
    head = made(steps(100.0), [100.0] * 8, at=1, buckets={"idle_input": 9.0})
    assert compare([base], [head], QUIET).verdict == "no_regression"
    config = CompareConfig(launch_noise_pct=0.3, thresholds={"idle_input": 5.0})
    result = compare([base], [head], config)
    assert result.verdict == "regression"
    idle = row(result, "idle_input")
    assert idle.of_step and idle.change == pytest.approx(8.0) and idle.change_pct == pytest.approx(8.0)


def test_a_finding_carries_the_numbers() -> None:
    result = compare([made(steps(100.0))], [made(steps(110.0), at=1)], QUIET)
    found = next(f for f in result.findings if f.evidence[1].metric == "step_time")
    assert found.rule == "TO-R001" and found.severity == "error" and found.confidence == "high"
    assert found.evidence[0].threshold == 5.0 and found.impact_ms == pytest.approx(10, abs=0.5)
    assert result.checks[0].status == "fired"


@pytest.mark.parametrize("count", [3, 8])
def test_a_faster_step_leads_whatever_its_counts(count: int) -> None:
    """Half the time with more kernels, as after a change of precision."""
    head = made(profiled=steps(50, count), at=1, counts={"kernels": 815})
    result = compare([made(profiled=steps(100, count))], [head], QUIET)
    assert result.verdict == "improvement" and result.sentence.startswith("Faster: step time ")


FULL = """
baselines = "s3://bucket/baselines"
[compare]
confidence = 0.99
launch_noise_pct = 0.8
[compare.thresholds]
step_time = 3
peak_memory = false
idle_input = 2.5
[[compare.waivers]]
metric = "kernels"
reason = "fused optimizer off until #12"
until = 2026-12-31
limit_pct = 20
"""


def test_everything_there_is(tmp_path: Path) -> None:
    (tmp_path / "traceops.toml").write_text(FULL)
    (tmp_path / "a" / "b").mkdir(parents=True)
    config = load_config(tmp_path / "a" / "b")
    assert config == load_config(file=str(tmp_path / "traceops.toml"))
    assert config.confidence == 0.99 and config.launch_noise_pct == 0.8
    assert config.baselines == "s3://bucket/baselines" and config.source == str(tmp_path / "traceops.toml")
    assert config.waivers == (Waiver("kernels", "fused optimizer off until #12", date(2026, 12, 31), 20.0),)
    assert [config.threshold(name) for name in ("step_time", "peak_memory", "idle_input", "kernels", "idle")] == [
        3.0, None, 2.5, 10.0, None,
    ]  # fmt: skip


def test_pyproject_serves_too_and_a_repository_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "traceops.toml").write_text("[compare]\nconfidence = 0.9\n")
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    assert load_config(project) == CompareConfig()
    (project / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load_config(project) == CompareConfig()
    (project / "pyproject.toml").write_text("[tool.traceops.compare.thresholds]\nstep_time = 2\n")
    assert load_config(project).threshold("step_time") == 2.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[compare", "is not valid TOML"),
        ("[compar]\n", "did you mean compare?"),
        ("[compare.thresholds]\nstep_tim = 3", "did you mean step_time?"),
        ("[compare.thresholds]\nstep_time = -3", "is no percentage"),
        ("[compare.thresholds]\nstep_time = true", "is no percentage"),
        ("[compare]\nconfidence = 95", "between 0.5 and 1"),
        ('[[compare.waivers]]\nmetric = "idle"\nuntil = 2026-01-01', "needs a reason"),
        ('[[compare.waivers]]\nmetric = "idle"\nreason = "x"\nuntil = "soon"', "YYYY-MM-DD"),
        ('[[compare.waivers]]\nmetric = "nothing"\nreason = "x"\nuntil = 2026-01-01', "no metric nothing"),
        ("baselines = 3", "in quotes"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "traceops.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_config(file=str(path))
    assert complaint in str(error.value) and str(path) in str(error.value)


def test_the_command_line_wins() -> None:
    config = with_thresholds(CompareConfig(thresholds={"step_time": 3.0}), ["7", "kernels=off", "idle=1.5"])
    assert [config.threshold(name) for name in ("step_time", "kernels", "idle")] == [7.0, None, 1.5]
    for wrong in ("nothing=3", "step_time=x", "step_time=nan", "-1"):
        with pytest.raises(UsageError):
            with_thresholds(CompareConfig(), [wrong])


def test_where_input_comes_late_by_turns_a_step_takes_what_a_round_takes() -> None:
    """The typical step is the same: only the bursts, of every 20th step, differ."""

    def bursty(burst: float, at: float) -> ComparedCapture:
        steps = ([7.0] * 19 + [burst]) * 10
        timeline = [
            {"rank": rank, "first": number, "last": number, "median_ms": ms, "most_ms": ms}
            for rank in range(2)
            for number, ms in enumerate(steps, start=1)
        ]
        whole = {"steps": 200, "typical_steps": 200, "typical_ms": 20.0, "input_by_turns": True, "timeline": timeline}
        return edited(made(at=at, device_type="cpu"), lambda report: report.update(whole_run=whole))

    found = compare([bursty(307.0, 0), bursty(307.0, 2)], [bursty(207.0, 1), bursty(207.0, 3)])
    step = row(found, "step_time")
    assert (step.base, step.head) == (pytest.approx(22.0), pytest.approx(17.0))
    assert found.verdict == "improvement"


def test_a_round_is_as_long_as_far_steps_are_apart() -> None:
    assert rounds_of(np.array([1.0, 1.0, 1.0, 9.0] * 5)).tolist() == [3.0] * 17
    assert rounds_of(np.array([6.0, 16.0, 6.0] * 20)).tolist() == pytest.approx([28 / 3] * 58)
    alike = [1.0, 1.1] * 10
    assert rounds_of(np.array(alike)).tolist() == alike
