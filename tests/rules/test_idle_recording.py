"""Late launches are not judged where recording may be all of them, and nothing was timed without the profiler."""

import gzip
from pathlib import Path

import msgspec
import pytest

from traceops import analyze
from traceops.core.findings import Finding
from traceops.render.report.verdict import verdict
from traceops.rules.idle_recording import MAY_BE_ALL, RECORDING_US

PLAIN = Path(__file__).parents[1] / "data" / "plain_profiler"


def host_bound(report):
    return next((found for found in report.findings if found.rule == "TO-I001"), None)


def check(report):
    return next(check for check in report.checks if check.rule == "TO-I001")


def test_lateness_that_recording_may_explain_is_not_judged():
    """One iteration of a GPT: a quarter 'launched late'. Without the profiler it takes as long as the GPU computes."""
    report = analyze(PLAIN / "one_iteration" / "trace.json.gz")
    assert host_bound(report) is None
    assert check(report).status == "not_evaluated"
    assert check(report).reason.startswith(f"{MAY_BE_ALL}: launches are 11.7 ms late in the window, and ")
    assert "events takes a host 24.0 ms, at 5 µs each" in check(report).reason
    head = verdict(report)
    assert head.level == "info"
    assert "Not judged: 26 % of the window" in head.sentence
    assert "Compare with a step that is timed without the profiler" in head.sentence
    assert report.summary.recording_ms == pytest.approx(report.ranks[0].idle_host_ms, abs=0.01)


def test_calls_of_python_are_recorded_too(tmp_path):
    """A GPT recorded with stacks: 25.7 ms of 53.5 were 'launched late', and it takes 28.2 without the profiler."""
    text = gzip.decompress((PLAIN / "one_iteration" / "trace.json.gz").read_bytes())
    (tmp_path / "trace.json").write_bytes(
        text.replace(b'"record_shapes": 1,', b'"record_shapes": 1, "with_stack": 1,', 1)
    )
    assert "takes a host 71.9 ms" in check(analyze(tmp_path / "trace.json")).reason


def test_kernels_of_a_graph_are_recorded_one_by_one():
    """A compiled GPT in CUDA graphs takes 2.7 ms without the profiler, 4.96 with it: no warning of its host."""
    report = analyze(PLAIN / "graph" / "trace.json.gz")
    assert host_bound(report).severity == "info"
    assert verdict(report).sentence.startswith("Nothing serious found")
    assert f"at {RECORDING_US:g} µs each" in host_bound(report).message


def test_what_recording_may_take_is_said_beside_the_gain():
    """Without the profiler the rest of the step takes less, and more workers keep up."""
    report = analyze(PLAIN / "cold_start" / "trace.json.gz")
    late = report.ranks[0].idle_host_ms
    assert 0 < report.summary.recording_ms <= late
    assert "may be recording itself." in verdict(report).sentence
    input_bound = next(found for found in report.findings if found.rule == "TO-I002")
    assert "6 to 7 DataLoader workers a rank would keep up" in input_bound.message


def test_a_small_finding_does_not_hide_that_most_of_a_step_is_not_judged(tmp_path):
    """bert-small, the GPU busy for 7 %: of 4.4 ms the verdict told the 0.15 in which the host waited for the device."""
    report = analyze(PLAIN / "one_iteration" / "trace.json.gz")
    judged = next(check for check in report.checks if check.rule == "TO-I003")
    small = Finding(
        rule="TO-I003",
        severity="warning",
        confidence="high",
        ranks=(0,),
        title="",
        message="",
        evidence=(),
        impact_ms=0.2,
    )
    head = verdict(msgspec.structs.replace(report, findings=(small,)))
    assert judged.status == "clear" and head.level == "warning"
    assert "Not judged: 26 % of the window" in head.sentence and "recording may be all of it" in head.sentence
    assert "may be recording itself" not in head.sentence
