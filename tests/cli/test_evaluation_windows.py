"""Lightning's PyTorchProfiler leaves a window of training and a later one of validation."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data" / "straggler_gloo2"
LATER_NS = 60_000_000_000


@pytest.fixture
def folder(tmp_path):
    """Both windows of two ranks, under the names that Lightning 2.6 gives them; the later one without steps' marks."""
    run = tmp_path / "profile"
    run.mkdir()
    for number, path in enumerate(sorted(DATA.glob("*.json.gz"))):
        name = f"fit-fit-{number}-[Strategy]DDPStrategy"
        shutil.copy(path, run / f"{name}.training_step.179547009516364019{number}.pt.trace.json.gz")
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["baseTimeNanoseconds"] = trace.get("baseTimeNanoseconds", 0) + LATER_NS
        later = run / f"{name}.validation_step.179547009770396914{number}.pt.trace.json"
        later.write_text(json.dumps(trace))
    return run


def test_the_window_of_training_is_analysed(folder, tmp_path):
    """Validation was analysed as the training's step."""
    found = discover(str(folder))
    assert [window.index for window in found.windows] == [0, 1] and found.latest.index == 0
    assert found.notes == ("window 0 is analysed, and not window 1: that one is of evaluation",)
    assert main(["analyze", str(folder), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    used = {Path(rank["trace"]).name.split(".")[1] for rank in report["ranks"]}
    assert used == {"training_step"}


def test_where_only_validation_was_recorded_it_is_analysed(folder):
    for path in folder.glob("*training_step*"):
        path.unlink()
    assert discover(str(folder)).latest.index == 0
