"""A trace that names a GPU and holds nothing of it: whether the GPU was used, and what it did, is not known."""

import json

import pytest

from traceops import analyze
from traceops.render.report.verdict import verdict

GPU = {"id": 0, "name": "NVIDIA GeForce RTX 4080 SUPER"}
OPERATOR = "aten::mm"


def event(name, start, duration, cat="cpu_op", **args):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": duration,
        "args": args,
    }


@pytest.fixture
def analysed(tmp_path):
    """The report of operators that take nearly all of two seconds."""

    def read(*more, devices=(GPU,), device=None):
        rows = [event(OPERATOR, 1e6 + i * 1e5, 9.9e4, **{"External id": i}) for i in range(20)]
        trace = {"schemaVersion": 1, "deviceProperties": list(devices), "traceEvents": [*rows, *more]}
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
    said = verdict(report)
    assert said.level == "info"
    assert "the trace names a GPU and holds only the host's operators" in said.sentence
    assert "ProfilerActivity.CUDA" in said.sentence


def test_without_a_gpu_operators_are_the_compute(analysed):
    assert "compute" not in unjudged(analysed(devices=()))


def test_a_launch_says_that_kernels_are_missing(analysed):
    """TO-V008 tells that, and nothing else need."""
    report = analysed(event("cudaLaunchKernel", 1.05e6, 5, "cuda_runtime", correlation=7))
    assert "compute" not in unjudged(report)
    assert [finding.rule for finding in report.findings if finding.rule == "TO-V008"]


def test_kernels_are_the_compute(analysed):
    kernel = event("gemm", 1.2e6, 9e4, "kernel", device=0, stream=7, correlation=7)
    assert "compute" not in unjudged(
        analysed(event("cudaLaunchKernel", 1.1e6, 5, "cuda_runtime", correlation=7), kernel)
    )


def test_a_run_that_says_that_it_is_on_the_cpu_is(analysed):
    assert "compute" not in unjudged(analysed(device="cpu"))
    assert unjudged(analysed(device="cuda"))["compute"] == "no_device"
