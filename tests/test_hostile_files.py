"""Files that are no files, too large, cut off or full: each command says so, and none waits or ends in a traceback."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from sample_captures import capture
from started import ROOT, python_path

from traceops.baseline.store import find, save
from traceops.cli import main
from traceops.core.errors import InputError
from traceops.core.files import TooLargeError, open_regular, read_regular
from traceops.doctor.document import read_checkup
from traceops.doctor.settings import read_settings
from traceops.fabric.read import read_fabric
from traceops.report.document import load_object
from traceops.traces.run_manifest import read_run_manifest
from traceops.traces.source import open_binary

DATA = Path(__file__).parent / "data"
REASON = ROOT / "examples" / "github-actions" / "traceops-compare" / "reason.py"


@pytest.fixture
def pipe(tmp_path):
    """A pipe. Whoever opens it and waits reads an end at once, so that a test fails where it would wait."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def end():
        os.close(os.open(path, os.O_WRONLY))

    threading.Thread(target=end, daemon=True).start()
    return path


def report_of(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.json"
    path.write_bytes(gzip.decompress((DATA / "reports" / f"{name}.report.gz").read_bytes()))
    return str(path)


def test_a_pipe_is_no_file(pipe):
    with pytest.raises(OSError, match="a pipe, not a regular file"):
        open_regular(pipe)
    with pytest.raises(InputError, match=f"{pipe}: it is a pipe"), open_binary(str(pipe)):
        pass
    with pytest.raises(InputError, match="it is a pipe"):
        load_object(str(pipe))
    with pytest.raises(InputError, match="it is a pipe"):
        read_settings(pipe)
    assert read_checkup(pipe) is None
    with pytest.raises(InputError, match="is no file"):
        read_fabric([], [pipe])


def test_a_pipe_as_settings(pipe, tmp_path, capsys):
    reports = [report_of("ddp", tmp_path / "base"), report_of("socket", tmp_path / "head")]
    assert main(["compare", *reports, "--config", str(pipe), "-o", str(tmp_path / "out")]) == 2
    assert f"{pipe} cannot be read: it is a pipe" in capsys.readouterr().err


def test_a_pipe_among_baselines_hides_no_other(tmp_path):
    store = str(tmp_path / "store")
    entry = save(store, capture(0, 50.0))
    os.mkfifo(Path(entry.url).with_name("20990101T000000.000Z-00000000-000000000000.json.gz"))
    assert [found.url for found in find(store, entry.key.model)] == [entry.url]


def test_pipes_in_a_run_folder_are_not_read(tmp_path):
    for name in ("run.json", "rank_1.pt.trace.json", "hang.0.json", "rank_2.log"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "rank_0.pt.trace.json.gz").write_bytes((DATA / "ddp4" / "rank_0.pt.trace.json.gz").read_bytes())
    assert main(["analyze", str(tmp_path), "-o", str(tmp_path / "out"), "--format", "json", "-q"]) == 0
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out"), "-q"]) == 3


def test_what_is_read_whole_is_bounded(tmp_path):
    large = tmp_path / "run.json"
    large.touch()
    os.truncate(large, 5 << 30)  # a hole: it takes no room
    with pytest.raises(TooLargeError, match="5,368,709,120 bytes"):
        read_regular(large)
    manifest, problem = read_run_manifest(str(tmp_path))
    assert manifest == {} and "5,368,709,120 bytes" in problem[1]
    with pytest.raises(InputError, match="5,368,709,120 bytes"):
        load_object(str(large))


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_an_output_that_is_full(tmp_path, unbuffered):
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": python_path()}
    command = [sys.executable, "-m", "traceops", "baseline", "list", "--store", str(tmp_path / "none")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ)
    assert done.returncode == 3
    assert done.stderr == ("traceops baseline: its output cannot all be written (No space left on device); make room\n")


def test_a_run_that_is_its_own_only_baseline(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = report_of("ddp", tmp_path / "run")
    assert main(["baseline", "save", report, "--store", "store", "--name", "small"]) == 0
    assert main(["compare", "baseline:small", report, "--store", "store", "-o", "out"]) == 3
    assert "holds no entry that can be read but this run itself" in capsys.readouterr().err


def test_a_stack_dump_cut_behind_its_header(tmp_path, capsys):
    cut = tmp_path / "pyspy_rank_1.txt"
    cut.write_text('Process 25068: python stuck.py sleep\nPython v3.11.7 (python3.11)\n\nThread 25068 (idle): "')
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out")]) == 3
    assert f"{cut}: holds no stacks" in capsys.readouterr().err
    (tmp_path / "pyspy_rank_0.txt").write_text(
        'Process 7: python train.py\nPython v3.11.7 (python3.11)\n\nThread 7 (idle): "MainThread"\n'
        "    step (train.py:3)\n"
    )
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out"), "--format", "json", "-q"]) == 0


def reason(folder):
    done = subprocess.run([sys.executable, REASON, folder], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_actions_reason_reads_a_large_manifest(tmp_path):
    run = {"status": "failed", "started_ns": 1, "failed_rank": 1, "ranks": [{"rank": 0, "pad": "y" * 100_000}]}
    run["ranks"].append({"rank": 1, "error": "ValueError: no such file"})
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert reason(tmp_path) == f"    {tmp_path.name}, rank 1:\n    ValueError: no such file\n"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, '{"status": "failed"}', '{"status": "failed", "failed_rank": 0, "ranks": [3, {}]}',
     '{"status": "failed", "started_ns": "x", "failed_rank": 0, "ranks": {"rank": 0}}', '{"status": ["failed"]}',
     '{"status": "failed", "failed_rank": 0, "ranks": [{"rank": 0, "error": "\\ud83d"}]}'],
    ids=range(9),
)  # fmt: skip
def test_the_actions_reason_of_an_odd_manifest(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    assert "Traceback" not in reason(tmp_path)


def test_the_action_writes_its_comment_whatever_the_reason_does():
    steps = (REASON.parent / "action.yml").read_text()
    (call,) = (line for line in steps.splitlines() if "/reason.py" in line)
    assert call.rstrip().endswith("||"), "it would end the step, and a stale comment stay"
