"""The commands of the tutorial, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
