"""TO-W001, TO-W002, TO-W003 and the lines that other findings get, on a run's folder as `traceops run` leaves it."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from changed import replace
from fault_runs import unpacked
from msgspec import UNSET
from observed_run import Step, usual, write_loader, write_machine, write_rank

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.units import size_text
from traceops.pipeline.analyze import analyze
from traceops.pipeline.observed_run import MOST_RANKS, first_steps_only
from traceops.render.files import write_report
from traceops.render.report.card import card_of
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary
from traceops.render.report.whole_run import whole_run_sentence
from traceops.render.writers.terminal import write_terminal
from traceops.rules import whole_run as whole_run_rule
from traceops.rules.whole_run import what_was_compiled
from traceops.rules.whole_run_claims import (
    HostLonger,
    OtherProcess,
    PartOfRank,
    PartOfRun,
    SlowClock,
    WaitsForCore,
    WorkersIn,
)
from traceops.traces.observed import Compilation

DATA = Path(__file__).parents[1] / "data"
BEGIN = 1_800_000_000_000


def run_of(tmp_path, source="ddp4"):
    """A copy whose run.json names its ranks' pids and GPUs."""
    run = tmp_path / "run"
    shutil.copytree(DATA / source, run)
    path = run / "run.json"
    manifest = json.loads(path.read_text()) if path.exists() else {"name": source}
    known = {entry["rank"]: entry for entry in manifest.get("ranks") or ()}
    manifest["ranks"] = [
        {**known.get(rank, {}), "rank": rank, "pid": 100 + rank, "device": {"uuid": f"GPU-{rank}"}} for rank in range(4)
    ]
    path.write_text(json.dumps(manifest))
    return run


def observed(run, *ranks, looks=()):
    for rank, steps in enumerate(ranks):
        write_rank(run, rank, steps)
    if looks:
        write_machine(run, looks)
    return analyze(run)


def found(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


def even(count=200):
    return [usual(50.0 + n % 3) for n in range(count)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    run = run_of(tmp_path_factory.mktemp("healthy"))
    looks = [
        ["r", BEGIN + 1000 * t, r, 100 + r, 900.0 * t, 10.0 * t, 0, r, 500.0 * t] for t in range(1, 9) for r in range(4)
    ]
    return observed(run, *[even() for _ in range(4)], looks=looks)


def test_a_healthy_run_is_told_as_one(healthy):
    for rule in ("TO-W001", "TO-W002", "TO-W003", "TO-W004"):
        assert not found(healthy, rule)
        assert next(check for check in healthy.checks if check.rule == rule).status == "clear"
    whole = healthy.whole_run
    assert (whole.steps, whole.typical_steps, whole.occasions) == (199, 199, ())
    assert [row.waited_pct for row in whole.machine] == [pytest.approx(1.0)] * 4


def test_what_was_not_observed_is_not_judged():
    report = analyze(DATA / "ddp4")
    assert report.whole_run is UNSET and not report.flames
    for rule in ("TO-W001", "TO-W002", "TO-W003", "TO-W004"):
        assert next(check for check in report.checks if check.rule == rule).status == "not_evaluated"


def test_the_page_begins_with_every_step(healthy, tmp_path):
    page = describe(healthy)
    ids = [section.id for section in page.sections]
    assert ids.index("all-steps-of-run") < min(ids.index(name) for name in ("ledger", "steps"))
    figure = page.charts["all-steps"]
    assert [trace["name"] for trace in figure["data"]] == [f"rank {rank}" for rank in range(4)]
    said = " ".join(getattr(block, "plain", "") for block in describe_summary(healthy, tmp_path, verbose=True))
    assert "The whole run: 199 steps without the profiler: the typical one takes 51.0 ms, 2.2 times as" in said
    written = {path.name for path in write_report(healthy, tmp_path / "r")}
    flames = {f"flame.rank_{rank}.speedscope.json" for rank in range(4)}
    assert flames <= written
    graph = json.loads((tmp_path / "r/flame.rank_0.speedscope.json").read_text())
    profile = graph["profiles"][0]
    assert sum(profile["weights"]) == pytest.approx(profile["endValue"], abs=0.01)
    assert all(n < len(graph["shared"]["frames"]) for stack in profile["samples"] for n in stack)
    assert json.loads((tmp_path / "r/report.json").read_text())["whole_run"]["typical_ms"] == pytest.approx(
        51.0, abs=0.1
    )
    write_report(analyze(DATA / "ddp4"), tmp_path / "r")
    assert not list((tmp_path / "r").glob("flame.*")), "those of an earlier report go"


def test_evaluation_is_weighed_over_the_whole_run(tmp_path):
    steps = even()
    for at in range(10, 200, 10):
        steps[at] = Step(150, stacks={"forward": 30, "backward": 20, "evaluate": 100})
    report = observed(run_of(tmp_path), *[steps] * 4)
    [told] = found(report, "TO-W001")
    assert (told.cause, told.severity) == ("evaluation", "warning")
    claim = claim_of(told, PartOfRun)
    assert (claim.place, claim.placed, claim.times, claim.steps) == ("evaluate (train.py:12)", "all", 19, 199)
    assert told.headline == "Evaluation takes 16 % of the run"
    line = next(e for e in told.evidence if e.fact is Fact.LINE)
    assert (line.value, line.file, line.line) == ("model(batch)", "/home/me/train.py", 12)
    assert "Evaluate less often" in told.advice
    figure = describe(report).charts["all-steps"]
    marks = next(trace for trace in figure["data"] if trace["name"] == "evaluation")
    assert marks["x"] == list(range(10, 200, 10))


def test_steps_that_a_gradient_scaler_left_out_are_told(tmp_path):
    """An fp16 program trained in 60 of its 70 steps, and only report.json said so."""
    steps = [usual(50.0, skipped=at in (0, 1, 2, 9)) for at in range(70)]
    report = observed(run_of(tmp_path), *[steps] * 4)
    assert report.whole_run.skipped_steps == 4
    said = "In 4 of all 70 steps the gradient scaler left the optimizer out (inf or NaN)."
    assert whole_run_sentence(report.whole_run, report).endswith(said)
    assert said in terminal_of(report, tmp_path)
    even_run = observed(run_of(tmp_path / "even"), *[even()] * 4)
    assert "scaler" not in terminal_of(even_run, tmp_path)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"where": "/home/me/train.py:42"}, "(train.py:42) is at work in steps 30 to 33: one takes 80.0 ms there."),
        ({"steps": 2}, "The script's own profiler is at work in 2 of the steps 30 to 33."),
        ({"first": None}, ""),
    ],
)  # fmt: skip
def test_a_script_that_profiles_itself_is_told(tmp_path, told, said):
    run = run_of(tmp_path)
    manifest = json.loads((run / "run.json").read_text())
    manifest["ranks"][0]["script_profiler"] = {"first": 30, "last": 33, "steps": 4, **told}
    (run / "run.json").write_text(json.dumps(manifest))
    steps = [usual(80.0 if 30 <= at < 34 else 50.0, recorded=30 <= at < 34) for at in range(70)]
    report = observed(run, *[steps] * 4)
    assert whole_run_sentence(report.whole_run, report).endswith(said or "all else here is about those.")
    assert (report.whole_run.own_profiler is None) == (not said)


@pytest.mark.parametrize(("recorded", "times"), [({"input": 1}, [2]), ({"recompilation": 1}, []), ({}, [])])
def test_late_input_that_came_twice_is_told_where_a_recorded_step_had_it_too(tmp_path, monkeypatch, recorded, times):
    """Of 40 steps each tenth waited 794 ms for its batch, one of them recorded: 57 % of the run was not told."""
    monkeypatch.setattr(whole_run_rule, "causes_of_unlike", lambda inputs: recorded)
    steps = [usual(20) for _ in range(30)]
    for at in (14, 24):
        steps[at] = Step(814, stacks={"collate": 794, "forward": 20})
    report = observed(run_of(tmp_path), *[steps] * 4)
    told = [next(e.value for e in one.evidence if e.fact is Fact.CAME) for one in found(report, "TO-W001")]
    assert told == times


def test_input_that_comes_late_in_every_few_steps_is_told_as_the_mean(tmp_path):
    steps = [usual(16.9) for _ in range(200)]
    for at in range(20, 200, 4):
        steps[at] = Step(116.9, stacks={"batch": 100, "forward": 10, "backward": 6.9})
    report = observed(run_of(tmp_path), *[steps] * 4)
    assert report.whole_run.input_by_turns and not report.whole_run.occasions
    assert not found(report, "TO-W001")
    told = terminal_of(report, tmp_path)
    assert "199 steps without the profiler, and one in a few waits for input: a step takes 39." in told


@pytest.mark.parametrize(("late_ms", "severity"), [(1600.0, "error"), (400.0, "warning")])
def test_data_that_comes_late_each_epoch_is_an_error_from_a_third_of_the_run(tmp_path, late_ms, severity):
    """It took 75 % of a run, where a loader's workers start with each epoch, and transfer of 14 ms a step led."""
    steps = even()
    for at in range(25, 200, 25):
        steps[at] = Step(50.0 + late_ms, stacks={"collate": late_ms, "forward": 30, "backward": 20})
    [told] = found(observed(run_of(tmp_path), *[steps] * 4), "TO-W001")
    assert (told.cause, told.severity) == ("input", severity)


@pytest.mark.parametrize(
    ("longer_ms", "within", "status", "said"),
    [
        (3.0, 0, "clear", "nothing that comes again takes 1 % of the run"),
        (60.0, 0, "clear", "and nothing shows why: what takes longer there came 19 times, 9."),
        (400.0, 0, "not_evaluated", "and nothing shows why: what takes longer there came 19 times, 43 % of the run"),
        (400.0, 20, "clear", "as another optimizer's Adam.step comes: what takes longer there came 19 times, 43 %"),
        (400.0, 50, "not_evaluated", "and nothing shows why"),
    ],
)
def test_long_steps_in_which_nothing_was_seen_are_no_clean_bill(tmp_path, longer_ms, within, status, said):
    """Of 49 steps 10 took ten times as long, 67 % of the run: 'nothing that comes again takes 1 % of the run'."""
    run = run_of(tmp_path)
    path = run / "run.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["ranks"]:
        entry |= {"step_ends": {"Adam.step": 200}, "steps_within": {"Adam.step": within} if within else {}}
    path.write_text(json.dumps(manifest))
    steps = even()
    for at in range(10, 200, 10):
        steps[at] = Step(50.0 + longer_ms)
    report = observed(run, *[steps] * 4)
    [check] = [check for check in report.checks if check.rule == "TO-W001"]
    assert (check.status, found(report, "TO-W001")) == (status, []) and said in check.reason
    unexplained = "43 % of the run, and nothing shows why (19 times, " in terminal_of(report, tmp_path)
    assert unexplained == (longer_ms == 400.0 and not within)


def test_a_collector_that_runs_in_every_step_is_told(tmp_path):
    steps = [usual(50.0 + n % 3, gc_ms=4.0) for n in range(100)]
    [told] = found(observed(run_of(tmp_path), steps, *[even(100)] * 3), "TO-W001")
    assert (told.cause, told.ranks, told.severity) == ("garbage_collection", (0,), "info")


def test_cudamalloc_in_the_step(tmp_path):
    run = run_of(tmp_path)
    for rank in range(4):
        counters = [["m", n, 40 + (3 * n if rank == 1 else 0), 0, 0] for n in range(0, 200, 20)]
        write_rank(run, rank, even(), extra=counters)
    [told] = found(analyze(run), "TO-M005")
    assert (told.cause, told.ranks) == (None, (1,)) and told.facts["calls"] == 3


def late_by_its_loader(count=120):
    """A rank in its collate_fn, and one that waits for it."""
    late = [Step(81, stacks={"collate": 31, "forward": 30, "backward": 20}) for _ in range(count)]
    return late, [Step(81, stacks={"forward": 30, "backward": 51}) for _ in range(count)]


def test_the_line_of_one_rank(tmp_path):
    late, peers = late_by_its_loader()
    report = observed(run_of(tmp_path, "straggler_gloo2"), peers, late)
    [told] = found(report, "TO-W003")
    assert (told.ranks, told.cause, told.evidence[0].value) == ((1,), "input", pytest.approx(31, abs=0.1))
    claim = claim_of(told, HostLonger)
    assert (claim.place, claim.others, claim.most) == ("collate_fn (data.py:88)", None, None)
    assert claim.ms == pytest.approx(31, abs=0.1)


def test_a_host_that_its_queue_holds_up_is_not_accused(tmp_path):
    """On a GPU a host waits in any call that finds the queue full: seen on rank 0 while a stranger slowed rank 1's."""
    late, peers = late_by_its_loader()
    for rank in range(4):
        ranks = [late if other == rank else peers for other in range(4)]
        report = observed(run_of(tmp_path / str(rank), "slow_gpu4"), *ranks)
        assert not found(report, "TO-W003"), "no device of this run is idle for its host"


def test_a_late_rank_gets_its_line(tmp_path):
    late = [Step(81, stacks={"collate": 31, "forward": 30, "backward": 20}) for _ in range(120)]
    peers = [Step(81, stacks={"forward": 30, "backward": 51}) for _ in range(120)]
    plain = analyze(DATA / "slow_loader4")
    [late_rank] = {rank for f in found(plain, "TO-S001") for rank in f.ranks}
    ranks = [late if rank == late_rank else peers for rank in range(4)]
    report = observed(run_of(tmp_path, "slow_loader4"), *ranks)
    [told] = found(report, "TO-S001")
    assert f"Rank {late_rank} spends 31.0 ms per step in collate_fn (data.py:88), the other ranks none." in told.message
    [line] = found(report, "TO-W003")
    assert line.severity == "info" and line.message.endswith(f"TO-S001 (rank {late_rank}) explains it.")
    assert told.advice == line.advice, "about the line, and not about the rank's cores and data shard"
    [without] = found(plain, "TO-S001")
    assert without.advice != line.advice
    [starving] = found(report, "TO-I002")
    assert "in collate_fn (data.py:88)" in starving.message and "workers of rank" not in starving.message


def test_a_loaders_workers_get_their_line(tmp_path):
    """The rank's host only waits for them: what is slow is in a process that no profiler sees."""
    run, waiting = run_of(tmp_path, "slow_loader4"), {"collate": 31, "forward": 30, "backward": 20}
    for rank in range(4):
        write_rank(run, rank, [Step(81, stacks=waiting) for _ in range(120)])
    [late_rank] = {rank for f in found(analyze(run), "TO-I002") for rank in f.ranks}
    busy = {"tokenize": 60, "collate": 20, "library": 15, "idle": 5}
    for worker in (0, 1):
        write_loader(run, late_rank, worker, busy)
    report = analyze(run)
    [starving], [late] = found(report, "TO-I002"), found(report, "TO-S001")
    said = WorkersIn(rank=late_rank, pct=100 * 60 / 95, place="tokenize (data.py:51)", busy=95.0).message()
    assert said in starving.message and said in late.message
    line = next(e for e in starving.evidence if e.fact is Fact.LINE and e.value == "for word in text:")
    assert (line.file, line.line, line.rank) == ("/home/me/data.py", 51, late_rank)
    for worker in (0, 1):  # which mostly wait themselves: they are not what is slow
        write_loader(run, late_rank, worker, {"tokenize": 20, "idle": 60})
    assert "workers of rank" not in found(analyze(run), "TO-I002")[0].message


def look(t, waits=0.01, hog=0.0, mhz=1980, stranger=None, rank=1):
    ms = BEGIN + 1000 * t
    lines = [
        ["r", ms, r, 100 + r, 900.0 * t, (1000 * waits if r == rank else 10) * t, 0, r, 500.0 * t] for r in range(4)
    ]
    lines += [["p", ms, 4711, "stress", hog, 1]] if hog else []
    for gpu in range(4):
        others = [[stranger, 5 << 30]] if stranger and gpu == rank else []
        busy = [[stranger, 55]] if others else []
        clock, reasons = (mhz, 4) if gpu == rank else (1980, 0)
        processes = [[100 + gpu, 1], *others]
        lines.append(["G", ms, gpu, clock, reasons, 699.0, 60, 99, 1, processes, busy])
    return lines


def machine(tmp_path, source="ddp4", **more):
    facts = [["g", n, f"GPU-{n}", "H200", 1980, 700.0] for n in range(4)]
    looks = [*facts, *(line for t in range(1, 9) for line in look(t, **more))]
    return observed(run_of(tmp_path, source), *[even()] * 4, looks=looks)


def test_what_waiting_for_cores_may_explain_is_not_said_to_be_without_a_sign(tmp_path):
    """nanoGPT beside another program: 'nothing shows why', below a first sentence on cores."""
    facts = [["g", n, f"GPU-{n}", "H200", 1980, 700.0] for n in range(4)]
    looks = [*facts, *(line for t in range(1, 9) for line in look(t, waits=0.4, hog=97.0))]
    steps = even()
    for at in range(10, 200, 10):
        steps[at] = Step(450.0)
    report = observed(run_of(tmp_path), *[steps] * 4, looks=looks)
    assert "of the run, and nothing but waiting for cores (TO-W002) shows why" in terminal_of(report, tmp_path)


def test_a_hog_on_a_ranks_cores(tmp_path):
    [told] = found(machine(tmp_path, waits=0.4, hog=97.0), "TO-W002")
    assert (told.cause, told.ranks, told.severity) == ("shared_cores", (1,), "warning")
    claim = claim_of(told, WaitsForCore)
    assert claim.processes == ("pid 4711 (stress, 97 % of a core)",) and claim.pct == pytest.approx(40, abs=0.5)


def test_a_strangers_process(tmp_path):
    [told] = found(machine(tmp_path, stranger=4242), "TO-W002")
    assert (told.cause, told.ranks) == ("other_process", (1,))
    claim = claim_of(told, OtherProcess)
    assert (claim.pid, size_text(claim.memory), round(claim.busy)) == (4242, "5.4 GB", 55)


def test_kernels_that_wait_on_a_shared_gpu_are_no_cost_of_the_stranger(tmp_path):
    """A step took as long where no kernel waited, for its host sets the pace."""
    report = analyze(unpacked("shared_gpu", tmp_path))
    [told] = found(report, "TO-W002")
    assert not found(report, "TO-K001")  # not "22.2 ms at best, and to 22.2 at worst"
    assert told.cause == "other_process" and told.impact_ms is None
    claim = claim_of(told, OtherProcess)
    assert (round(claim.queued, 1), round(claim.step, 1)) == (25.8, 33.6)


def test_a_stranger_is_the_reason_that_a_late_ranks_headline_has(tmp_path):
    report = machine(tmp_path, "slow_gpu4", stranger=4242, rank=2)
    [late] = found(report, "TO-S001")
    assert late.ranks == (2,) and "Process 4242 holds 5.4 GB" in late.message
    assert late.proof(Fact.REASON).value == "another process on its GPU, pid 4242"
    assert card_of(report).rule == "TO-S001"
    [stranger] = found(report, "TO-W002")
    assert stranger.severity == "info" and stranger.message.endswith("TO-S001 (rank 2) explains it.")


def test_a_lower_clock_is_a_reason_only_where_the_rank_computes_longer(tmp_path):
    assert not found(machine(tmp_path / "even", mhz=1200), "TO-W002")
    [told] = found(machine(tmp_path / "late", "slow_gpu4", mhz=1200, rank=2), "TO-W002")
    claim = claim_of(told, SlowClock)
    assert (claim.rank, claim.mhz, claim.most, claim.others, claim.reason) == (2, 1200, 1980, 1980, "power_cap")


def test_a_gpu_at_its_power_cap_is_the_reason_that_its_rank_is_late(tmp_path):
    """Two H200s: products of zeros on the one, of random numbers on the other. Its host ran 40 steps ahead."""
    report = analyze(unpacked("power_cap", tmp_path))
    said = card_of(report).headline
    assert said == "Rank 1's GPU takes longer for the same work: the other rank waits 6.84 ms per step"
    assert found(report, "TO-S001")[0].proof(Fact.REASON).value.startswith("its GPU is")
    assert report.whole_run.early_window is None and report.whole_run.typical_ms == pytest.approx(39.8, abs=0.1)


def test_a_rank_that_waits_for_its_cores_is_not_blamed_for_its_line(tmp_path):
    late = [Step(51, stacks={"tokenize": 20, "forward": 20, "backward": 11}) for _ in range(200)]
    peers = [Step(51, stacks={"forward": 20, "backward": 31}) for _ in range(200)]
    assert found(observed(run_of(tmp_path / "plain", "straggler_gloo2"), peers, late), "TO-W003")
    looks = [line for t in range(1, 9) for line in look(t, waits=0.4, hog=97.0) if line[0] != "G"]
    report = observed(run_of(tmp_path, "straggler_gloo2"), peers, late, looks=looks)
    assert not found(report, "TO-W003") and found(report, "TO-W002")


def late_for_cores(tmp_path, late_ms, others_ms):
    """straggler_gloo2, whose rank 1 is 67 ms late in each recorded step, with so much waiting for a core in it."""
    ranks = [
        [usual(100.0, recorded=8 <= n < 14, core_wait_ms=ms if 8 <= n < 14 else 0.0) for n in range(60)]
        for ms in (others_ms, late_ms)
    ]
    return observed(run_of(tmp_path, "straggler_gloo2"), *ranks)


@pytest.mark.parametrize("late_ms, others_ms", [(65.0, 0.0), (95.0, 30.0)])
def test_a_rank_that_waits_for_a_core_is_not_late(tmp_path, late_ms, others_ms):
    """Healthy ranks on crowded cores were called late, with an error of 25 to 52 % of the step."""
    report = late_for_cores(tmp_path, late_ms, others_ms)
    assert not found(report, "TO-S001") and not found(report, "TO-S002")
    check = next(check for check in report.checks if check.rule == "TO-S001")
    assert check.status == "not_evaluated" and "rank 1" in check.reason and "for a core" in check.reason


def test_steps_that_take_much_longer_than_the_recorded_ones_are_told(tmp_path):
    """The verdict was of steps of 15 ms in a run whose typical step took 85."""
    steps = [usual(400.0) for _ in range(60)]
    report = observed(run_of(tmp_path), *[steps] * 4)
    said = terminal_of(report, tmp_path)
    assert card_of(report).level != "clear" and card_of(report).caveat == "unlike_run"
    times = 400.0 / report.summary.step_time_ms.typical
    assert f"takes 400 ms, {times:.1f} times as long as the recorded ones; all else here is about those" in said


@pytest.mark.parametrize("step_ms, severity", [(100.0, "error"), (400.0, "warning")])
def test_recorded_steps_unlike_the_run_make_no_error(tmp_path, step_ms, severity):
    steps = [usual(step_ms) for _ in range(60)]
    report = observed(run_of(tmp_path, "straggler_gloo2"), steps, steps)
    [late] = found(report, "TO-S001")
    assert late.severity == severity
    assert (card_of(report).caveat == "unlike_run") == (step_ms == 400.0)


@pytest.mark.parametrize("late_ms, others_ms", [(0.0, 0.0), (20.0, 0.0), (60.0, 60.0)])
def test_a_rank_that_is_late_beside_a_want_of_cores_stays_named(tmp_path, late_ms, others_ms):
    [late] = found(late_for_cores(tmp_path, late_ms, others_ms), "TO-S001")
    assert (late.ranks, late.severity, late.cause) == ((1,), "error", "host")


def test_observing_that_ended_early_is_told(tmp_path):
    run = run_of(tmp_path)
    manifest = json.loads((run / "run.json").read_text())
    manifest["ranks"][2]["observed"] = {"samples": 3, "trouble": "OSError: disk"}
    (run / "run.json").write_text(json.dumps(manifest))
    assert "rank 2: observing ended early (OSError: disk)" in analyze(run).summary.notes
    assert MOST_RANKS >= 64


def test_looks_that_came_late_are_told(tmp_path):
    """Of 12 ms that kept Python's lock, 20 of 37 % of the time were told, without a word."""
    run = run_of(tmp_path)
    manifest = json.loads((run / "run.json").read_text())
    for rank, late in enumerate([True, True, False]):
        manifest["ranks"][rank]["observed"] = {"samples": 3, "late": late, "trouble": None}
    manifest["ranks"][3]["observed"] = {"samples": 3, "trouble": None}  # of an earlier traceops
    (run / "run.json").write_text(json.dumps(manifest))
    (told,) = [note for note in analyze(run).summary.notes if "late" in note]
    assert told.startswith("ranks 0–1: looks at the host came up to 5 ms late")


def test_a_window_before_the_training_has_settled(tmp_path):
    steps = [usual(36.0 if n < 20 else 24.0, recorded=8 <= n < 14) for n in range(80)]
    report = observed(run_of(tmp_path), *[steps] * 4)
    said = [note for note in report.summary.notes if "--skip-first" in note]
    assert said == [
        "the recorded steps may not be like later ones: just before them a step took 36.0 ms, later ones take "
        "24.0 ms; traceops run --skip-first 17 records those"
    ]
    assert "The recorded steps may not be like later ones" in terminal_of(report, tmp_path)
    assert card_of(report).caveat == "unlike_run"


def terminal_of(report, tmp_path):
    return " ".join(getattr(block, "plain", "") for block in describe_summary(report, tmp_path, verbose=True))


def test_a_program_that_ended_before_its_window_and_left_its_first_steps():
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}

    def said(steps, numbers):
        found = SimpleNamespace(manifest={"schedule": schedule, "steps": steps})
        numbered = {number for number in numbers if number >= 0}
        return first_steps_only(found, [SimpleNamespace(step_numbers=numbers, numbered_steps=numbered)])

    [note] = said(8, [1, 2])
    assert note.startswith("the recorded steps are the program's first whole ones")
    assert note.endswith(
        "the schedule needs 14; traceops run --skip-first 1 --unprofiled 2 --warmup 1 --active 4 records later ones"
    )
    assert said(3, [1, 2])[0].endswith("the schedule needs 14"), "there are no later ones"
    assert said(11, [10]) == said(40, [10, 11, 12, 13]) == said(8, []) == said(None, [1, 2]) == []
    assert said(40, [1, 2])[0].endswith(": recording ended before the schedule's window")
    schedule.update(skip_first=1, unprofiled=0, warmup=0)
    assert said(40, [1, 2]) == [], "the schedule asks for them"


def test_what_comes_in_some_recorded_steps_is_not_the_profilers(tmp_path):
    """Garbage collection and checkpoints in two of four steps: 'the profiler slowed the steps, 12.53 times as long'."""
    run = run_of(tmp_path)

    def judged(profiled):
        manifest = json.loads((run / "run.json").read_text())
        manifest.update(profiled_step_ms=179.0, unprofiled_step_ms=14.3)
        for rank in manifest["ranks"]:
            rank["profiled_step_ms"] = profiled
        (run / "run.json").write_text(json.dumps(manifest))
        report = analyze(run)
        return report.summary.profiler_slowdown, next(c.status for c in report.checks if c.rule == "TO-V005")

    assert judged([496.4, 15.3, 342.8, 11.4]) == (None, "not_evaluated")
    slowdown, status = judged([200.0, 179.0, 180.0, 178.0])
    assert slowdown > 12 and status == "fired"


def test_first_steps_are_not_held_to_later_ones_and_are_no_clean_bill(tmp_path):
    run = run_of(tmp_path)
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}

    def told(recorded):
        manifest = json.loads((run / "run.json").read_text())
        manifest.update(
            steps=9, schedule=schedule, profiled_steps=recorded, profiled_step_ms=60.0, unprofiled_step_ms=20.0
        )
        (run / "run.json").write_text(json.dumps(manifest))
        report = analyze(run)
        [check] = [check for check in report.checks if check.rule == "TO-V005"]
        return report, check

    report, check = told([10, 11])
    assert check.status == "fired" and not report.summary.first_steps
    report, check = told([1, 2])
    assert check.status == "not_evaluated" and "the program's first ones" in check.reason
    assert report.summary.profiler_slowdown is None


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "0/0: size mismatch at index 0. expected 8, actual 48.\nmore",
            "size mismatch at index 0. expected 8, actual 48",
        ),
        (None, None),
        (" ", None),
    ],
)
def test_what_torch_compiled_again_and_why_are_facts(reason, said):
    told = what_was_compiled([Compilation(10, 5_000, "inner", "/x/train.py", 7, reason)])
    assert told == {"compiled": "inner (train.py:7)", "why": said}


def test_two_reasons_for_compiling_again_are_told_with_their_shares():
    """Of three recompilations two were for a new length, and the longest one's reason was given for all three."""
    sizes = "tensor 'args[0]' size mismatch at index 1. expected 32, actual"
    told = [
        Compilation(20, 300_000, "inner", "/x/train.py", 7, "0/0: GLOBAL_STATE changed: grad_mode "),
        Compilation(23, 100_000, "inner", "/x/train.py", 7, f"0/0: {sizes} 40"),
        Compilation(47, 100_001, "inner", "/x/train.py", 7, f"0/0: {sizes} 41"),
    ]
    why = f"GLOBAL_STATE changed: grad_mode (60 % of it), {sizes} 41 (40 % of it)"
    assert what_was_compiled(told) == {"compiled": "inner (train.py:7)", "why": why}


def compiled(step, ms, reason="0/0: k == 1      # return x * k  # model.py:9 in forward"):
    return ["c", step, round(1e3 * ms), "forward", "/home/me/model.py", 8, reason]


def recompiling(tmp_path, *notes, compile_ms=()):
    """One rank whose steps take 50 ms, recorded from 8 to 13, and what torch says that it compiled."""
    spent = dict(compile_ms)
    steps = [usual(50.0 + spent.get(n, 0.0), compile_ms=spent.get(n, 0.0), recorded=8 <= n < 14) for n in range(60)]
    run = run_of(tmp_path)
    for rank in range(4):
        write_rank(run, rank, steps, notes if rank == 0 else ())
    return analyze(run)


def test_recompilations_that_end_at_the_recompile_limit_are_told(tmp_path):
    """A program compiled again in each of its first seven steps, until torch gave up: TO-W001 was clear."""
    again = dict.fromkeys(range(1, 8), 560.0)
    [told] = found(recompiling(tmp_path, *(compiled(n, ms) for n, ms in again.items()), compile_ms=again), "TO-W001")
    assert (told.cause, told.severity, told.ranks) == ("recompilation", "info", (0,))
    claim = claim_of(told, PartOfRank)
    assert told.steps == tuple(range(1, 8)) and (claim.count, claim.steps) == (7, 59)
    assert (claim.compiled, claim.why) == ("forward (model.py:8)", "k == 1")


def test_a_recompilation_in_a_recorded_step_counts(tmp_path):
    """One fell into the window, one did not: 'nothing that comes again takes 1 % of the run', which lost 80 %."""
    again = {10: 4000.0, 40: 2000.0}
    [told] = found(recompiling(tmp_path, *(compiled(n, ms) for n, ms in again.items()), compile_ms=again), "TO-W001")
    assert (told.cause, told.severity, told.steps) == ("recompilation", "error", (10, 40))


def test_what_is_compiled_in_each_step_is_told_of_all_of_them(tmp_path):
    """A rank compiled in each step, longer in four: '3.5 % of the run, 4 times', of 78 % of its time."""
    again = dict.fromkeys(range(60), 40.0) | dict.fromkeys((20, 30, 40, 50), 200.0)
    report = recompiling(tmp_path, *(compiled(n, ms) for n, ms in again.items()), compile_ms=again)
    [told] = found(report, "TO-W001")
    assert (told.cause, told.severity, told.ranks) == ("recompilation", "error", (0,))
    claim = claim_of(told, PartOfRank)
    assert claim.rank == 0 and claim.count >= 50 and claim.why == "k == 1"


def test_what_is_compiled_once_is_no_recompilation(tmp_path):
    first = [compiled(n, 500.0, None) for n in range(5)]
    assert not found(recompiling(tmp_path / "first", *first), "TO-W001")
    assert not found(recompiling(tmp_path / "once", compiled(5, 500.0)), "TO-W001")


def test_what_is_said_of_first_steps():
    report = analyze(DATA / "ddp4")
    report = replace(report, findings=(), summary=replace(report.summary, first_steps=True))
    card = card_of(report)
    assert (card.level, card.caveat) == ("info", "first_steps")
    lines = io.StringIO()
    write_terminal(describe_summary(report, Path("x"), verbose=True), lines)
    assert "The recorded steps are the program's first whole ones" in lines.getvalue()


def test_what_came_once_is_not_so_long_each_time(tmp_path):
    """It was "(1 time, 184 ms each)"."""
    steps = even()
    steps[90] = Step(900.0, stacks={"evaluate": 850, "forward": 30, "backward": 20})
    told = terminal_of(observed(run_of(tmp_path), *[steps] * 4), tmp_path)
    assert "evaluation 7.7 % of the run (once, 849 ms)" in told


def test_long_steps_of_a_round_are_its_phases(tmp_path):
    """'A function that most steps do not call' was said of a rollout before each fourth step."""
    steps = [usual(50.0) for _ in range(200)]
    for at in range(4, 200, 4):
        steps[at] = Step(400.0, stacks={"tokenize": 350, "forward": 30, "backward": 20})
    report = observed(run_of(tmp_path), *[steps] * 4)
    [told] = found(report, "TO-W004")
    assert told.severity == "warning" and told.facts["round_steps"] == 4
    assert told.facts["place"] == "tokenize (text.py:7)" and told.facts["pct"] == pytest.approx(64, abs=2)
    assert not found(report, "TO-W001")
    rounds = report.whole_run.rounds
    assert (rounds.steps, round(rounds.ms)) == (4, 550)
    assert [(row.where, row.trains) for row in rounds.phases] == [
        ("tokenize (text.py:7)", False),
        ("train (train.py:30)", True),
    ]
    assert "in rounds of 4, which take 550 ms" in terminal_of(report, tmp_path)


def test_a_step_with_much_beside_the_training_has_phases(tmp_path):
    steps = [Step(50.0, stacks={"tokenize": 20, "forward": 18, "backward": 12}) for _ in range(200)]
    [told] = found(observed(run_of(tmp_path), *[steps] * 4), "TO-W004")
    assert told.severity == "info" and told.facts["round_steps"] == 1
    assert told.facts["pct"] == pytest.approx(40, abs=1)


def test_where_there_are_no_stages_their_rule_judges_no_compute(tmp_path):
    unjudged = analyze(unpacked("unsynchronised", tmp_path)).summary.unjudged
    assert [one.bucket for one in unjudged if one.why == "unrated"] == ["compute"]
