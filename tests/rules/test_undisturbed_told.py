"""What a report says where a light window tells of the undisturbed step: a run of four GPUs, with drawn windows."""

import io
import json
import shutil
from pathlib import Path

import pytest
from changed import replace
from light_run import write_light
from msgspec import UNSET, structs
from observed_run import Step, usual, write_rank

from traceops.across.cross_rank import measure_across
from traceops.across.undisturbed import LightRank, Undisturbed
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.rank_files import LATER_LIGHT_FILES, LIGHT_FILE
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.render.files import write_report
from traceops.render.report.card import card_of
from traceops.render.report.first_screen import first_screen
from traceops.render.report.html import describe
from traceops.render.report.terminal import print_report
from traceops.rules.idle_time import HostBound, Turns
from traceops.rules.pipeline import LateSend, judge_late, without_recording
from traceops.rules.shared import work_ms
from traceops.rules.validity_claims import LongerAfter, ProfilerSlowed
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"
GATHER = "_Z38ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorage"


def ran(idle_ms):
    """A step of 20.5 ms that is idle for so long."""
    return lambda step: [("gemm", 0, 15 - idle_ms, 7), (GATHER, 15 - idle_ms, 20.498 - idle_ms, 20)]


def made(folder, idle_ms=2.0, **more):
    run = folder / "run"
    shutil.copytree(DATA / "fsdp2_4", run)
    told = {"unprofiled_step_ms": 20.0, "profiled_step_ms": 39.6, "world_size": 4, **more}
    (run / "run.json").write_text(json.dumps(told))
    for rank in range(4):
        write_light(run, rank, 6, 20.5, ran(idle_ms))
    return run


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return analyze(made(tmp_path_factory.mktemp("told")))


def text_of(report):
    file = io.StringIO()
    print_report(report, file, Path("reports/x"), verbose=True)
    return " ".join(file.getvalue().split())


def test_the_three_steps_are_one_line(told):
    assert (
        "Undisturbed: a step takes 20.0 ms without recording, 20.5 ms in the light window, "
        f"{told.undisturbed.recorded_ms:.1f} ms with the profiler." in text_of(told)
    )
    assert "the device computes for 13.0, transfers for 5.50, is idle for 1.50 ms (medians over ranks)" in text_of(told)


def test_a_longer_step_behind_the_window_comes_with_what_ends_it(told):
    slower = structs.replace(told, undisturbed=structs.replace(told.undisturbed, behind_ms=24.0))
    said = text_of(slower)
    assert "After the recorded steps one takes 24.0 ms" in said and "traceops run --detach ends it" in said
    assert "--detach" not in text_of(told)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ({0: "CUDA 12.4 is too old", 1: "CUDA 12.4 is too old", 2: "TEARDOWN_CUPTI is set", 3: "TEARDOWN_CUPTI is set"},
         "It was not ended on ranks 0–1 (CUDA 12.4 is too old) and on ranks 2–3 (TEARDOWN_CUPTI is set)."),
        ({0: None, 1: None, 2: None, 3: None}, "traceops run --detach ends it (CUDA 12.6 or newer"),
        ({0: "TEARDOWN_CUPTI is set", 1: None, 2: None, 3: ""}, "traceops run --detach ends it on ranks 1–2 (CUDA"),
    ],
)  # fmt: skip
def test_why_the_profiler_stays_is_told_by_rank(tmp_path, why, said):
    """A rank may have another reason than the next one; "" is one that was ended."""
    ranks = [
        {"rank": rank, "detached": one if one is None else {"done": not one, "why_not": one or None}}
        for rank, one in why.items()
    ]
    run = made(tmp_path, ranks=ranks)
    for rank in range(4):
        steps = [usual(20.0) for _ in range(8)] + [usual(39.0, recorded=True) for _ in range(6)]
        write_rank(run, rank, steps + [usual(27.0) for _ in range(24)])
        write_light(run, rank, 6, 28.0, ran(9.0))
    assert said in text_of(analyze(run))


def test_the_report_has_each_ranks_undisturbed_step(told, tmp_path):
    write_report(told, tmp_path)
    rows = json.loads((tmp_path / "report.json").read_text())["undisturbed"]
    assert (rows["source"], rows["step_ms"], rows["light_ms"], rows["light_steps"]) == ("cupti", 20.0, 20.5, 6)
    assert [row["rank"] for row in rows["ranks"]] == [0, 1, 2, 3]
    for row in rows["ranks"]:
        assert row["idle_ms"] == pytest.approx(1.5, abs=0.01) and row["compute_ms"] == pytest.approx(13, abs=0.01)
        assert sum(row[key] for key in row if key not in ("rank", "light_ms")) == pytest.approx(20.0, abs=0.01)
    assert any(section.heading == "The undisturbed step" for section in describe(told).sections)


def test_no_more_idle_time_is_claimed_than_the_light_window_shows(told, tmp_path):
    """The trace shows 27.7 ms of waiting for the host; the step without the profiler has room for 7."""
    assert not [f for f in told.findings if f.rule == "TO-I001"]
    check = next(c for c in told.checks if c.rule == "TO-I001")
    assert check.status == "clear" and "by the light window it is 1.46 ms of 20.0 ms" in check.reason
    slow = analyze(made(tmp_path, 5.0))
    [found] = [f for f in slow.findings if f.rule == "TO-I001"]
    assert found.severity == "warning" and found.confidence == "medium"
    answer = first_screen(slow, card_of(slow))[0]
    assert card_of(slow).without_profiler and answer.costs[0].ms == pytest.approx(20.0)
    assert 3.5 < found.evidence[0].value <= 4.5 and found.impact_ms <= 4.51, "of the idle time, the host's share"
    claim = claim_of(found, HostBound)
    assert claim.profiler == "light" and 27 <= claim.recorded < 28


def by_turns(folder):
    """The traces show rank 3 idle and the others waiting for it; in the light window rank 0's host is the late one."""
    run = made(folder)
    for rank in range(4):
        begin = 9 if rank == 0 else 4
        ran = [("gemm", begin - 4, begin, 7), ("gemm", begin, begin + 2, 7), (GATHER, begin + 2, 20.498, 20)]
        write_light(run, rank, 6, 20.5, lambda step, ran=ran: ran)
    return analyze(run)


def in_two_windows(folder, *late):
    """In each light window the host of that rank is 7 ms late, and the others wait for it."""
    files = (LIGHT_FILE, *LATER_LIGHT_FILES)[: len(late)]
    run = made(folder, ranks=[{"rank": rank, "light": light_of(rank, len(late) - 1)} for rank in range(4)])
    for number, (file, own) in enumerate(zip(files, late, strict=True)):
        for rank in range(4):
            begin = 7 if rank == own else 0
            ran = [("gemm", begin, begin + 11, 7), (GATHER, begin + 11, 20.498, 20)]
            write_light(run, rank, 6, 20.5, lambda step, ran=ran: ran, file=file, first=20 + 110 * number)
    return analyze(run)


def test_hosts_late_by_turns_are_graded_by_what_launches_in_time_save(tmp_path):
    report = in_two_windows(tmp_path, 0, 3)
    assert [(one.first, one.last) for one in report.undisturbed.windows] == [(20, 25), (130, 135)]
    assert [round(row.idle_ms, 1) for row in report.undisturbed.windows[1].ranks] == [0, 0, 0, 7.0]
    [found] = [f for f in report.findings if f.rule == "TO-I001"]
    turns = Turns(rank=0, other=3, steps=(20, 25), other_steps=(130, 135))
    assert claim_of(found, HostBound).turns == turns
    assert found.severity == "warning", "of 17 % a rank, and a third of the step with all launches in time"
    assert 100 * found.impact_ms / 20.0 > 20 > found.evidence[1].value
    assert not [f for f in report.findings if f.rule == "TO-S001" and f.severity != "info"]


def test_windows_in_which_the_same_host_is_late_change_nothing(tmp_path):
    report = in_two_windows(tmp_path, 0, 0)
    [found] = [f for f in report.findings if f.rule == "TO-I001"]
    assert claim_of(found, HostBound).turns.steps is None
    assert found.severity == "warning" and found.evidence[1].value > 30


def test_of_hosts_that_are_late_by_turns_none_alone_is_named(tmp_path):
    report = by_turns(tmp_path)
    [found] = [f for f in report.findings if f.rule == "TO-I001"]
    assert found.ranks == (0, 3)
    assert claim_of(found, HostBound).turns == Turns(rank=0, other=3)


def test_with_launches_in_time_a_step_keeps_the_work_of_the_busiest_device(tmp_path):
    """Not only its own idle time goes: ranks that wait for a late host wait no more. But no device works for less."""
    report = by_turns(tmp_path)
    [found] = [f for f in report.findings if f.rule == "TO-I001"]
    busiest = max(row.compute_ms + row.comm_transfer_ms + row.memory_ms for row in report.undisturbed.ranks)
    assert busiest == pytest.approx(15.5, abs=0.1)
    assert found.impact_ms <= report.undisturbed.step_ms - busiest + 0.01
    saved = next(one.value for one in found.evidence if one.fact is Fact.SAVED_WITHOUT_IT)
    assert saved == found.impact_ms, "of the step without the profiler, of which it is a part"


def test_recorded_host_times_are_none_of_the_undisturbed_step(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DATA / "hta" / "pair", run)
    (run / "run.json").write_text(json.dumps({"unprofiled_step_ms": 150.0, "profiled_step_ms": 400.0, "world_size": 2}))
    for rank in range(2):
        write_light(run, rank, 6, 155.0, lambda step: [("gemm", 0, 50, 7)])
    [found] = [f for f in analyze(run).findings if f.rule == "TO-I001"]
    claim = claim_of(found, HostBound)
    assert claim.rank == 0 and claim.first is None, "68 of 45 ms"


def test_what_the_profiler_costs_is_a_remark(told):
    [found] = [f for f in told.findings if f.rule == "TO-V005"]
    assert found.severity == "info" and "light window" in found.message


def test_steps_that_are_longer_behind_the_window_than_before_it_are_told(tmp_path):
    """The light window lies among the longer ones: it was disturbed too, and the report does not deny it."""
    run = made(tmp_path)
    before, behind = [usual(20.0) for _ in range(8)], [usual(27.0) for _ in range(24)]
    for rank in range(4):
        write_rank(run, rank, [*before, *(usual(39.0, recorded=True) for _ in range(6)), *behind])
        write_light(run, rank, 6, 28.0, ran(9.0))
    report = analyze(run)
    [found] = [f for f in report.findings if f.rule == "TO-V005"]
    claim = claim_of(found, ProfilerSlowed)
    assert found.severity == "info" and (claim.light_ms, claim.stretched) == (pytest.approx(28), pytest.approx(1.4))
    assert (round(claim.later.pct), claim.later.after, claim.later.before) == (35, 27, 20)
    said = text_of(report)
    assert "(20.0 ms before the recorded steps, 27.0 ms after them)" in said
    assert (
        "a step takes 20.0 ms without recording (7 steps before the recorded ones, 20.0 ms to 20.0 ms), 28.0 ms "
        "in the light window" in said
    )
    assert "Without recording, scaled from the light window: the device" in said
    assert "After the recorded steps one takes 27.0 ms, 35 % more" in said
    assert "Outside of the recorded steps, rank 0's host spends 15.3 ms per step in" in said
    assert "These steps take 25.4 ms." in said


def test_steps_longer_behind_the_window_are_told_where_its_own_are_not_known_to_be(tmp_path):
    run = made(tmp_path, profiled_step_ms=None)
    for rank in range(4):
        steps = [usual(20.0) for _ in range(8)] + [usual(39.0, recorded=True) for _ in range(6)]
        write_rank(run, rank, steps + [usual(27.0) for _ in range(24)])
        (run / f"rank_{rank}/light.bin.gz").unlink()
    [found] = [f for f in analyze(run).findings if f.rule == "TO-V005"]
    assert found.severity == "info" and round(claim_of(found, LongerAfter).later.pct) == 35


def test_where_cupti_was_ended_steps_behind_the_window_are_undisturbed_too(tmp_path):
    """What they take more is the training's own, and no cost of the profiler."""
    ranks = [{"rank": rank, "detached": {"done": True, "why_not": None}} for rank in range(4)]
    run = made(tmp_path, ranks=ranks)
    for rank in range(4):
        steps = [usual(20.0) for _ in range(8)] + [usual(39.0, recorded=True) for _ in range(6)]
        write_rank(run, rank, steps + [usual(23.0) for _ in range(24)])
        write_light(run, rank, 6, 23.4, ran(4.0))
    report = analyze(run)
    [found] = [f for f in report.findings if f.rule == "TO-V005"]
    assert "later" not in found.facts
    said = text_of(report)
    assert "a step takes 22.3 ms without recording, 23.4 ms in the light window" in said
    assert "(20.0 ms before the recorded steps, 23.0 ms after them)" in said and "After the recorded" not in said


def test_a_clean_bill_speaks_of_the_undisturbed_step(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(DATA / "recompile2", run)
    for rank in range(2):
        write_light(run, rank, 6, 122.0, lambda step: [("gemm", 0, 114, 7), (GATHER, 114, 117, 20)])
    card = card_of(analyze(run))
    assert card.without_profiler and card.now_ms == pytest.approx(120, abs=1)
    assert card.headline == "No problem found: 95 % of the step is compute; how fast it could be is unknown"


def test_without_a_light_window_the_report_has_none():
    assert analyze(DATA / "fsdp2_4").undisturbed is UNSET


def test_why_there_is_none_or_another_is_told(tmp_path):
    why = {"cupti": "CUPTI refuses: cuptiActivityEnable(10) gave 39"}
    ranks = [{"rank": rank, "light": {"source": "torch", "why": why}} for rank in (0, 1)]
    ranks += [{"rank": 2, "light": {"source": None, "why": {**why, "torch": "another profiler is running"}}}]
    run = made(tmp_path, ranks=ranks, unprofiled_step_ms=9.0)
    (run / "rank_3/light.bin.gz").write_bytes(b"cut off")
    report = analyze(run)
    notes = " ".join(report.summary.notes)
    assert report.undisturbed is UNSET
    assert "ranks 0–1: the light window is by torch, which disturbs more" in notes
    assert "rank 2: the light window is missing" in notes and "another profiler is running" in notes
    assert "one is no measure of the other" in notes and "rank_3/light.bin.gz is no light window" in notes


def test_recorded_waiting_is_not_said_of_the_shorter_step_without_the_profiler(tmp_path):
    run = made(tmp_path)
    write_light(run, 1, 5, 20.5, ran(2.0))  # of other steps than the other ranks': no window is used
    report = analyze(run)
    card = card_of(report)
    assert report.undisturbed is UNSET and card.without_profiler and card.now_ms == pytest.approx(20.0, abs=0.05)
    assert "wait" not in card.headline.replace("waits for its host", "")


def test_a_rank_without_a_light_window_leaves_waiting_unknown_and_is_named(tmp_path, told):
    """What remains of the recorded waiting: of the whole nothing, of three ranks it is not known."""
    assert "Without the profiler a step takes 20.0 ms" in text_of(told)
    run = made(tmp_path)
    shutil.copy(run / "rank_1/light.bin.gz", run / "rank_2/light.bin.gz")
    report = analyze(run)
    notes = " ".join(report.summary.notes)
    assert "rank_2/light.bin.gz is no light window that can be used (it is of rank 1)" in notes
    assert "the undisturbed step is of 3 of 4 ranks: rank 2 left no light window" in notes
    assert "cannot split 5.50 ms of it" in text_of(report)


def test_a_step_without_the_profiler_is_one_number_and_others_are_labelled(tmp_path):
    """An LSTM's step took 66.6 ms (67.4 by itself), and 60.1 'without recording': the longer fifth was left out.

    A UNet's three numbers, 28.5, 27.3 and 26.7 ms, were all called so.
    """
    run = made(tmp_path, unprofiled_step_ms=19.0)
    for rank in range(4):
        write_rank(run, rank, [usual(26.0 if n % 5 == 4 else 20.0) for n in range(200)])
    report = analyze(run)
    typical = report.whole_run.typical_ms
    assert typical == pytest.approx(21.2, abs=0.05)
    assert report.summary.plain_ms == pytest.approx(typical, abs=0.001)
    text = text_of(report)
    assert "a step takes 21.2 ms without recording, 20.5 ms in the light window" in text
    [found] = [one for one in report.findings if one.rule == "TO-V005"]
    claim = claim_of(found, ProfilerSlowed)
    assert (claim.plain, claim.typical) == (19, pytest.approx(21.2, abs=0.05))


def test_a_second_function_that_takes_half_as_long_is_named_beside_the_first(tmp_path):
    """LBFGS drew its points in Python for 14 of 84 ms a step; only the line of its closure was named, with 25."""
    run = made(tmp_path, idle_ms=9.0)
    for rank in range(4):
        own = {"rare": 8.0, "tokenize": 6.0, "backward": 6.0}
        steps = [Step(20.0, stacks=own if n % 4 else {**own, "forward": 1.0}) for n in range(200)]
        write_rank(run, rank, steps)
    [found] = [one for one in analyze(run).findings if one.rule == "TO-I001"]
    assert (
        "in rebalance (train.py:51). It also spends " in found.message and "in tokenize (text.py:7)." in found.message
    )


def followed(folder, later, ranks=range(4)):
    """Runs in which light windows follow each other: `later` has, by window, the rank whose host is the latest.

    ranks: those that left light windows at all.
    """
    windows = [0, *later]
    told = [{"rank": rank, "light": light_of(rank, len(later)) if rank in ranks else None} for rank in range(4)]
    run = made(folder, ranks=told)
    for at, late in enumerate(windows):
        for rank in ranks:
            begin = 9 if rank == late else 4
            ran = [("gemm", begin - 4, begin, 7), ("gemm", begin, begin + 2, 7), (GATHER, begin + 2, 20.498, 20)]
            file = "light.bin.gz" if at == 0 else f"light.{at + 1}.bin.gz"
            write_light(run, rank, 6, 20.5, lambda step, ran=ran: ran, file=file, first=20 * 8**at)
    for rank in set(range(4)) - set(ranks):
        (run / f"rank_{rank}" / "light.bin.gz").unlink()
    return run


def light_of(rank, later):
    files = [f"rank_{rank}/light.{at + 2}.bin.gz" for at in range(later)]
    return {
        "source": "cupti", "file": f"rank_{rank}/light.bin.gz", "why": {},
        "later": [{"file": file, "steps": [], "step_ms": []} for file in files],
    }  # fmt: skip


def windows_of(report):
    return [(one.first, one.last) for one in report.undisturbed.windows]


def test_light_windows_that_follow_are_read_and_told(tmp_path):
    report = analyze(followed(tmp_path, [3]))
    assert windows_of(report) == [(20, 25), (160, 165)] and report.undisturbed.light_steps == 12
    [found] = [f for f in report.findings if f.rule == "TO-I001"]
    turns = Turns(rank=0, other=3, steps=(20, 25), other_steps=(160, 165))
    assert claim_of(found, HostBound).turns == turns


def test_a_rank_without_any_light_window_costs_the_others_none(tmp_path):
    """The first window was of three of four ranks, and the later ones of nobody."""
    assert windows_of(analyze(followed(tmp_path, [3], range(1, 4)))) == [(20, 25), (160, 165)]


@pytest.mark.parametrize("later", [None, 7, "light.2.bin.gz", {"file": 1}, [None, 4, [], {}]])
def test_a_manifest_that_tells_of_later_windows_as_it_likes_is_no_error(tmp_path, later):
    run = followed(tmp_path, [3])
    told = json.loads((run / "run.json").read_text())
    for entry in told["ranks"]:
        entry["light"]["later"] = later
    (run / "run.json").write_text(json.dumps(told))
    assert windows_of(analyze(run)) == [(20, 25), (160, 165)][: 2 if isinstance(later, list) else 1]


@pytest.mark.parametrize("damaged", [b"", b"{}"])
def test_a_later_window_that_is_damaged_on_one_rank_is_left_out_and_told(tmp_path, damaged):
    run = followed(tmp_path, [3, 0])
    (run / "rank_2" / "light.2.bin.gz").write_bytes(damaged)
    report = analyze(run)
    assert windows_of(report) == [(20, 25), (1280, 1285)]
    assert any("rank_2/light.2.bin.gz is no light window that can be used" in note for note in report.summary.notes)


def soft_of(report):
    [section] = [one for one in describe(report).sections if one.heading == "The undisturbed step"]
    return " ".join(str(block) for block in section.blocks)


@pytest.mark.parametrize(
    ("later", "said", "not_said"),
    [
        ([], "So few steps do not show whether the same ranks wait in others", "waits least"),
        ([0, 0], "From the mean of 3 light windows", "now the other"),
        ([0, 3], "Rank 0 waits least in steps 20 to 25, rank 3 in steps 1280 to 1285.", "now the other"),
    ],
)
def test_the_page_says_by_turns_only_what_was_seen(tmp_path, later, said, not_said):
    """Of three windows in which the same rank was late it said that another may be in other steps."""
    report = analyze(followed(tmp_path, later))
    assert said in soft_of(report) and not_said not in soft_of(report)
    light = "20.5 ms in the light windows," if later else "20.5 ms in the light window,"
    assert light in text_of(report)


def test_where_no_rank_waits_for_another_nothing_is_said_of_turns(told):
    assert "now the other" not in soft_of(told) and "waits least" not in soft_of(told)


@pytest.fixture(scope="module")
def run():
    """A pipeline whose stages wait half of each step for late sends."""
    ranks = [summarize(file) for file in discover(str(DATA / "pipeline_uneven2")).windows[0].files]
    made = measure_across(ranks, len(ranks), dict.fromkeys(range(len(ranks)), "host"))
    (bubble,) = made.bubbles
    late = tuple(replace(stage, late=stage.step / 2) for stage in bubble.stages)
    return replace(made, bubbles=(replace(bubble, stages=late),))


def test_waiting_that_recording_made_is_not_told_as_the_programs(run):
    """19.7 ms of a step of 75.6 were told, of a program whose step takes 49.9 ms."""
    (bubble,) = run.bubbles
    plain = 0.9 * run.step_ms
    bounded = without_recording(run, bubble, plain, None)
    for stage, own, times in zip(bubble.stages, bounded.stages, run.ranks, strict=True):
        room = 1e6 * (plain - work_ms(times)) - stage.imbalance - stage.fill_drain
        assert own.step == pytest.approx(1e6 * plain)
        assert own.late == pytest.approx(min(stage.late, max(room, 0.0)))
    assert sum(stage.late for stage in bounded.stages) < sum(stage.late for stage in bubble.stages)
    assert not judge_late(run, plain_ms=max(work_ms(times) for times in run.ranks)).findings
    for verdict in (judge_late(run), judge_late(run, plain_ms=2 * run.step_ms)):
        [found] = verdict.findings
        claim = claim_of(found, LateSend)
        assert claim.plain is None and claim.most is not None


def test_the_light_window_tells_how_long_the_device_communicates(run):
    (bubble,) = run.bubbles
    plain = 0.9 * run.step_ms
    ranks = tuple(
        LightRank(times.summary.rank, plain, 1.0, 0.0, 0.0, times.mean_ms("comm_transfer"), 0.0, 1.0, 0.0)
        for times in run.ranks
    )
    bounded = without_recording(run, bubble, plain, Undisturbed(plain, plain, "cupti", 4, ranks))
    assert all(stage.late == 0 for stage in bounded.stages)
