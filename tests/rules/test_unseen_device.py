"""A trace that names a GPU and holds nothing of it: whether the GPU was used, and what it did, is not known."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.rules.coverage import unjudged_time

GPU = {"id": 0, "name": "NVIDIA GeForce RTX 4080 SUPER"}
OPERATOR = "aten::mm"


def event(name, start, duration, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}


@pytest.fixture
def analysed(tmp_path):
    """The report of operators that take nearly all of two seconds."""

    def read(*more, devices=(GPU,), device=None, backend=None):
        rows = [event(OPERATOR, 1e6 + i * 1e5, 9.9e4, **{"External id": i}) for i in range(20)]
        trace = {"schemaVersion": 1, "deviceProperties": list(devices), "traceEvents": [*rows, *more]}
        trace |= {"distributedInfo": {"rank": 0, "world_size": 1, "backend": backend}} if backend else {}
        (tmp_path / "trace.json").write_text(json.dumps(trace))
        if device is not None:
            (tmp_path / "run.json").write_text(
                json.dumps({"format": "traceops-run", "format_version": 1, "device": device, "ranks": []})
            )
        return analyze(str(tmp_path if device is not None else tmp_path / "trace.json"))

    return read


def unjudged(report):
    return {one.bucket: one.why for one in report.summary.unjudged}


def test_operators_beside_a_gpu_are_not_called_healthy_compute(analysed):
    report = analysed()
    assert unjudged(report)["compute"] == "no_device"
    card, said = card_of(report), unjudged_sentence(report)
    assert card.level == "info" and card.judged_pct < 90
    assert "the trace names a GPU and holds only the host's operators" in said
    assert "ProfilerActivity.CUDA" in said


def test_without_a_gpu_operators_are_the_compute(analysed):
    assert "compute" not in unjudged(analysed(devices=()))


def test_a_launch_says_that_kernels_are_missing(analysed):
    """TO-V008 tells that, and nothing else need."""
    report = analysed(event("cudaLaunchKernel", 1.05e6, 5, "cuda_runtime", correlation=7))
    assert "compute" not in unjudged(report)
    assert [finding.rule for finding in report.findings if finding.rule == "TO-V008"]


@pytest.mark.parametrize(
    ("names", "backend", "lost"),
    [
        (("nccl:all_reduce",), None, True),
        (("record_param_comms",), "nccl", True),
        (("record_param_comms",), "cpu:gloo,cuda:nccl", False),
        (("gloo:all_reduce",), "gloo", False),
        ((), "nccl", False),
    ],
)
def test_collectives_of_nccl_say_that_kernels_are_missing(analysed, names, backend, lost):
    """They were taken for collectives on the CPU: such a rank was told to make the others wait."""
    report = analysed(*(event(name, 1.05e6, 5) for name in names), devices=(), backend=backend)
    assert [finding.rule for finding in report.findings if finding.rule == "TO-V008"] == ["TO-V008"] * lost


def test_idle_time_of_a_gpu_that_was_not_recorded_is_not_told():
    """71 % of such a rank's step was said to be 'launched late'."""
    one, other = (SimpleNamespace(rank=rank, kernels_lost=rank == 1, on_gpu=rank == 0) for rank in (0, 1))
    for summary in (one, other):
        summary.meta, summary.copies = SimpleNamespace(device=None), SimpleNamespace(kinds=())
    times = [
        SimpleNamespace(summary=summary, share_pct=lambda name, idle=idle: idle * (name == "idle_host"))
        for summary, idle in ((one, 12.0), (other, 71.0))
    ]
    checks = [SimpleNamespace(rule="TO-I004", status="clear")]
    for own in times:
        own.duration, own.buckets = np.array([100]), {"memory": np.array([0])}
    [idle] = unjudged_time(SimpleNamespace(ranks=times), checks, on_cpu=False)
    assert (idle.bucket, idle.rank, idle.pct) == ("idle_host", 0, 12.0)


def test_marks_of_steps_and_launches_alone_are_a_trace(tmp_path):
    """Its summary did not fit itself: 'it cannot be read as a summary'."""
    rows = [event(f"ProfilerStep#{i}", 1e6 + i * 1e5, 9.9e4, "user_annotation") for i in range(3)]
    launches = [event("cudaLaunchKernel", 1.05e6 + i * 1e5, 5, "cuda_runtime", correlation=i) for i in range(3)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows + launches}))
    report = analyze(str(tmp_path / "trace.json"))
    assert [finding.rule for finding in report.findings] == ["TO-V008"]


def test_a_run_without_kernels_leads_with_that_and_shows_no_compute(tmp_path):
    """'Waits for input for 20 ms of each step' came first, and a table with 'compute 76.2 %'."""
    rows = [
        row
        for at in (1e6 + i * 1e5 for i in range(5))
        for row in (
            event(f"ProfilerStep#{int(at)}", at, 9.9e4, "user_annotation"),
            event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 2e4, "user_annotation"),
            event("cudaLaunchKernel", at + 5e4, 5, "cuda_runtime", correlation=int(at)),
            event(OPERATOR, at + 2.1e4, 7.6e4),
        )
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    report = analyze(str(tmp_path / "trace.json"))
    assert len(report.findings) > 1
    assert report.findings[0].rule == "TO-V008"
    assert (card_of(report).rule, card_of(report).judged_pct) == ("TO-V008", None)
    assert (report.summary.ledger_pct.compute, report.summary.compute_pct, report.ranks[0].compute_ms) == (None,) * 3


def test_a_window_without_length_gets_no_clean_bill(tmp_path):
    """'No problem found. Judged 100 % of the window' was said of 0.000 ms."""
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event(OPERATOR, 1e6, 0)]}))
    report = analyze(str(tmp_path / "trace.json"))
    card = card_of(report)
    assert (card.level, card.judged_pct) == ("info", None)
    assert card.headline == "No step time was recorded, so nothing could be judged"


def test_kernels_are_the_compute(analysed):
    kernel = event("gemm", 1.2e6, 9e4, "kernel", device=0, stream=7, correlation=7)
    assert "compute" not in unjudged(
        analysed(event("cudaLaunchKernel", 1.1e6, 5, "cuda_runtime", correlation=7), kernel)
    )


def test_a_run_that_says_that_it_is_on_the_cpu_is(analysed):
    assert "compute" not in unjudged(analysed(device="cpu"))
    assert unjudged(analysed(device="cuda"))["compute"] == "no_device"
