"""What users copy: the files in runners/ and the commands of the tutorial, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

RUNNERS = Path(__file__).resolve().parents[2] / "runners"
NEEDED = {"huggingface": ("transformers", "accelerate"), "lightning_module": ("lightning",)}


def command_line(*words: str, cwd: Path) -> str:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp", "huggingface", "lightning_module", "own_loop"])
def test_a_runner_trains_and_is_recorded(name: str, tmp_path: Path) -> None:
    for module in NEEDED.get(name, ()):
        pytest.importorskip(module)
    ranks = 1 if name == "own_loop" else 2
    script = RUNNERS / f"{name}.py"
    command_line(
        "traceops", "run", "--nproc", str(ranks), "--out", "kept", "--", str(script), "--steps", "20", cwd=tmp_path
    )
    command_line("traceops", "analyze", "kept", "-o", "report", "--format", "json", cwd=tmp_path)
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [row["rank"] for row in report["ranks"]] == list(range(ranks))
    assert report["summary"]["step_time_ms"]["n"] >= 4


def test_no_runner_is_longer_than_one_reads() -> None:
    assert {path.name for path in RUNNERS.glob("*.py") if len(path.read_text().splitlines()) > 120} == set()


# The commands of the tutorial, run as they stand there.


READS = "Images.__getitem__"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


@pytest.mark.torch
@pytest.mark.slow
def test_the_tutorial_finds_the_slow_loader_and_the_fix_removes_it(tmp_path: Path) -> None:
    text = PAGE.read_text()
    (script,) = re.findall(r'```python title="train\.py"\n(.*?)```', text, re.S)
    commands = re.findall(r"```sh\n(.*?)```", text, re.S)
    (tmp_path / "train.py").write_text(script)
    beside = Path(sys.executable).parent  # where `traceops` and `python` are
    environ = {**os.environ, "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    assert len(commands) == 4
    for command in [*commands, "traceops analyze profile/after -q"]:
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True)
        allowed = {0, 1} if command.startswith("traceops compare") else {0}  # 1: slower, as a busy machine may find
        assert done.returncode in allowed, f"{command}{done.stdout}{done.stderr}"
    folder = tmp_path / "reports"
    reports = {name: json.loads((folder / name / "report.json").read_text()) for name in ("before", "after")}
    first = next(one for one in reports["before"]["findings"] if one["rule"] == "TO-I002")
    assert first["impact_ms"] > 20, "32 images of 1 ms each, read before every step"
    # A busy machine may starve the two workers, but the training process itself reads no image any more.
    assert READS in json.dumps(reports["before"])
    assert READS not in json.dumps(reports["after"])
