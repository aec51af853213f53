"""A trace that is cut off lacks some of every step: torch writes the device's activity last, not in order of time."""

import gzip
import shutil
from pathlib import Path

import pytest

from traceops.pipeline.analyze import analyze

DATA = Path(__file__).parents[1] / "data"
COMPARED = ("TO-B", "TO-C", "TO-I", "TO-O", "TO-S")


def cut(folder, name, share=0.8):
    """The folder's traces, of which the last ends too early."""
    *others, last = sorted((DATA / name).glob("*.json.gz"))
    for path in others:
        shutil.copy(path, folder)
    text = gzip.decompress(last.read_bytes())
    (folder / last.name.removesuffix(".gz")).write_bytes(text[: int(share * len(text))])
    return analyze(folder)


def judged(report):
    return {one.rule for one in report.findings if one.rule.startswith(COMPARED)}


@pytest.mark.parametrize("name", ["plain_profiler/graph", "plain_profiler/cold_start", "copies/to_host"])
def test_what_a_gpus_trace_has_lost_is_no_idle_time(tmp_path, name):
    """A GPU that computes all the time was 'idle, because the host has not launched it yet' for 57 % of the step."""
    report = cut(tmp_path, name)
    assert not judged(report)
    [starves] = [check for check in report.checks if check.rule == "TO-I001"]
    assert (starves.status, starves.reason) == ("not_evaluated", "the trace of rank 0 is incomplete, see TO-V002")
    [damaged] = [one for one in report.findings if one.rule == "TO-V002"]
    assert "looks idle" in damaged.message


@pytest.mark.parametrize("name", ["pipeline_uneven2", "pipeline_gpipe4", "slow_loader4"])
def test_nobody_waits_for_what_a_trace_has_lost(tmp_path, name):
    """Stages of a pipeline 'waited for sends that come late' for 20 % of the step, which were missing in a file."""
    report = cut(tmp_path, name, 0.6)
    assert judged(report) <= {"TO-I002"}
    late = next(check for check in report.checks if check.rule == "TO-S001")
    assert "incomplete" in late.reason


def test_one_broken_event_costs_itself_only(tmp_path):
    path = DATA / "copies" / "to_host" / "trace.json.gz"
    text = gzip.decompress(path.read_bytes())
    broken = text.rindex(b'"ph": "X"', 0, len(text) // 2)
    (tmp_path / "trace.json").write_bytes(text[:broken] + b'"ph: "X"' + text[broken + 9 :])
    assert "TO-I004" in judged(analyze(tmp_path))


def test_a_long_step_of_an_incomplete_trace_has_no_cause(tmp_path):
    """'Meanwhile the host launches late', by what was missing."""
    [odd] = [one for one in cut(tmp_path, "plain_profiler/cold_start", 0.6).findings if one.rule == "TO-T001"]
    assert odd.cause == "unknown" and "launches late" not in odd.message
