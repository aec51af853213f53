"""TO-I002 and TO-I004: idle devices that wait for data, from loaders, or in copies."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from changed import replace
from generated_run import SlowHost, ddp, simulate
from measured_runs import across, program
from observed_run import BEGAN_NS, Step, usual, write_loader, write_rank

from traceops.across.host_difference import Longer
from traceops.answers.answering import answer
from traceops.answers.asked import Asked
from traceops.answers.opening import open_run
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.units import size_text
from traceops.core.words import STEP, step_words
from traceops.measure.copies import CopyKind
from traceops.measure.host_places import CodePlace, FunctionTime, loader_work
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.cross_sections import replay_sentence
from traceops.rules.explained import merge_overlapping
from traceops.rules.idle import INPUT_BOUND, BehindLate, hidden_loading
from traceops.rules.idle_copies import ExposedCopying, Part, claim_of_copies, evidence_of
from traceops.rules.idle_time import (
    BlockedOnDevice,
    HiddenLoading,
    InputBound,
    idle_of,
    seen_waiting_ms,
    waits_for_input,
)
from traceops.rules.registry import BY_ID
from traceops.rules.stragglers_claims import Late
from traceops.rules.whole_run_hosts import _as_replayed, claim_for
from traceops.traces.observed import read_observed

DATA = Path(__file__).parents[1] / "data"
LATE, STEP_MS = 1, 54  # slow_loader4: rank 1 sleeps in its loader
WITH_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
SLOW, QUICK = {"idle": 2, "tokenize": 78}, {"idle": 60, "tokenize": 20}


def with_loader(trace):
    """Each rank takes its batches from a loader with workers, in 0.3 ms where its own did not show."""
    marks = [one for one in trace["traceEvents"] if one.get("name") == "dataloader_next"]
    for one in marks:
        one["name"] = WITH_WORKERS
    steps = [one for one in trace["traceEvents"] if str(one.get("name", "")).startswith("ProfilerStep#")]
    for one in () if marks else steps:
        if one.get("cat") == "user_annotation":
            trace["traceEvents"].append({**one, "name": WITH_WORKERS, "ts": one["ts"] + 20, "dur": 300.0})
    return trace


def run_with_workers(tmp_path, peers, began_ns=None, before=()):
    """slow_loader4 as if its loaders had workers, those of rank 1 slow; `before`: steps before the usual ones."""
    run = tmp_path / "run"
    run.mkdir()
    for path in (DATA / "slow_loader4").iterdir():
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.compress(json.dumps(with_loader(json.loads(gzip.decompress(raw)))).encode(), 1)
        (run / path.name).write_bytes(raw)
    manifest = {"world_size": 4, "ranks": [{"rank": rank, "pid": 100 + rank} for rank in range(4)]}
    (run / "run.json").write_text(json.dumps(manifest))
    for rank in range(4):
        places = ("collate", "forward") if rank == LATE else ("backward", "forward")
        stacks = dict(zip(places, (30, 24), strict=True))
        write_rank(run, rank, [*before, *[Step(STEP_MS, stacks=stacks) for _ in range(120)]])
        write_loader(run, rank, 0, SLOW if rank == LATE else peers, began_ns)
    return analyze(run)


def of_rule(report, rule):
    return [one for one in report.findings if one.rule == rule]


def test_the_input_leads_and_no_rank_is_accused(tmp_path):
    """TO-W003 led as an error with all of the wait, and TO-I002, which knows the line, was folded under it."""
    report = run_with_workers(tmp_path, SLOW)
    [input_bound] = of_rule(report, "TO-I002")
    assert input_bound.severity != "info" and report.findings[0] == input_bound
    assert input_bound.ranks == (LATE,) and "tokenize (data.py:51)" in input_bound.message
    pace = 78 / 80 * STEP_MS
    claim = claim_of(input_bound, InputBound)
    assert (claim.slow_rank, claim.slow_ms) == (0, pytest.approx(pace, abs=0.06))
    assert not of_rule(report, "TO-W003")
    [check] = [check for check in report.checks if check.rule == "TO-W003"]
    assert check.status == "clear" and "rank 0's loader are no faster" in check.reason
    assert card_of(report).rule == "TO-I002" and card_of(report).fixed_least_ms < card_of(report).now_ms
    assert all(one.severity == "info" for one in of_rule(report, "TO-S001"))


def test_a_rank_whose_loader_alone_is_slow_still_is(tmp_path):
    report = run_with_workers(tmp_path, QUICK)
    [late] = of_rule(report, "TO-S001")
    assert late.ranks == (LATE,) and late.severity != "info"
    [line] = of_rule(report, "TO-W003")
    assert line.ranks == (LATE,)
    [input_bound] = of_rule(report, "TO-I002")
    assert claim_of(input_bound, InputBound).slow_rank is None


@pytest.mark.parametrize(("told", "busy_pct"), [(True, 97.5), (False, 100 * 78 / 155)])
def test_workers_that_rest_before_the_training_begins_are_not_quick(tmp_path, told, busy_pct):
    """A loader was filled while the model was made: of its time before the first step it had nothing to do."""
    write_rank(tmp_path, 0, [Step(3000.0), *[usual(32.0) for _ in range(100)]])
    # 75 looks of 40 ms before the first step ends, 80 after it
    looks = [("idle", 75), ("idle", 2), ("tokenize", 78)]
    write_loader(tmp_path, 0, 0, looks, BEGAN_NS if told else None)
    rank, _ = read_observed(str(tmp_path), 0)
    like = rank.steps["host_us"] < 1_000_000
    assert loader_work(rank, like).busy_pct == pytest.approx(busy_pct, abs=0.1)


def test_looks_in_steps_unlike_the_others_do_not_count(tmp_path):
    """Workers of the training rest while the program evaluates."""
    steps = [Step(100.0), *[usual(40.0)] * 40, Step(1600.0), *[usual(40.0)] * 40]
    write_rank(tmp_path, 0, steps)
    looks = [("tokenize", 42), ("idle", 40), ("tokenize", 40)]
    write_loader(tmp_path, 0, 0, looks, BEGAN_NS)
    rank, _ = read_observed(str(tmp_path), 0)
    like = rank.steps["host_us"] < 90_000
    assert loader_work(rank, like).busy_pct > 97
    assert loader_work(rank).busy_pct == pytest.approx(100 * 82 / 122, abs=0.1)


def test_what_one_late_rank_of_two_costs_is_what_the_replay_saves():
    """Ranks 0 and 1 are late alike: of 12 ms that rank 0's host is longer, its cure alone saves what rank 1 leaves."""
    slow = [SlowHost(0, 12_000), SlowHost(1, 11_000)]
    measured = across(simulate(program(ddp, layers=6), 4, slow))
    place = CodePlace("save", "/home/me/train.py", 7)
    late = measured.replay.stragglers.leader
    one = _as_replayed(Longer(late.rank, place, 12.0, 0.0, 50, "host"), SimpleNamespace(undisturbed=None, run=measured))
    assert one.claimed_ms == pytest.approx(float(late.alone.mean()) / 1e6, rel=1e-3) and one.claimed_ms < 6
    assert claim_for(one).most == one.claimed_ms
    other = Longer(3, place, 12.0, 0.0, 50, "host")
    assert _as_replayed(other, SimpleNamespace(undisturbed=None, run=measured)) is other


def behind_late(tmp_path, looks):
    """slow_hsdp4, whose rank 1 is late by its GPU, as if its loaders had workers that were seen in these places."""
    run = tmp_path / "run"
    run.mkdir()
    for path in (DATA / "slow_hsdp4").iterdir():
        raw = path.read_bytes()
        if path.suffix == ".gz":
            text = gzip.decompress(raw).replace(b"_SingleProcessDataLoaderIter", b"_MultiProcessingDataLoaderIter")
            raw = gzip.compress(text, 1)
        (run / path.name).write_bytes(raw)
    manifest = {"world_size": 4, "ranks": [{"rank": rank, "pid": 100 + rank} for rank in range(4)]}
    (run / "run.json").write_text(json.dumps(manifest))
    for rank in range(4):
        write_rank(run, rank, [usual(79.0) for _ in range(40)])
        if looks:
            write_loader(run, rank, 0, looks)
    report = analyze(run)
    [late] = [one for one in report.findings if one.rule == "TO-S001"]
    assert late.ranks == (1,)
    return report, late, [one for one in report.findings if one.rule == "TO-I002"]


def predicted(report, change):
    [row] = [row for row in report.what_if if row.change == change]
    return row.predicted_step_time_ms


def test_workers_that_need_longer_than_the_cured_step_are_told(tmp_path):
    """Batches lay ready behind the late rank, so the replay had no waiting for input: the rule was clear."""
    _, late, [hidden] = behind_late(tmp_path, {"idle": 4, "tokenize": 76})
    assert hidden.ranks == (0, 1, 2, 3)
    [step] = [one.value for one in hidden.evidence if one.fact is Fact.STEP]
    assert step == pytest.approx(0.95 * 79, rel=0.001)
    claim = claim_of(hidden, HiddenLoading)
    assert (claim.step, claim.loading) == (pytest.approx(step), pytest.approx(75.0, abs=0.06))
    assert (late.severity, late.impact_ms) == ("info", pytest.approx(79.38 - step, abs=0.02)), "not 15.76"
    assert hidden.impact_ms == pytest.approx(0.95 * 79 - 65, abs=4), "beyond the step that the cure leaves"


def test_workers_that_keep_up_are_not(tmp_path):
    report, late, hidden = behind_late(tmp_path, {"idle": 40, "tokenize": 40})
    assert not hidden and "would take 63.7 ms instead of 79.4 ms" in late.message
    assert report.summary.replay.loaders_unknown == ()


def test_a_late_ranks_cure_leaves_the_loaders_pace(tmp_path):
    """It was 63.62 ms in TO-S001, the headline and the what-if, beside a step of 70 ms in TO-I002."""
    report, late, [hidden] = behind_late(tmp_path, {"idle": 9, "tokenize": 71})
    [step] = [one.value for one in hidden.evidence if one.fact is Fact.STEP]
    assert step == pytest.approx(71 / 80 * 79, rel=0.001)
    assert claim_of(late, Late).then == pytest.approx(step, abs=0.001)
    assert late.impact_ms == pytest.approx(79.38 - step, abs=0.01)
    assert predicted(report, "rank 1 as its peers") == pytest.approx(step, abs=0.001)
    assert predicted(report, "all ranks as their median") == pytest.approx(step, abs=0.001)
    card = card_of(report)
    assert card.fixed_ms == pytest.approx(step, abs=0.01) and card.fixed_least_ms is None


def test_a_claim_is_a_bound_where_nobody_looked_at_the_workers(tmp_path):
    """Without looks at them it was 'would take 63.62 ms', which workers that are slower do not allow."""
    report, late, hidden = behind_late(tmp_path, {})
    assert not hidden and report.summary.replay.loaders_unknown == (0, 1, 2, 3)
    assert claim_of(late, Late).then_or_more == pytest.approx(63.70, abs=0.01)
    card = card_of(report)
    assert (card.fixed_least_ms, card.saved_pct) == pytest.approx((63.69, 19.8), rel=0.01)
    assert card.fixed_ms == card.now_ms
    assert "the pace of data loaders' workers is not known" in replay_sentence(report)
    shown = answer(open_run(tmp_path / "run"), Asked("what-if"))
    assert shown.loaders_unknown == (0, 1, 2, 3)


@pytest.mark.parametrize(("pace_ms", "told"), [(0.0, False), (12.0, False), (13.5, True)])
def test_batches_that_workers_have_ready_are_waited_for_by_nobody(pace_ms, told):
    """'Rank 1 would wait 1.66 ms; its workers need 0.000 ms', and a warning that asked for more workers."""
    run = SimpleNamespace(**msgspec.structs.asdict(across(simulate(program(ddp, device="cpu"), 2))))
    run.loading_ms, run.step_words = dict.fromkeys((0, 1), pace_ms), step_words("step")
    behind = BehindLate((1,), (), 14.06, 1.66, serious=True)
    found = hidden_loading(INPUT_BOUND, (5.0, 10.0, 25.0), run, behind)
    assert bool(found) == told


RUN = Path(__file__).parents[1] / "data" / "starved_loader2"


def waiting_for_batches(tmp_path, core_ms, looks, workers=True):
    """starved_loader2 as if its loader had a worker: 164 ms of each step of 271 ms pass until the next batch comes.

    core_ms: what the ranks wait for a core in each recorded step, or each of them. looks: at the worker, by what it is
    seen in; a list of them for several workers. workers: False as it is, without one.
    """
    run = tmp_path / "run"
    for path in sorted(RUN.rglob("*")):
        if path.is_file():
            raw = path.read_bytes()
            if path.suffix == ".gz" and workers:
                text = gzip.decompress(raw).replace(b"_SingleProcessDataLoaderIter", b"_MultiProcessingDataLoaderIter")
                raw = gzip.compress(text, 1)
            (run / path.relative_to(RUN)).parent.mkdir(parents=True, exist_ok=True)
            (run / path.relative_to(RUN)).write_bytes(raw)
    manifest = json.loads((run / "run.json").read_text())
    manifest["ranks"] = [{"rank": rank, "pid": 100 + rank} for rank in range(2)]
    (run / "run.json").write_text(json.dumps(manifest))
    window = range(8, 14)
    for rank in range(2):
        own_ms = core_ms[rank] if isinstance(core_ms, tuple) else core_ms
        steps = [usual(271.0, recorded=n in window, core_wait_ms=own_ms * (n in window)) for n in range(20)]
        write_rank(run, rank, steps)
        for worker, own in enumerate(looks if isinstance(looks, list) else [looks] if looks else []):
            write_loader(run, rank, worker, own)
    report = analyze(run)
    [check] = [check for check in report.checks if check.rule == "TO-I002"]
    return [one for one in report.findings if one.rule == "TO-I002"], check


def test_a_rank_without_a_core_does_not_wait_for_its_loader(tmp_path):
    """It was 'one process needs 271 ms to load: more workers', of a worker that waited for work all the time."""
    found, check = waiting_for_batches(tmp_path, 170.0, {"idle": 60, "tokenize": 2})
    assert not found and check.status == "clear"
    assert "nothing to do for 97 % of the time, and it waits 170 ms of each recorded step for a core" in check.reason


@pytest.mark.parametrize(
    "core_ms, looks, severity, workers",
    [
        (170.0, {"tokenize": 60}, "error", ""),
        (10.0, {"tokenize": 60}, "error", ""),
        (10.0, {"idle": 60}, "error", "idle"),
        (170.0, {}, "info", "unsure"),
        (10.0, {}, "error", ""),
    ],
)
def test_what_more_workers_would_do_is_said_where_it_is_known(tmp_path, core_ms, looks, severity, workers):
    [found], _ = waiting_for_batches(tmp_path, core_ms, looks)
    assert found.severity == severity
    claim = claim_of(found, InputBound)
    assert claim.workers == workers and claim.need is None  # nobody says how many there are


def test_a_busy_worker_beside_idle_ones_is_not_overlooked(tmp_path):
    """Batches come in order, so one slow worker holds up all; and workers of a second loader may wait for its epoch.

    It was '75 % of the time nothing to do: more of them would not help', and with full cores no finding at all.
    """
    looks = [{"tokenize": 60}, *({"idle": 60},) * 3]
    for core_ms in (10.0, 170.0):
        [found], _ = waiting_for_batches(tmp_path / str(core_ms), core_ms, looks)
        assert found.severity == "error" and claim_of(found, InputBound).workers != "idle"


def test_the_one_busy_worker_is_named_and_more_workers_are_not_promised(tmp_path):
    """One of two workers was always late: 'busy for half of the time' named no line, and '8 times as many' would do."""
    [found], _ = waiting_for_batches(tmp_path, 10.0, [{"tokenize": 60}, {"idle": 64}])
    claim = claim_of(found, InputBound)
    assert (claim.workers, claim.seen_workers, claim.busiest_pct) == ("one_busy", 2, 100)
    assert "The workers of rank 0's loader spend 100 % of their time in tokenize" in found.message
    assert claim.need is None


@pytest.mark.parametrize("core_ms, severity", [(10.0, "error"), (150.0, "info"), (100.0, "warning")])
def test_what_may_be_waiting_for_a_core_is_no_loading_of_a_rank_without_workers(tmp_path, core_ms, severity):
    """A loader that took 3 to 6 % of the steps was a warning of 12: the ranks waited 44 % of them for a core."""
    [found], _ = waiting_for_batches(tmp_path, core_ms, {}, workers=False)
    assert found.severity == severity
    assert (claim_of(found, InputBound).core_pct is not None) == (severity != "error")


@pytest.mark.parametrize("core_ms", [(150.0, 10.0), (10.0, 150.0)])
@pytest.mark.parametrize("workers", [False, True])
def test_a_rank_that_loads_is_not_excused_by_another_that_gets_no_core(tmp_path, core_ms, workers):
    """Both ranks load as long: a remark where the rank that waits for a core loads a millisecond longer."""
    waits = tuple(ms * (1.2 if workers else 1.0) for ms in core_ms)
    [found], _ = waiting_for_batches(tmp_path, waits, {}, workers=workers)
    assert found.severity == "error"


# A GPT on an H200 whose only worker cuts text into tokens, ms: as recorded, and a step that is not; 37 looks of 188 saw
# the host in its loader. The same program without that takes 11.2 ms.
RECORDED = {"idle_input": 17.88, "idle_host": 13.99, "compute": 10.67, "memory": 0.06}
LOOKS_STEP_MS, PLAIN_MS, SEEN_MS, TIDY_MS = 42.78, 36.24, 26.49, 11.2


def times(input_ms=17.90):
    return SimpleNamespace(
        mean_ms=lambda name: RECORDED.get(name, 0.0),
        step_ms=LOOKS_STEP_MS,
        duration=[1.0] * 4,
        recorded_events=0.0,
        loading_ms=input_ms,
        summary=SimpleNamespace(on_gpu=True, rank=0, meta=SimpleNamespace(with_stack=False)),
    )


def whole(looks=37, does="input"):
    place = CodePlace("main", "train.py", 72, "batch = next(batches)")
    return SimpleNamespace(in_time_ms=None, host={0: (FunctionTime(place, SEEN_MS, looks, False, does),)})


def judged(bucket, of_run):
    own = times()
    return idle_of(own, bucket, PLAIN_MS, None, 0.4, seen_waiting_ms(own, of_run))


def test_a_host_that_waits_for_its_loader_is_not_late():
    """21 % of each step was told as late launches, with a warning."""
    assert judged("idle_host", None).ms == pytest.approx(7.63)
    assert judged("idle_host", whole()).ms == 0.0


def test_input_takes_what_looks_see_and_the_step_has_room_for():
    [one] = waits_for_input([judged("idle_input", whole())], whole())
    assert one.by_looks and one.bounded
    assert one.step_ms - one.ms == pytest.approx(TIDY_MS, abs=0.6)
    [trace] = waits_for_input([judged("idle_input", None)], None)
    assert not trace.by_looks and trace.ms == pytest.approx(RECORDED["idle_input"])


def test_few_looks_or_looks_elsewhere_tell_nothing():
    assert seen_waiting_ms(times(), whole(looks=5)) == 0.0
    assert seen_waiting_ms(times(), whole(does=None)) == 0.0


def test_loading_behind_the_devices_work_is_no_waiting():
    """Four fifths of the time in the loader the device works: so much of what looks see does not count."""
    assert seen_waiting_ms(times(input_ms=5 * 17.88), whole()) == pytest.approx(SEEN_MS / 5)


def test_a_light_window_bounds_what_looks_see():
    """It is idle for 24.9 of 35.5 ms: input has what looks see of that, not the 17.9 of the recorded steps."""
    own = SimpleNamespace(idle_ms=24.86, wait_ms=0.0)
    light = SimpleNamespace(step_ms=35.53, of=lambda rank: own)
    seen = seen_waiting_ms(times(), whole())
    [one] = waits_for_input([idle_of(times(), "idle_input", PLAIN_MS, light, 0.4, seen)], whole())
    assert one.by_looks and one.ms == pytest.approx(24.8, abs=0.1)
    assert one.step_ms - one.ms == pytest.approx(TIDY_MS, abs=0.6)
    assert idle_of(times(), "idle_host", PLAIN_MS, light, 0.4, seen).ms == 0.0


# ResNet-50 on an H200 whose two workers deliver at the same time, ms: as recorded, and the mean step of the run.
TIDY_RECORDED = {"idle_input": 202.34, "idle_host": 44.84, "compute": 16.2, "memory": 6.74}
TIDY_STEP_MS, TIDY_PLAIN_MS, BUSY_MS = 270.86, 193.41, 22.94
KEEPS_UP_MS = 38.0  # the same program with a loader that keeps up


def claimed(in_time_ms, whole=True):
    times = SimpleNamespace(
        mean_ms=lambda name: TIDY_RECORDED.get(name, 0.0),
        step_ms=TIDY_STEP_MS,
        summary=SimpleNamespace(on_gpu=True, rank=0),
    )
    idle = [idle_of(times, "idle_input", TIDY_PLAIN_MS, None, 0.2)]
    [one] = waits_for_input(idle, SimpleNamespace(in_time_ms=in_time_ms) if whole else None)
    return one


def test_steps_in_which_input_is_in_time_tell_what_is_left():
    """22.9 ms were promised, those of the device alone."""
    one = claimed(47.57)
    assert one.step_ms - one.ms == pytest.approx(47.57) and one.in_time_ms == 47.57
    assert one.step_ms - one.ms >= KEEPS_UP_MS


@pytest.mark.parametrize("whole", [True, False])
def test_without_such_steps_the_device_bounds_it(whole):
    one = claimed(None, whole)
    assert one.step_ms - one.ms == pytest.approx(BUSY_MS) and one.in_time_ms is None
    assert claimed(10.0).ms == one.ms, "no shorter than the device works for"


COPIES = Path(__file__).parents[1] / "data" / "copies"


@pytest.fixture(scope="module")
def reports():
    return {path.name: analyze(path) for path in sorted(COPIES.iterdir())}


def found(report, rule="TO-I004"):
    return [one for one in report.findings if one.rule == rule]


def value(finding, metric):
    return next(one.value for one in finding.evidence if one.metric == metric)


# What the same program took with its cure, measured without a profiler: benchmarks/copies.
@pytest.mark.parametrize(
    ("name", "cause", "severity", "cured_ms", "within"),
    [
        ("pageable", "pageable_input", "error", 5.979, 0.05),
        ("same_stream", "pinned_input", "error", 7.855, 0.05),
        ("to_host", "output", "error", 3.614, 0.12),
    ],
)
def test_the_step_that_is_promised_is_the_one_that_the_cure_gave(reports, name, cause, severity, cured_ms, within):
    (one,) = found(reports[name])
    assert (one.cause, one.severity, one.ranks) == (cause, severity, (0,))
    assert value(one, "step") - one.impact_ms == pytest.approx(cured_ms, rel=within)
    assert card_of(reports[name]).fixed_ms == pytest.approx(value(one, "step") - one.impact_ms)


@pytest.mark.parametrize(("name", "cured_ms"), [("saved_on_host", 9.109), ("adam_on_host", 5.502)])
def test_offload_is_a_warning_at_most_and_promises_no_more_than_pinned_memory_gives(reports, name, cured_ms):
    (one,) = found(reports[name])
    assert (one.cause, one.severity) == ("offload", "warning")
    assert value(one, "step") - one.impact_ms >= cured_ms
    assert "DataLoader" not in one.advice and claim_of(one, ExposedCopying).way == "both"


def test_copies_beside_kernels_are_fine(reports):
    report = reports["to_host_ahead"]
    assert found(report) == [] and found(report, "TO-I003") == []
    (check,) = [one for one in report.checks if one.rule == "TO-I004"]
    assert (check.status, check.reason) == ("clear", "at most 1.9 % of the step (bound 5 %)")
    assert sum(one.pct for one in report.summary.unjudged if one.bucket == "memory") < 2  # memsets


def test_size_speed_and_place_are_told(reports):
    (one,) = found(reports["pageable"])
    assert "It is made in aten::to. It runs at 9.8 GB/s." in one.message
    claim = claim_of(one, ExposedCopying)
    assert (claim.count, size_text(claim.typically), claim.memory, claim.operator) == (
        1,
        "168 MB",
        "pageable",
        "aten::to",
    )
    assert claim.gbs == pytest.approx(9.8, abs=0.05)
    (own,) = found(reports["same_stream"])
    assert "pinned" not in own.advice, "it is already"


def test_a_wait_for_copies_is_told_once_and_not_as_item_calls(reports):
    """'Keep values on the device: no .item()' of a program that reads none."""
    (many,) = found(reports["many_small"], "TO-I003")
    assert many.cause == "copies" and ".item()" not in many.advice
    assert claim_of(many, BlockedOnDevice).copies_pct == 100
    (idle,) = found(reports["saved_on_host"], "TO-I003")
    assert idle.severity == "info" and idle.message.endswith("TO-I004 explains it.")


def test_a_wait_for_copies_is_known_without_operators(tmp_path):
    """A trace of ProfilerActivity.CUDA alone was told to call .item() less often."""
    [path] = sorted((COPIES / "many_small").glob("*.json.gz"))
    trace = json.loads(gzip.decompress(path.read_bytes()))
    trace["traceEvents"] = [one for one in trace["traceEvents"] if one.get("cat") != "cpu_op"]
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    (many,) = found(analyze(tmp_path / "trace.json"), "TO-I003")
    assert many.cause == "copies" and claim_of(many, BlockedOnDevice).copies_pct > 90


def test_the_table_has_all_copies(reports):
    (first, *_) = reports["pageable"].tables.copies
    assert (first.direction, first.memory, first.purpose, first.operator) == (
        "to_device", "pageable", "input", "aten::to",
    )  # fmt: skip
    assert first.exposed_ms == pytest.approx(17.12, abs=0.01)
    purposes = {row.purpose for row in reports["adam_on_host"].tables.copies if row.exposed_ms > 0.1}
    assert purposes == {"offload"}


@pytest.mark.parametrize(("cause", "severity"), [("copies", "info"), ("host", "warning")])
def test_copies_explain_no_other_wait(cause, severity):
    def one(rule, cause):
        return BY_ID[rule].finding(
            "warning", "high", "said.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=(0,), cause=cause
        )

    merged = merge_overlapping([one("TO-I004", "pageable_input"), one("TO-I003", cause)])
    assert {each.rule: each.severity for each in merged} == {"TO-I004": "warning", "TO-I003": severity}


def test_a_late_rank_whose_copies_take_longer_explains_them():
    def one(rule, cause, ranks):
        return BY_ID[rule].finding(
            "error", "high", "said.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=ranks, cause=cause
        )

    late, copies = one("TO-S001", "copy", (1,)), one("TO-I004", "pageable_input", (1,))
    assert merge_overlapping([late, copies])[1].severity == "info"
    assert merge_overlapping([late, replace(copies, ranks=(0, 1))])[1].severity == "error"


@pytest.mark.parametrize(("total", "typically", "whole"), [(12_585_000, None, 12_585_000), (6_300, 2_048, None)])
def test_one_large_copy_among_small_ones_is_told_by_all_bytes(total, typically, whole):
    """A batch of pictures, its labels and a loss: '3 copies of typically 2.0 kB' took 2.1 ms."""
    steps = 4
    numbers = {name: np.full(steps, 0) for name in ("blocked_ns", "alone_ns", "exposed_ns")}
    kind = CopyKind(
        direction="to_device", memory="pageable", purpose="input", operator="aten::to", region="", beside=False,
        count=np.full(steps, 3), bytes=np.full(steps, 2_048), total_bytes=np.full(steps, total),
        device_ns=np.full(steps, 2_100_000), **numbers,
    )  # fmt: skip
    times = {"exposed_ms": 1.0, "saved_ms": 1.0, "blocked_ms": 0.0, "rank": 0}
    copies = SimpleNamespace(purpose="input", kinds=(kind,), steps=steps, link=None, **times)
    claim = claim_of_copies(Part(copies, 1.0, 10.0), [0], 1, STEP)
    assert (claim.count, claim.typically, claim.total) == (3, typically, whole)
    assert Fact.COPIES not in {one.fact for one in evidence_of(Part(copies, 1.0, 10.0), [], STEP, 5.0)}  # hidden
    assert "They are made in aten::to." in claim.sentences("why")
    assert "It is made in aten::to." in replace(claim, count=1).sentences("why")


def copied(folder, name, of):
    """A trace of tests/data/copies with events changed: `of` gives those for one, by what it is."""
    trace = json.loads(gzip.decompress((COPIES / name / "trace.json.gz").read_bytes()))
    trace["traceEvents"] = [new for event in trace["traceEvents"] for new in of(event)]
    (folder / "trace.json").write_text(json.dumps(trace))
    return exposed(analyze(folder))


def test_copies_in_backward_that_only_leave_go_one_way(tmp_path):
    """Gradients that a function of autograd copies to the host: 'copies from and to the host', of sizes that match."""
    around = "autograd::engine::evaluate_function: MyBackward"
    [found] = copied(
        tmp_path, "to_host", lambda event: [{**event, "name": around} if event.get("name") == "aten::to" else event]
    )
    assert found.cause == "offload" and claim_of(found, ExposedCopying).way == "to_host"
    assert "Sizes match" not in found.message


def without_sizes(name, folder, in_the_calls=False):
    trace = json.loads(gzip.decompress((COPIES / name / "trace.json.gz").read_bytes()))
    copies = [event for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    size = {event["args"]["correlation"]: str(event["args"]["bytes"]) for event in copies}
    for event in copies:
        event["args"] = {key: told for key, told in event["args"].items() if "byte" not in key.lower()}
    for event in trace["traceEvents"] if in_the_calls else ():
        if event.get("cat") == "cuda_runtime" and (args := event["args"])["correlation"] in size:
            args["size"] = size[args["correlation"]]
    (folder / "trace.json").write_text(json.dumps(trace))
    return analyze(folder)


def exposed(report):
    return [one for one in report.findings if one.rule == "TO-I004"]


@pytest.mark.parametrize("name", ["adam_on_host", "pageable", "to_host", "many_small", "saved_on_host"])
def test_rocm_tells_the_size_in_the_call(name, tmp_path):
    """As in tests/data/hta/amd: nothing was known of such copies' sizes."""
    whole = exposed(analyze(COPIES / name))
    assert exposed(without_sizes(name, tmp_path, in_the_calls=True)) == whole
    assert all("gbs" in one.facts for one in whole)


def test_a_trace_of_rocm():
    report = analyze(COPIES.parent / "hta" / "amd")
    [copies] = report.tables.copies
    assert (copies.count, copies.bytes, copies.purpose) == (2, 2560, "input") and copies.gbs


@pytest.mark.parametrize("name", ["adam_on_host", "saved_on_host"])
def test_offload_is_no_input_and_no_result(name, tmp_path):
    """Weights and activations that are kept on the host were two errors: batches to pin, and results."""
    (one,) = exposed(without_sizes(name, tmp_path))
    assert (one.cause, one.severity) == ("offload", "warning")
    assert "DataLoader" not in one.advice


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("pageable", "pageable_input"),
        ("same_stream", "pinned_input"),
        ("to_host", "output"),
        ("many_small", "pageable_input"),
    ],
)
def test_what_goes_one_way_is_told_as_before(name, cause, tmp_path):
    assert [one.cause for one in exposed(without_sizes(name, tmp_path))] == [cause]
