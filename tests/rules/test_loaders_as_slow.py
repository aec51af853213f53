"""Loaders of all ranks that are equally slow, one rank a batch behind: the input is at fault, and no rank."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from generated_run import SlowHost, ddp, simulate
from measured_runs import across, program
from observed_run import BEGAN_NS, Step, usual, write_loader, write_rank

from traceops.across.host_difference import Longer
from traceops.core.claims import claim_of
from traceops.measure.host_places import CodePlace
from traceops.measure.loader_work import loader_work
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.idle_claims import InputBound
from traceops.rules.whole_run_hosts import _as_replayed, _only
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
    assert card_of(report).rule == "TO-I002" and card_of(report).fixed_ms < card_of(report).now_ms
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
    assert "a step would be" in _only(one) and "ms shorter at most" in _only(one)
    other = Longer(3, place, 12.0, 0.0, 50, "host")
    assert _as_replayed(other, SimpleNamespace(undisturbed=None, run=measured)) is other
