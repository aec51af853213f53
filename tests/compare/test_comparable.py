"""What is refused, what is only remarked upon."""

from typing import Any

import pytest
from comparison_reports import edited, made

from traceops.compare import ComparedCapture, compare
from traceops.compare.comparable import differences, refusals
from traceops.core.errors import UsageError

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
