"""The commands of the tutorial, run as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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
        assert done.returncode == 0, f"{command}{done.stdout}{done.stderr}"
    late_input = {}
    for name in ("before", "after"):
        findings = json.loads((tmp_path / "reports" / name / "report.json").read_text())["findings"]
        late_input[name] = max((one["impact_ms"] or 0.0 for one in findings if one["rule"] == "TO-I002"), default=0.0)
    assert late_input["before"] > 20, "32 images of 1 ms each, read before every step"
    assert late_input["after"] < late_input["before"] / 2
