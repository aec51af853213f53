"""A host late in recorded steps, which recording hardly lengthened: the light window says what is left of it."""

import json
import shutil
from pathlib import Path

import pytest
from light_run import write_light

from traceops.pipeline.analyze import analyze

DATA = Path(__file__).parents[1] / "data" / "stacks_late2"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def late(tmp_path: Path, waits_ms: float, profiled_ms: float = 103.0):
    """What is said where rank 0 waits for so long of each step of 100 ms in the light window."""
    return late_report(tmp_path, waits_ms, profiled_ms)[1]


def late_report(tmp_path: Path, waits_ms: float, profiled_ms: float):
    run = tmp_path / "run"
    shutil.copytree(DATA, run)
    told = {"world_size": 2, "unprofiled_step_ms": 100.0, "profiled_step_ms": profiled_ms}
    (run / "run.json").write_text(json.dumps(told))
    for rank in range(2):
        begin = 90 - (waits_ms if rank == 0 else 0.0)
        spans = [("gemm", 0, 40, 7), (GATHER, begin, 99.99, 33)]
        write_light(run, rank, 6, 100.0, lambda _step, spans=spans: spans)
    report = analyze(run)
    assert report.undisturbed and report.undisturbed.step_ms == pytest.approx(100, abs=1)
    [found] = [one for one in report.findings if one.rule == "TO-S001"]
    return report, found


def test_what_nobody_waits_for_without_the_profiler_is_a_remark(tmp_path):
    found = late(tmp_path, 3.0)
    assert found.severity == "info" and found.confidence == "low"
    assert found.facts["doubt"]["kind"] == "light" and found.facts["doubt"]["waiting"] == pytest.approx(3.0)


def test_what_the_light_window_shows_too_stays_as_it_was(tmp_path):
    found = late(tmp_path, 27.0)
    assert found.severity == "error" and "light window" not in found.message
