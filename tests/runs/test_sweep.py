"""`traceops sweep`: what is varied, in which order it is trained, and what is said of it; nothing is really trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from observed_run import usual, write_rank
from run_folders import failed_run, run_of

from traceops.cli import main
from traceops.cli.sweep import seconds_of
from traceops.core.errors import UsageError
from traceops.core.findings import Severity
from traceops.pipeline.observed_run import mean_step_ms
from traceops.render.runs.sweep import verdict, why_text
from traceops.runs.row import FindingCount, without_report
from traceops.runs.sweep import (
    LedgerDifference,
    PointRow,
    SweepDocument,
    SweepSearch,
    SweepState,
    SweepTrial,
    axes_of,
    best_again,
    halve,
    in_turn,
    points_of,
    script_words,
    sweep_document,
    try_all,
)
from traceops.schemas import schema_path


def trial(point: int, repeat: int, rate: float | None = 100.0, seconds: float = 10.0) -> SweepTrial:
    return SweepTrial(
        point=point, repeat=repeat, folder=f"{point}_{repeat}", status="finished" if rate else "failed",
        seconds=seconds, reason="" if rate else "out of memory", step_ms=1e3 / rate if rate else None,
        samples_per_s=rate,
    )  # fmt: skip


def test_points_are_all_combinations_with_names_for_folders() -> None:
    points = points_of(axes_of(["strategy=zero1,zero3", "workers=0,2"], []))
    assert [point.label for point in points] == [
        "strategy=zero1,workers=0", "strategy=zero1,workers=2", "strategy=zero3,workers=0", "strategy=zero3,workers=2",
    ]  # fmt: skip
    assert points_of(axes_of([], ["--data=a/b"]))[0].label == "data=a_b"


@pytest.mark.parametrize(
    ("options", "arguments", "said"),
    [
        ([], [], "nothing is varied"),
        (["workers"], [], "KEY=VALUE"),
        (["workers=0,,2"], [], "KEY=VALUE"),
        (["workers=0,0"], [], "given twice"),
        (["workers=0", "workers=1"], [], "varied twice"),
        (["seed=" + ",".join(map(str, range(40))), "lr=" + ",".join(map(str, range(40)))], [], "1600 combinations"),
        ([], ["data=a/b,a_b"], "share the folder"),
    ],
)
def test_what_spans_no_points_is_refused(options: list[str], arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        points_of(axes_of(options, arguments))


def test_options_of_a_script_stand_where_it_says_or_behind() -> None:
    (point,) = points_of(axes_of(["workers=2"], ["batch=8", "--lr=0.1"]))
    assert script_words(point, ["train.py", "--b={batch}"]) == ["train.py", "--b=8", "--lr", "0.1"]
    assert script_words(point, ["train.py"]) == ["train.py", "--batch", "8", "--lr", "0.1"]


def test_trainings_alternate_so_that_drift_hits_all_alike() -> None:
    order = in_turn(range(3), 2)
    assert order == [(0, 1), (1, 1), (2, 1), (2, 2), (1, 2), (0, 2)]
    places = {point: sum(at for at, (p, _) in enumerate(order) if p == point) for point in range(3)}
    assert len(set(places.values())) == 1


def test_all_are_tried_but_what_failed_is_not_tried_again_and_what_is_done_not_repeated() -> None:
    tried: list[tuple[int, int]] = []

    def attempt(point: int, repeat: int) -> SweepTrial:
        tried.append((point, repeat))
        return trial(point, repeat, None if point == 1 else 100.0)

    found = try_all(3, 2, attempt, [trial(0, 1)])
    assert tried == [(1, 1), (2, 1), (2, 2), (0, 2)]
    assert found.complete and len(found.trials) == 5
    ended = try_all(3, 2, lambda point, repeat: None, found.trials[:2])
    assert not ended.complete and ended.trials == found.trials[:2]


def test_the_two_best_are_trained_again_until_their_trainings_tell_them_apart() -> None:
    def rounds(steps: dict[int, list[float]]) -> list[tuple[int, int]]:
        order: list[tuple[int, int]] = []

        def attempt(point: int, number: int) -> SweepTrial:
            order.append((point, number))
            return trial(point, number, 1e3 / steps[point][number - 1])

        best_again(try_all(3, 1, attempt, ()), 3, attempt)
        return order[3:]

    clear = {0: [30.0, 30.0], 1: [10.0, 10.01], 2: [20.0, 20.01]}
    assert rounds(clear) == [(2, 2), (1, 2)]
    alike = {0: [30.0, 30.0, 30.0], 1: [10.0, 12.0, 11.0], 2: [11.0, 10.0, 12.0]}
    assert rounds(alike) == [(2, 2), (1, 2), (2, 3), (1, 3)]


def test_a_trainings_step_is_that_of_the_whole_run_not_of_its_first_ones(tmp_path: Path) -> None:
    """A full prefetch queue serves the steps before the window: 8.7 ms where the run took 80 ms per step."""
    run_of(tmp_path / "run", status="finished", unprofiled_step_ms=8.7, ranks=[{"rank": 0}, {"rank": 1}])
    for rank in (0, 1):
        write_rank(tmp_path / "run", rank, [usual(8.0)] * 8 + [usual(248.0), usual(8.0), usual(8.0)] * 40)
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert mean_step_ms(tmp_path / "run", manifest) == pytest.approx(88.0, rel=0.1)


def test_halving_keeps_the_better_half_and_ends_with_the_budget() -> None:
    clock = [0.0]

    def attempt(point: int, repeat: int) -> SweepTrial:
        clock[0] += 10.0
        return trial(point, repeat, None if point == 7 else 10.0 * (point + 1))

    found = halve(8, 1e6, attempt, lambda: clock[0])
    counts = [sum(t.point == point for t in found.trials) for point in range(8)]
    assert counts == [1, 1, 1, 2, 2, 3, 3, 1] and found.complete
    assert found.given_up == frozenset(range(6))
    clock[0] = 0.0
    short = halve(8, 45.0, attempt, lambda: clock[0])
    assert not short.complete and len(short.trials) == 4 and clock[0] <= 45.0


@pytest.mark.parametrize(("text", "seconds"), [("20m", 1200), ("90s", 90), ("1.5h", 5400), ("7", 7)])
def test_budgets(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3", "0", "nan", "inf", "soon"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        seconds_of(text)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`traceops sweep` in an empty folder, with recorded traces in place of trainings; the list of what it trains."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: 0)
    labels: list[str] = []

    def train(decided: Any) -> int:
        plan = decided.plan
        labels.append(plan.out.name)
        shutil.rmtree(plan.out, ignore_errors=True)
        workers = plan.trains[plan.trains.index("--workers") + 1]
        if workers == "4":
            failed_run(plan.out)
            return 1
        step = {"0": 80.0, "2": 40.0}[workers] + len(labels) % 2
        run_of(plan.out, status="finished", training={"samples_per_step": 8}, unprofiled_step_ms=step)
        return 130 if len(labels) == 3 and workers == "0" else 0

    monkeypatch.setattr("traceops.cli.sweep._train", train)
    return labels


COMMAND = ["sweep", "--vary", "workers=0,2,4", "--nproc", "2", "--quick", "--repeat", "2", "--name", "s"]


def test_steps_without_samples_are_not_told_as_more_of_them() -> None:
    """'17.3 ms a step, 16.8 % more' was said of the shorter step, and 'for as many samples' where nobody knew them."""
    points = (
        PointRow(label="b=16", settings={}, trained=1, step_ms=17.3, behind_pct=0.0),
        PointRow(label="b=8", settings={}, trained=1, step_ms=20.21, behind_pct=14.4),
    )
    why = (LedgerDifference(bucket="idle_host", best_ms=1.0, other_ms=4.5),)
    found = SweepDocument(
        name="s", command=(), varied=("b",), complete=True, by_samples=False, best="b=16", against="b=8",
        told_apart=None, why=why, points=points, trials=(), runs=(),
    )  # fmt: skip
    assert verdict(found).sentence == (
        "b=16 is best: 17.3 ms per step, 14.4 % less than b=8, one training each. Samples per step are unknown: steps "
        "are compared as if all held as many."
    )
    once = verdict(msgspec.structs.replace(found, told_apart=False)).sentence
    assert once.startswith("Not decided: b=16 (17.3 ms per step) and b=8 were trained once each.")
    again = tuple(msgspec.structs.replace(point, trained=2) for point in points)
    undecided = verdict(msgspec.structs.replace(found, told_apart=False, points=again)).sentence
    assert undecided.startswith("Not decided: b=16 (17.3 ms per step) and b=8 differ by less than their trainings do.")
    assert why_text(found) == "Against b=8 its recorded steps have 3.50 ms less idle: launched late."


@pytest.mark.parametrize(
    ("steps", "severity", "decided"),
    [((10.0, 10.3), None, False), ((10.0, 12.0), None, None), ((10.0, 12.0), "info", None),
     ((10.0, 12.0), "warning", False)],
)  # fmt: skip
def test_single_trainings_decide_nothing_within_noise_or_on_a_busy_machine(
    steps: tuple[float, float], severity: Severity | None, decided: bool | None
) -> None:
    trials = [
        SweepTrial(point=place, repeat=1, folder=f"t{place}", status="finished", seconds=9.0, step_ms=ms)
        for place, ms in enumerate(steps)
    ]
    found = () if severity is None else (FindingCount(rule="TO-W002", severity=severity, count=1),)
    rows = [msgspec.structs.replace(without_report(f"t{place}", "", ""), findings=found) for place in range(2)]
    points = points_of(axes_of(["b=8,16"], []))
    state = SweepState(command=(), points=tuple(point.words for point in points), trials=tuple(trials))
    document = sweep_document("s", state, points, SweepSearch(tuple(trials), True), rows)
    assert document.told_apart is decided


@pytest.mark.torch
def test_a_sweep_ends_with_the_best_why_and_what_failed(trained: list[str], capsys: Any) -> None:
    assert main(COMMAND) == 0
    assert trained == ["workers=0_1", "workers=2_1", "workers=4_1", "workers=2_2", "workers=0_2"]
    said, before = capsys.readouterr()
    assert "% or more will be detected (trainings per side: 2)" in before
    assert "workers=2 is best: 200.0 samples/s, 102.5 % more than workers=0. 1 of 3 combinations failed." in said
    assert "it ended with 1" in said.partition("workers=4: ")[2]  # below the table
    found = json.loads(Path("reports/s/sweep.json").read_text())
    jsonschema.Draft202012Validator(json.loads(schema_path("sweep").read_text())).validate(found)
    assert (found["best"], found["against"], found["told_apart"]) == ("workers=2", "workers=0", True)
    assert [point["trained"] for point in found["points"]] == [2, 2, 0]
    assert Path("reports/s/workers=2_1/summary.html").is_file() and Path("reports/s/runs.html").is_file()
    assert "| workers |" in Path("reports/s/sweep.md").read_text()
    trained.clear()
    assert main(COMMAND) == 0  # all is done
    assert trained == []
    assert main([*COMMAND, "--layers", "1"]) == 2
    assert "holds another sweep" in capsys.readouterr().err


@pytest.mark.torch
def test_a_sweep_that_was_ended_goes_on_where_it_was(trained: list[str], monkeypatch: Any) -> None:
    trained += ["before"]  # so that the third in the list is ended
    command = [*COMMAND[:2], "workers=2,0", *COMMAND[3:]]
    assert main(command) == 130
    state = json.loads(Path("profile/s/trials.json").read_text())
    assert [t["folder"] for t in state["trials"]] == ["workers=2_1"]
    assert main(command) == 0
    assert trained == ["before", "workers=2_1", "workers=0_1", "workers=0_1", "workers=0_2", "workers=2_2"]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vary", "strategy=zero1,nope"], "strategy=nope: use one of"),
        (["--vary", "workers=1,-1"], "--workers -1"),
        (["--vary", "batch-size=4,x"], "batch-size=x: must be a whole number"),
        (["--vary", "workers=0,2", "--vary", "prefetch-factor=2"], "workers=0,prefetch-factor=2 cannot work"),
        (["--vary", "persistent-workers=true,false"], "within one epoch"),
        (["--vary", "zzz=1"], "no option of that name"),
        (["--vary", "out=a"], "no option of that name"),
        (["--vary-arg", "lr=1"], "give the script after --"),
        (["--vary", "strategy=pytorch_pp", "--vary", "replicas=1,3"], "replicas=3 cannot work"),
        (["--vary", "workers=1", "--budget", "x"], "--budget x"),
        (["--vary", "activation-checkpointing=yes"], "true or false"),
        (["--vary", "workers=1", "--against", "HEAD"], "--against"),
        (["--vary", "slurm=true"], "no option of that name"),
        (["--vary", "workers=1", "--nnodes", "2", "--rdzv-endpoint", "a:1"], "on one machine only"),
    ],
)
def test_a_value_that_cannot_work_is_refused_before_the_first_training(
    trained: list[str], capsys: Any, words: list[str], said: str
) -> None:
    assert main(["sweep", "--nproc", "2", "--quick", *words]) == 2
    assert said in capsys.readouterr().err
    assert trained == [] and not Path("profile").exists()


def test_documents_round_trip() -> None:
    one = trial(0, 1)
    assert msgspec.json.decode(msgspec.json.encode(one), type=SweepTrial) == one
