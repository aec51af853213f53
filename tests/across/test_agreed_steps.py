"""Found steps mean the same on all ranks, or each rank is one window; there a first meeting is no waiting."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from changed import replace
from generated_run import LateWindow, Size, SlowHost, ddp, fsdp2, simulate, step_time
from unmarked import DEVICE, as_is, called, device_only, no_marks, write_unmarked

from traceops.across.agreed_steps import as_one_window, with_agreed_steps
from traceops.across.arrivals import FIRST_MEETING
from traceops.measure.ledger import BUCKETS
from traceops.measure.steps import NO_STEP
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.traces.discover import discover

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
    from traceops.render.report.run_text import steps_found

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
