"""The files in runners/, which users copy: each trains on the CPU under `traceops run` and gives a report."""

from __future__ import annotations

import json
import os
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
