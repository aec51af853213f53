"""Which steps all ranks share, and which are unlike the others: in the window, by work, and in the run."""

import gzip
import json
import random
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace
from generated_run import LateWindow, Size, SlowHost, ddp, fsdp2, simulate, step_time, write_traces
from observed_run import Step, usual, write_rank
from unmarked import DEVICE, as_is, called, device_only, no_marks, write_unmarked

from traceops.across.agreed_steps import _rare_in_run, _with_more_work, as_one_window, unlike_steps, with_agreed_steps
from traceops.across.clocks import FIRST_MEETING
from traceops.across.cross_rank import measure_across
from traceops.across.whole_run import in_rhythm, whole_run
from traceops.core.claims import claim_of
from traceops.measure.ledger import BUCKETS
from traceops.measure.steps import NO_STEP, spells
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.rules.steps import LongSteps
from traceops.traces.discover import discover
from traceops.traces.observed import read_observed

DATA = Path(__file__).parents[1] / "data"
SIZE = Size(kernel_us=30.0)


def ranks_of(folder):
    [window] = discover(str(folder)).windows
    return [summarize(file) for file in window.files]


@pytest.mark.parametrize(
    "change, by, said",
    [
        (as_is, "optimizer", "5 steps found by Optimizer.step"),
        (called("execute_model[DECODE {}]"), "annotation", "5 steps found by the annotation 'execute_model'"),
        (no_marks, "repetition", "steps found by what repeats (one may be a single pass)"),
        (device_only, "repetition", "steps found by what repeats (one may be a single pass)"),
    ],
    ids=["optimizer", "decode", "no marks", "device only"],
)
def test_the_found_step_is_the_true_one(tmp_path, change, by, said):
    from traceops.render.report.terms import steps_found

    run = simulate(fsdp2(steps=6, size=SIZE), 2, seed=1)
    report = analyze(write_unmarked(run, tmp_path / "run", change))
    assert report.summary.steps_found_by == by
    assert steps_found(report).endswith(said)
    assert report.summary.step_time_ms.n in (4, 5)
    assert report.summary.step_time_ms.median == pytest.approx(step_time(run) / 1e6, rel=0.02)


def test_a_rank_that_began_to_record_later_is_put_beside_the_others(tmp_path):
    """It lost its first batch: counted from where each began, its steps would be one off."""

    def only_the_loader(rank, row):
        return [] if str(row.get("name")).startswith(("Optimizer.", "autograd")) else [row]

    run = simulate(ddp(steps=6, size=SIZE), 4, [LateWindow(2, 1)], seed=3)
    folder = write_unmarked(run, tmp_path / "run", only_the_loader)
    alone = ranks_of(folder)
    assert len({tuple(summary.step_numbers.tolist()) for summary in alone}) == 2
    agreed = with_agreed_steps(alone, 4)
    assert len({tuple(summary.step_numbers.tolist()) for summary in agreed}) == 1
    ends = [summary.step_edges[-1] - summary.step_edges[0] for summary in agreed]
    assert max(ends) == pytest.approx(min(ends), rel=0.01)


def test_ranks_that_found_other_steps_are_windows(tmp_path):
    """One rank's optimizer has no name: then nobody's steps are believed."""

    def but_rank_1(rank, row):
        return no_marks(rank, row) if rank == 1 else as_is(rank, row)

    run = simulate(ddp(steps=6, size=SIZE), 2, seed=1)
    alone = ranks_of(write_unmarked(run, tmp_path / "run", but_rank_1))
    assert [summary.steps_by for summary in alone] == ["optimizer", "repetition"]
    agreed = with_agreed_steps(alone, 2)
    assert [summary.steps_by for summary in agreed] == ["window", "window"]
    assert all(summary.step_numbers.tolist() == [NO_STEP] for summary in agreed)


def test_a_window_holds_what_its_steps_did(tmp_path):
    run = simulate(fsdp2(steps=5, size=SIZE), 2, seed=1)
    [own, _] = ranks_of(write_unmarked(run, tmp_path / "run", as_is))
    whole = as_one_window(own)
    assert whole.ledger.duration.tolist() == [int(own.step_edges[-1] - own.step_edges[0])]
    assert sum(int(ns[0]) for ns in whole.ledger.buckets.values()) == whole.ledger.duration[0]
    assert whole.inventory.step_kernels.tolist() == [int(own.inventory.step_kernels.sum())]
    assert len(whole.program.host) == len(own.program.host) - len(own.step_edges) + 2
    assert whole.program.painted.shape == (1, own.program.painted.shape[1])
    assert set(np.unique(whole.comm.step)) <= {-1, 0, 1}


def test_the_first_meeting_of_ranks_in_a_window_is_no_waiting(tmp_path):
    """Rank 1 begins to record 100 ms late: not a straggler, though its peer's first collective lasts so long."""
    program = replace(ddp(steps=1, size=SIZE), warmup=0)
    run = simulate(program, 2, [SlowHost(1, 100_000.0, steps=program.numbers[:1])], seed=1)
    report = analyze(write_unmarked(run, tmp_path / "run", no_marks))
    assert report.summary.steps_found_by == "window"
    assert report.summary.matching.unmatched[FIRST_MEETING] == 2
    assert all(row.comm_wait_ms < 1 for row in report.ranks)
    assert max(row.comm_unmatched_ms for row in report.ranks) > 90
    assert not [f for f in report.findings if f.rule in ("TO-S001", "TO-S002")]
    marked = analyze(write_unmarked(run, tmp_path / "marked", as_is, drop_marks=False))
    assert FIRST_MEETING not in marked.summary.matching.unmatched
    assert max(row.comm_wait_ms for row in marked.ranks) > 10


def test_every_bucket_of_found_steps_adds_up(tmp_path):
    run = simulate(ddp(steps=6, size=SIZE), 2, seed=2)
    report = analyze(write_unmarked(run, tmp_path / "run", as_is))
    for row in report.steps:
        assert sum(getattr(row, bucket) for bucket in BUCKETS) == pytest.approx(row.duration_ms)


def decoding(folder, keep=lambda row: True):
    """The traces of twenty decode steps in a CUDA graph, less what is not to be kept."""
    for path in sorted((DATA / "decode_graph2").glob("*.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [row for row in trace["traceEvents"] if keep(row)]
        folder.mkdir(exist_ok=True)
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    return folder


@pytest.mark.parametrize(
    "keep, by",
    [
        (lambda row: True, "annotation"),
        (lambda row: "execute_model" not in str(row.get("name")), "repetition"),
        (lambda row: row.get("ph") != "X" or row.get("cat") in DEVICE, "repetition"),
    ],
    ids=["annotated", "bare", "device only"],
)
def test_twenty_decode_steps_of_a_graph_are_no_single_one(tmp_path, keep, by):
    """Rank 1 began to record 0.1 s later, which is no step's waiting."""
    report = analyze(decoding(tmp_path / "run", keep))
    assert report.summary.steps_found_by == by
    assert report.summary.step_time_ms.n in (18, 19)
    assert report.summary.step_time_ms.typical == pytest.approx(0.91, abs=0.02)
    assert all(row.comm_wait_ms < 0.1 for row in report.ranks)
    assert not [found for found in report.findings if found.severity == "error"]


LONG = Size(kernel_us=60.0)


def report_of(folder, builder, steps, ranks, who, position, where):
    """A run in which these ranks' hosts are busy for 100 ms once, before the launch that `where` picks."""
    program = builder(steps=steps, size=LONG)
    number = program.numbers[1:][position]
    faults = [SlowHost(rank, 100_000.0, where, steps=(number,)) for rank in who]
    write_traces(simulate(program, ranks, faults, seed=1), folder)
    return analyze(folder), number


@pytest.fixture(scope="module")
def usual_run(tmp_path_factory):
    """The step of the same run in which nothing happens, ms."""
    folders = {}

    def of(builder, ranks):
        if (builder, ranks) not in folders:
            folder = tmp_path_factory.mktemp("usual")
            folders[builder, ranks] = report_of(folder, builder, 3, ranks, (), 0, "")[0].summary.step_time_ms
        return folders[builder, ranks].typical

    return of


# What a rank does after its last collective of a step holds the others up in the next one.
@pytest.mark.parametrize("where", ["", "optimizer"], ids=["first", "last"])
@pytest.mark.parametrize(
    "builder, ranks, who, steps, position",
    [
        (ddp, 2, (0,), 3, 0),
        (ddp, 2, (0,), 3, 1),
        (ddp, 2, (0,), 3, 2),
        (fsdp2, 2, (0,), 3, 1),
        (fsdp2, 2, (1,), 4, 1),
        (ddp, 2, (0,), 4, 2),
        (ddp, 4, (0,), 3, 1),
        (ddp, 4, (0, 1), 3, 1),
        (ddp, 4, (1, 2, 3), 3, 1),
        (fsdp2, 4, (1, 2, 3), 4, 0),
    ],
)
def test_an_evaluation_in_one_step_is_not_in_the_typical_one(
    tmp_path, usual_run, builder, ranks, who, steps, position, where
):
    report, number = report_of(tmp_path / "run", builder, steps, ranks, who, position, where)
    step = report.summary.step_time_ms
    assert number in step.unlike
    assert set(step.unlike) <= {number, number + 1}
    assert step.typical == pytest.approx(usual_run(builder, ranks), rel=0.1)
    assert not [found for found in report.findings if found.severity == "error"]
    [told] = [found for found in report.findings if found.rule == "TO-T001"]
    assert told.severity == "info"
    assert claim_of(told, LongSteps).share is None


def test_a_rank_that_is_late_in_every_step_makes_none_unlike(tmp_path):
    program = ddp(steps=4, size=LONG)
    write_traces(simulate(program, 2, [SlowHost(1, 5_000.0)], seed=1), tmp_path / "run")
    report = analyze(tmp_path / "run")
    assert report.summary.step_time_ms.unlike == ()
    assert [found.ranks for found in report.findings if found.rule == "TO-S001"] == [(1,)]


def test_a_rank_whose_only_step_is_a_long_one_is_in_no_typical_step(tmp_path):
    """Ranks that recorded other steps: the mean of both is the time of no step."""
    with tarfile.open(DATA / "faults" / "late_schedule.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    summary = analyze(tmp_path / "late_schedule").summary
    assert summary.step_time_ms.typical == pytest.approx((18.952 + 19.900 + 15.681) / 3, rel=0.01)
    assert sum(summary.ledger_ms.of(bucket) or 0 for bucket in BUCKETS) <= summary.step_time_ms.typical + 0.01


@pytest.mark.parametrize(
    "odd, times", [([], 0), ([False], 0), ([True], 1), ([True, True, False, True], 2), ([False, True, True], 1)]
)
def test_neighbouring_steps_are_one_time(odd, times):
    assert spells(odd) == times


PLAIN = Path(__file__).parents[1] / "data" / "plain_profiler"


def test_an_evaluation_in_every_third_step_is_no_part_of_the_typical_one():
    """3 of 7 steps evaluate and save: their mean was called a step, and its cause late launches."""
    report = analyze(PLAIN / "evaluations" / "trace.json.gz")
    assert report.summary.step_time_ms.unlike == (2, 5, 8)
    unlike = next(found for found in report.findings if found.rule == "TO-T001")
    assert unlike.severity == "error"
    assert claim_of(unlike, LongSteps).does == "other_work"
    assert report.summary.step_time_ms.typical < 45


def test_the_longer_half_is_as_typical_as_the_shorter_one():
    took, kernels = np.array([30.0, 90, 30, 90, 30, 90]), np.array([200.0, 600, 200, 600, 200, 600])
    assert not _with_more_work(took, kernels).any()
    assert _with_more_work(np.append(took, 30.0), np.append(kernels, 200.0)).tolist() == [False, True] * 3 + [False]


def test_more_kernels_in_the_same_time_are_nothing():
    took, kernels = np.array([30.0, 30, 31, 32, 33]), np.array([200.0, 600, 200, 600, 200])
    assert not _with_more_work(took, kernels).any()


def test_a_first_step_that_sets_up_libraries_is_late_not_other_work():
    """A few kernels more were 'other work' of a step in which the host loads libraries for 0.6 s."""
    report = analyze(PLAIN / "cold_start" / "trace.json.gz")
    unlike = next(found for found in report.findings if found.rule == "TO-T001")
    assert unlike.cause == "host"
    claim = claim_of(unlike, LongSteps)
    assert (claim.does, claim.ranks) == ("host", (0,))


MS = 1_000_000


def _rank(rank, took_ms, waits_ms, meets=None, lacks_ms=0):
    ledger = SimpleNamespace(duration=np.array(took_ms) * MS)
    inventory = SimpleNamespace(step_kernels=np.zeros(len(took_ms)))
    waits, numbers = np.array(waits_ms) * MS, np.arange(1, len(took_ms) + 1)
    comm = SimpleNamespace(step=np.arange(len(took_ms)) if meets is None else np.array(meets))
    own = {"ledger": ledger, "inventory": inventory, "step_numbers": numbers, "waits": waits, "comm": comm}
    return SimpleNamespace(rank=rank, catches_up_ns=-lacks_ms * MS, **own)


def rare(took_ms, usual_ms):
    return _rare_in_run(np.array(took_ms) * MS, usual_ms).tolist()


def test_two_saves_in_four_recorded_steps_are_not_in_the_typical_one(tmp_path):
    """Half of them odd, and the spread of all hides it: the save counted as a part of each step."""
    program = ddp(steps=4, size=Size(kernel_us=60.0))
    odd = tuple(program.numbers[1:][i] for i in (0, 2))
    write_traces(simulate(program, 2, [SlowHost(0, 100_000.0, "", steps=odd)], seed=1), tmp_path / "run")
    ranks = [summarize(file) for file in discover(str(tmp_path / "run")).windows[0].files]
    shortest = min(float(own.ledger.duration.min()) / 1e6 for own in ranks)
    assert not measure_across(ranks, 2).unlike
    assert measure_across(ranks, 2, usual_ms=[shortest] * 8).unlike == odd


def test_no_step_is_an_echo_of_one_that_only_waits():
    """The first recorded step waits for what a rank did before it; the next one is as ever, and was left out too."""
    ranks = [_rank(0, [1043, 261, 246, 182], [800, 5, 6, 7]), _rank(1, [1020, 330, 240, 175], [800, 100, 15, 5])]
    waits = {own.rank: own.waits for own in ranks}
    assert unlike_steps(ranks, waits, [180.0, 200, 220, 330]) == (1,)


def test_a_first_step_that_the_device_begins_late_is_none():
    """While the device ended what was launched before: the mean of 31.9, 82, 77 and 83 was of all four."""
    waits = {0: np.zeros(4, dtype=np.int64)}
    for took, lacks, unlike in (
        ([32, 82, 77, 83], 45, (1,)),
        ([179, 211, 212, 221], 32, (1,)),
        ([179, 211, 212, 221], 10, ()),
    ):
        assert unlike_steps([_rank(0, took, [0] * 4, lacks_ms=lacks)], waits) == unlike
    assert unlike_steps([_rank(0, [32, 82, 31, 83], [0] * 4, lacks_ms=45)], waits) == ()


def test_a_step_in_which_ranks_meet_once_in_a_round_is_no_odd_one():
    """Post-local SGD with a late rank: 'step 3 takes 377 ms, the typical step takes 10 ms', 89 % of the run."""
    took = ([4, 10, 377, 7], [5, 20, 367, 7], [84, 88, 142, 92])
    ranks = [_rank(n, own, [0, 0, own[2] - 75 if n < 2 else 0, 0], [2, 2]) for n, own in enumerate(took)]
    waits = {own.rank: own.waits for own in ranks}
    transfers = {own.rank: np.array([0, 0, 60, 0]) * MS for own in ranks}
    assert unlike_steps(ranks, waits, (), transfers) == ()
    each = [_rank(n, own, [0, 0, 0, 0]) for n, own in enumerate(took)]
    assert unlike_steps(each, waits, (), transfers) == (3,), "where they communicate in each, it is one"


def test_what_a_rank_does_besides_is_odd_between_meetings_too():
    took = ([4, 10, 377, 7], [5, 20, 367, 7], [84, 188, 142, 92])
    ranks = [_rank(n, own, [0, 0, own[2] - 75 if n < 2 else 0, 0], [2]) for n, own in enumerate(took)]
    waits = {own.rank: own.waits for own in ranks}
    transfers = {own.rank: np.array([0, 0, 60, 0]) * MS for own in ranks}
    assert unlike_steps(ranks, waits, (), transfers) == (2,)


def test_a_step_that_is_like_a_long_one_of_the_run_stays():
    """Input that comes late every few steps is a part of the training; a save once in twelve is none."""
    usual = [45.0, 50, 52, 55] * 3 + [130, 220, 228]
    assert rare([53.0, 205, 392, 54], usual) == [False, False, True, False]


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_recording_that_makes_all_steps_longer_leaves_out_none(slower):
    assert not any(rare([slower * ms for ms in (50.0, 51, 70, 52)], [50.0] * 20))


def test_never_more_than_half_are_left_out_and_nothing_without_the_run():
    assert not any(rare([300.0, 310, 290, 50], [50.0] * 20))
    assert not any(rare([50.0, 300, 50, 300], []))


TIMED = np.ones(80, dtype=bool)


def steps(more=0.0, each=4):
    draw = random.Random(5)
    return np.array([draw.uniform(80, 140) + (more if at % each == 0 else 0) for at in range(80)])


def test_a_short_save_each_fourth_step_is_found_by_its_rhythm():
    """60 ms beside steps of 80 to 140: not one of them was unlike the others, and the save was not told."""
    seen = dict.fromkeys(range(8, 80, 4), 58.0)
    del seen[20], seen[48]  # no look fell in it
    found = in_rhythm(steps(60), TIMED, [seen])
    assert np.flatnonzero(found).tolist() == list(range(0, 80, 4))


@pytest.mark.parametrize(
    "seen",
    [
        dict.fromkeys((8, 12, 16, 20), 58.0),  # too few
        dict.fromkeys(range(8, 80, 3), 58.0),  # a rhythm that chance makes too
        dict.fromkeys((8, 16, 32, 48, 64), 58.0),  # hardly half of the steps of its rhythm
        dict.fromkeys((*range(8, 80, 4), 21), 58.0),  # in between, too
        dict.fromkeys(range(8, 80, 4), 5.0),  # little
    ],
)
def test_what_is_no_rhythm_makes_no_step_unlike_the_others(seen):
    assert not in_rhythm(steps(60), TIMED, [seen]).any()


def test_a_function_whose_steps_are_no_longer_is_hidden_or_always_there():
    assert not in_rhythm(steps(0), TIMED, [dict.fromkeys(range(8, 80, 4), 58.0)]).any()


def test_a_run_tells_its_short_saves(tmp_path):
    draw = random.Random(3)

    def rank(saves):
        made = [usual(draw.uniform(80, 140)) for _ in range(121)]
        for at in range(4, 121, 4):
            ms = draw.uniform(80, 140)
            made[at] = Step(ms + 60, stacks={"forward": ms, "rare" if saves else "backward": 60})
        return made

    for number, saves in enumerate((True, False)):
        write_rank(tmp_path, number, rank(saves))
    run = whole_run([read_observed(str(tmp_path), number)[0] for number in range(2)])
    [found] = run.occasions
    assert (found.cause, found.times, found.ranks) == ("host", 30, (0,))
    assert found.more_ms / 30 == pytest.approx(60, rel=0.15)
    assert run.typical_ms == pytest.approx(110, rel=0.05)


@pytest.mark.filterwarnings("error")
def test_where_all_timed_steps_are_of_the_rhythm_nothing_is_unlike_them():
    """The median of no step made numpy warn on the terminal."""
    timed = np.zeros(len(TIMED), dtype=bool)
    timed[8::4] = True
    assert not in_rhythm(steps(60), timed, [dict.fromkeys(range(8, 80, 4), 58.0)]).any()
