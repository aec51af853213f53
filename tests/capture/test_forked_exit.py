"""A process that the script forks behind a window ends by itself, with its own exit status and all its output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, ctypes, os, sys, traceops, torch
from traceops.capture.schedule import Schedule

parameter = torch.nn.Parameter(torch.ones(2))
with traceops.capture(sys.argv[1], schedule=Schedule(skip_first=0, unprofiled=0, warmup=1, active=2)) as capture:
    for _ in range(6):
        parameter.sum().backward()
        capture.step()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).printf(b"of C\\n")  # stays in C's buffer until the exit
        atexit.register(print, "at exit")
        print("of Python")
        sys.exit(int(sys.argv[2]))
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("status", [0, 7])
def test_a_process_forked_behind_a_window_ends(tmp_path: Path, status: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, tmp_path / "run", str(status)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"child {status}" in done.stdout.splitlines()
    assert {"of Python", "at exit", "of C"} <= set(done.stdout.splitlines())
