"""Which captures are refused, which steps are not judged because they are of several kinds, and what is warned of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparison_reports import collective, edited, kernel, made

from traceops.compare import CompareConfig, ComparedCapture, compare
from traceops.compare.comparable import differences, refusals
from traceops.compare.model import Comparison, MetricChange
from traceops.core.errors import InputError, UsageError
from traceops.render.comparison.text import effect_text

CONFIG = {"layers": 8, "batch_size": 4, "precision": "bf16"}


def training(**changes: Any) -> dict[str, Any]:
    return {"strategy": "pytorch_ddp", "config": {**CONFIG, **changes}}


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ({"world_size": 8}, "world size: base 2, head 8"),
        ({"device": "NVIDIA H100"}, "device: base NVIDIA H200, head NVIDIA H100"),
        ({"hosts": ["a", "b"]}, "number of hosts: base 1, head 2"),
        ({"training": training(layers=16)}, "model (layers): base 8, head 16"),
        ({"training": training(batch_size=8)}, "batch (batch_size): base 4, head 8"),
        ({"training": training(precision="fp32")}, "precision (precision): base bf16, head fp32"),
    ],
)
def test_refused_with_the_reason_unless_forced(run: dict[str, Any], reason: str) -> None:
    base, head = made([100.0] * 8, hosts=["a"]), made([100.0] * 8, at=1, **{"hosts": ["a"], **run})
    assert refusals([base], [head]) == [reason]
    with pytest.raises(UsageError, match="cannot be compared") as refused:
        compare([base], [head])
    assert reason in str(refused.value) and "--force" in str(refused.value)
    assert compare([base], [head], force=True).refusals == (reason,)


@pytest.mark.parametrize(
    ("run", "remark"),
    [
        ({"torch_version": "2.9.0"}, "torch: base 2.8.0, head 2.9.0"),
        ({"nccl_version": "2.28"}, "NCCL: base 2.27, head 2.28"),
        ({"training": training(bucket_mb=1)}, "setting bucket_mb: base not set, head 1"),
        ({"training": {}}, "head does not say which model"),
        ({"ranks_missing": [1]}, "head has no trace of rank 1"),
        ({"options": {"with_stack": True}}, "the profiler recorded different things"),
        ({"hosts": ["b"]}, "hosts: base a, head b"),
    ],
)
def test_remarked_upon(run: dict[str, Any], remark: str) -> None:
    known = {"torch_version": "2.8.0", "nccl_version": "2.27", "hosts": ["a"]}
    base, head = made(**known), made(at=1, **{**known, **run})
    assert not refusals([base], [head])
    assert any(remark in said for said in differences([base], [head]))


def test_two_runs_of_one_world_size_against_two_of_another_are_refused() -> None:
    base, head = [made(at=at) for at in (0, 2)], [made(at=at, world_size=4) for at in (1, 3)]
    with pytest.raises(UsageError, match="world size: base 2, head 4"):
        compare(base, head)


def test_the_same_runs_have_no_remarks() -> None:
    assert not differences([made()], [made(at=1)]) and not refusals([made()], [made(at=1)])


def test_a_side_must_agree_with_itself() -> None:
    mixed = [made(at=1), made(at=2, world_size=4)]
    assert "the captures of head differ among themselves: world size" in refusals([made()], mixed)[0]


def test_a_capture_is_not_compared_with_itself() -> None:
    same = made(at=1)
    assert "given more than once" in refusals([same], [same])[0]
    copy = made(at=1, name="a copy in another folder")
    assert "one and the same capture" in refusals([same], [copy])[0]


def first_steps(capture: ComparedCapture) -> ComparedCapture:
    """The capture as one of a program that ended before its schedule's window."""

    def edit(report: dict[str, Any]) -> None:
        report["summary"]["first_steps"] = True
        for row in report["steps"]:
            row["step"] -= 9

    return edited(capture, edit)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_programs_first_steps_are_not_held_to_later_ones(swapped: bool) -> None:
    """Warm-up counted as a regression: of five captures a side, ten first steps are enough to be sure of one."""
    sides = [
        [made(profiled=[100.0] * 4, at=2.0 * at) for at in range(5)],
        [first_steps(made(profiled=[180.0] * 2, at=2.0 * at + 1)) for at in range(5)],
    ]
    base, head = sides[::-1] if swapped else sides
    with pytest.raises(UsageError, match=r"recorded steps: base .*; first steps often take longer"):
        compare(base, head)
    both = [[first_steps(made(profiled=[180.0] * 2, at=2.0 * at + side)) for at in range(5)] for side in (0, 1)]
    assert compare(*both).verdict == "no_regression"


def test_a_trace_whose_numbers_do_not_tell_is_held_to_either() -> None:
    def renumbered(report: dict[str, Any]) -> None:
        for row in report["steps"]:
            row["step"] -= 8

    anybodys = edited(made(), renumbered)
    assert not refusals([anybodys], [made(at=1)]) and not refusals([anybodys], [first_steps(made(at=1))])


@pytest.mark.parametrize(
    ("base", "head", "said"),
    [
        ([41.5], [None], "base's recorded steps may not be like its later ones: just before them a step took 41.5"),
        ([None], [41.5], "head's recorded steps may not be like its later ones: just before"),
        ([None, None], [None, 41.5], "head's recorded steps may not be like its later ones in 1 of 2 captures: just"),
        ([41.5], [40.0], "the recorded steps of both sides may not be like their later ones"),
        ([None], [None], None),
    ],
)
def test_a_window_before_the_steps_settled_is_held_to_none_behind_it(base, head, said) -> None:
    """One of two runs of a program had a second window: 47 % faster, and not a word of where each recorded."""

    def side(windows: list[float | None], at: int) -> list[ComparedCapture]:
        made_of = [made([100.0] * 8, at=at + 2 * n) for n in range(len(windows))]
        return [
            one if ms is None else edited(one, lambda report, ms=ms: report.update(whole_run=whole(ms)))
            for one, ms in zip(made_of, windows, strict=True)
        ]

    def whole(ms: float) -> dict[str, Any]:
        early = {"before_ms": ms, "later_ms": 12.0, "settled": 17}
        return {"steps": 60, "typical_steps": 50, "typical_ms": 12.0, "early_window": early}

    told = [one for one in compare(side(base, 0), side(head, 1)).warnings if "recorded steps" in one]
    assert (told == []) if said is None else (len(told) == 1 and said in told[0])


Edit = Callable[[dict[str, Any]], None]
EARLY = {"before_ms": 41.5, "later_ms": 12.0, "settled": 17}


def early_window(report: dict[str, Any]) -> None:
    report["whole_run"] = {"steps": 60, "typical_steps": 50, "typical_ms": 12.0, "early_window": EARLY}


def found_by(kind: str) -> Edit:
    return lambda report: report["summary"].update(steps_found_by=kind)


def recorded(**options: bool) -> Edit:
    return lambda report: report["run"].update(options=options)


def holding(operators: int) -> Edit:
    used = {"name": "aten::mm", "count_per_step": 1, "host_ms_per_step": 0.1}
    inventory = {"kernels": [kernel("gemm", 1, 9.0)], "operators": [used] * operators}
    return lambda report: report.update(inventory=inventory)


def torch(version: str) -> Edit:
    return lambda report: report["run"].update(torch_version=version)


def sides(
    before: Edit, now: Edit, *, unprofiled: int = 0, works_ms: float = 10.0
) -> tuple[list[ComparedCapture], list[ComparedCapture]]:
    """Five captures a side, head far slower and with twice the kernels; its devices work for works_ms a step."""
    idle = {"idle_host": 41.5 - works_ms}
    base = [edited(made([12.0 + n / 100] * unprofiled, [12.0 + n / 100] * 4, at=2 * n), before) for n in range(5)]
    head = [
        edited(
            made(
                [41.5 + n / 100] * unprofiled,
                [41.5 + n / 100] * 4,
                at=2 * n + 1,
                buckets=idle,
                counts={"kernels": 1000},
            ),
            now,
        )
        for n in range(5)
    ]
    return base, head


def of(result: Comparison, name: str) -> MetricChange:
    return next(row for row in result.metrics if row.metric == name)


def nothing(report: dict[str, Any]) -> None:
    pass


@pytest.mark.parametrize(
    ("before", "now", "why", "cure"),
    [
        (nothing, early_window, "head's recorded steps may not be like its later ones in 5 of 5", "--skip-first, 17"),
        (found_by("profiler"), found_by("window"), "nothing marks where the steps of head begin", "mark the steps"),
        (found_by("window"), found_by("window"), "the steps of base and head begin", "mark the steps"),
        (found_by("optimizer"), found_by("repetition"), "(base optimizer, head repetition)", "mark the steps"),
    ],
)
def test_other_steps_decide_nothing(before: Edit, now: Edit, why: str, cure: str) -> None:
    """Each was a regression, of time or of kernels: a window of more iterations has more of both."""
    base, head = sides(before, now)
    result = compare(base, head)
    assert result.verdict == "inconclusive" and not result.findings and not result.explanations
    assert why in result.sentence and cure in result.sentence and "41.5" in result.sentence
    [told] = result.not_judged
    assert why in told.why and "kernels" in told.metrics
    for name in ("step_time", "kernels"):
        row = of(result, name)
        assert (row.outcome, row.p, row.low_pct) == ("inconclusive", None, None) and row.reason in why + told.why
    assert {row.outcome for row in result.metrics} <= {"inconclusive", "informative"}
    assert all(row.mde_pct is None for row in result.metrics)  # nor what 'would have been found'
    assert any(told.why in said for said in result.warnings)
    assert [check.status for check in result.checks] == ["not_evaluated"]
    forced = compare(base, head, force=True)
    assert forced.verdict == "regression" and not forced.not_judged and forced.warnings


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (recorded(), recorded(with_stack=True), "recorded different things (base nothing more, head with_stack)"),
        (holding(1), holding(0), "of base the profiler recorded operators too"),
        (torch("2.8.0"), torch("2.9.0"), "torch 2.9.0's profiler may not cost what 2.8.0's does"),
    ],
)
def test_what_the_profiler_costs_is_no_regression(before: Edit, now: Edit, why: str) -> None:
    """Recorded steps of 12 ms and, with stacks, of 41.5 were a regression. Counts are the same with each profiler."""
    result = compare(*sides(before, now))
    assert [why in one.why for one in result.not_judged] == [True]
    assert of(result, "step_time").outcome == "inconclusive"
    assert of(result, "kernels").outcome == "regression"
    assert "The step time itself is open: the profiler's own cost is not the same" in result.sentence


@pytest.mark.parametrize(("before", "now"), [(torch("2.8.0"), torch("2.9.0")), (recorded(), recorded(with_stack=True))])
def test_what_no_profiler_explains_is_judged(before: Edit, now: Edit) -> None:
    """A slowdown of ten times was left open where torch differed, though head's devices worked for all of it."""
    result = compare(*sides(before, now, works_ms=40.0))
    step = of(result, "step_time")
    assert (result.verdict, step.outcome, step.change_pct, step.p) == ("regression", "regression", None, None)
    assert step.low_pct == pytest.approx(100 * (40.0 / 12.04 - 1), rel=1e-3)
    assert "step time 12.02 ms → 41.52 ms in recorded steps (at least 232.2 % slower)" in result.sentence
    assert "head's devices work for 40 ms per step, and no recorded step of base takes more than" in result.sentence
    assert result.findings[0].rule == "TO-R001" and effect_text(step) == "at least +232 %"
    back = compare(*reversed(sides(before, now, works_ms=40.0)))
    assert of(back, "step_time").outcome == "improvement" and "% faster)" in back.sentence


def test_less_than_the_threshold_is_certain_of_nothing() -> None:
    result = compare(*sides(torch("2.8.0"), torch("2.9.0"), works_ms=12.3))
    assert of(result, "step_time").outcome == "inconclusive"


def test_steps_of_other_kinds_have_no_bound() -> None:
    """Devices that work for longer in what need not be the same steps say nothing of them."""
    result = compare(*sides(found_by("profiler"), found_by("window"), works_ms=40.0))
    assert result.verdict == "inconclusive"


def test_what_the_profiler_would_have_to_cost_is_said() -> None:
    def same_kernels(report: dict[str, Any]) -> None:
        report["run"].update(torch_version="2.9.0")
        for row in report["steps"]:
            row["kernels"] = 500

    result = compare(*sides(torch("2.8.0"), same_kernels))
    assert result.verdict == "inconclusive"
    assert "unless its profiler takes 29.5 of its 41.52 ms or more" in result.sentence


def test_steps_without_the_profiler_are_compared_whatever_the_profiler_cost() -> None:
    base, head = sides(recorded(), recorded(with_stack=True), unprofiled=8)
    result = compare(base, head, CompareConfig(thresholds={"idle_input": 2.0}))
    assert result.verdict == "regression" and of(result, "step_time").outcome == "regression"
    assert of(result, "idle_input").outcome == "inconclusive"
    assert not compare(*sides(torch("2.8.0"), torch("2.9.0"), unprofiled=8)).not_judged


@pytest.mark.parametrize(("before", "now", "judged"), [(0, 1, True), (2, 3, True), (0, 3, False), (1, 5, False)])
def test_a_capture_or_two_more_with_an_early_window_are_told_and_judged(before: int, now: int, judged: bool) -> None:
    """Of five captures a side of one program three and two had one: nothing at all was judged, not even kernels."""
    sides_ = sides(nothing, nothing)
    base, head = (
        [edited(one, early_window) if at < count else one for at, one in enumerate(side)]
        for side, count in zip(sides_, (before, now), strict=True)
    )
    result = compare(base, head)
    assert any("head's recorded steps may not be like" in one for one in result.warnings)
    assert (result.verdict == "regression") == judged == (not result.not_judged)


def test_steps_of_one_kind_are_judged() -> None:
    for edit in (nothing, early_window, found_by("profiler"), recorded(with_stack=True), holding(1), torch("2.9.0")):
        result = compare(*sides(edit, edit))
        assert result.verdict == "regression" and not result.not_judged


def test_gpus_that_are_not_set_alike_are_named() -> None:
    def limited(watts: float) -> Edit:
        row = {"rank": 0, "host": "a", "limit_w": watts, "most_mhz": 1980.0}
        whole = {"steps": 60, "typical_steps": 50, "typical_ms": 12.0, "machine": [row]}
        return lambda report: report.update(whole_run=whole)

    assert "power limit of the GPUs: base 700 W, head 450 W" in compare(*sides(limited(700), limited(450))).warnings


def step_time(result: Comparison) -> MetricChange:
    return next(row for row in result.metrics if row.metric == "step_time")


def noisy(level: float, spread: float, captures: int, first: int, seed: int, **more: Any) -> list[ComparedCapture]:
    rng = np.random.default_rng(seed)
    return [
        made([float(x) for x in rng.normal(level + rng.normal(0, spread), 0.2, 8)], at=10 * k + first, **more)
        for k in range(captures)
    ]


def test_a_capture_that_was_held_up_is_named_and_stays_in() -> None:
    base = noisy(37, 0.5, 4, 0, 1)
    base.insert(1, made([295.0] * 8, at=5, name="base_2"))
    result = compare(base, noisy(40, 0.5, 5, 7, 2))
    (named,) = [warning for warning in result.warnings if "held it up" in warning]
    assert "base: a step of base_2 took 295 ms, of the other captures 3" in named
    low = step_time(result).low_pct
    assert low is not None and low >= -100.0  # a step cannot be more than 100 % faster
    assert len(result.base.captures) == 5


def test_damaged_traces_are_left_out_and_nothing_is_made_of_what_they_lack() -> None:
    known = {"kernels": [kernel("gemm", 10, 50.0)], "collectives": [collective(10, 1000)]}
    base = made([100.0] * 8, inventory=known)
    head = made([100.0] * 8, at=1, inventory={"kernels": [kernel("gemm", 7, 35.0)]})

    def damage(report: dict[str, Any]) -> None:
        report["ranks"][1]["damage"] = "cut off"
        for row in report["steps"]:
            if row["rank"] == 1:
                row["kernels"] = 200

    result = compare([base], [edited(head, damage)])
    assert not result.changes and not result.explanations
    assert any("the trace of rank 1 is damaged; it is left out" in warning for warning in result.warnings)
    assert next(row for row in result.metrics if row.metric == "kernels").reason == "the same"


def test_a_rank_whose_gpu_was_not_recorded_is_left_out() -> None:
    """Where rank 1 was recorded again, 'bytes per step 201 MB → 403 MB' was a regression."""
    lost = {"rule": "TO-V008", "title": "", "severity": "warning", "confidence": "high", "message": "", "ranks": [1],
            "evidence": [{"metric": "ranks without GPU activity", "value": 1}], "advice": ""}  # fmt: skip
    inventory = {"collectives": [collective(5, 500)]}
    base = made([100.0] * 8, inventory=inventory, findings=[lost])
    head = made([100.0] * 8, at=1, inventory={"collectives": [collective(10, 1000)]})
    result = compare([base], [head])
    assert result.verdict != "regression" and not result.explanations
    assert any("the trace of rank 1 holds no GPU activity; it is left out" in said for said in result.warnings)

    both = made([100.0] * 8, findings=[{**lost, "ranks": [0, 1]}], device_type="cpu")
    with pytest.raises(UsageError, match="activity of the GPUs: base not recorded, head recorded"):
        compare([both], [head])


def test_one_capture_a_side_proves_nothing_on_a_cpu_unless_the_user_says_how_launches_differ() -> None:
    pair = [made([level] * 8, at=n, device="cpu", device_type="cpu") for n, level in enumerate((100.0, 180.0))]
    result = compare(pair[:1], pair[1:])
    assert result.verdict == "inconclusive" and "20 timed steps per capture are needed" in result.sentence
    assert step_time(result).low_pct is None
    assert compare(pair[:1], pair[1:], CompareConfig(launch_noise_pct=3.0)).verdict == "regression"


def test_a_verdict_that_rests_on_an_assumption_says_so() -> None:
    single = compare([made([100.0] * 8)], [made([110.0] * 8, at=1)])
    assert "if launches differ by 1.5 % as assumed" in single.sentence
    several = compare(noisy(100, 0.3, 4, 0, 3), noisy(110, 0.3, 4, 5, 4))
    assert several.verdict == "regression" and "assumed" not in several.sentence


def test_how_many_captures_it_would_take() -> None:
    open_ = compare(noisy(100, 3.0, 4, 0, 5), noisy(101, 3.0, 4, 5, 6))
    assert open_.verdict == "inconclusive" and "captures a side would settle it" in open_.sentence
    hopeless = compare(noisy(100, 25.0, 4, 0, 7), noisy(101, 25.0, 4, 5, 8))
    assert "too noisy for a limit of 5 %" in hopeless.sentence


def test_what_noise_could_have_done_is_given_no_reason() -> None:
    result = compare(
        noisy(100, 12.0, 4, 0, 9), noisy(109, 12.0, 4, 5, 11, profiled=[109.0] * 8, buckets={"idle_input": 9.0})
    )
    assert result.verdict == "inconclusive" and "It looks like" in result.sentence
    assert result.explanations and result.explanations[0].text not in result.sentence


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 0.0, -1.0, 10**400])
def test_durations_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(InputError, match=r"can be compared: .*unprofiled_steps.0..duration_ms"):
        made([wrong, 100.0])
