"""Commands whose messages go into a pipe that nobody reads any more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.started import environment
from traceops.cli import main


@pytest.mark.parametrize(("last", "code"), [("raise InputError('no such run')", 3), ("return 1", 1)])
def test_messages_that_nobody_reads_do_not_change_the_exit_code(tmp_path: Path, last: str, code: int) -> None:
    """`traceops analyze … 2>&1 | head -1`: a note into the closed pipe let a gate pass with 0, an error became 1."""
    program = (
        "import sys\nfrom traceops.cli import main, diagnose\nfrom traceops.core.errors import InputError\n"
        f"def told(args):\n    print('a note', file=sys.stderr)\n    {last}\n"
        "diagnose.main = told\nsys.exit(main(['diagnose', 'x']))\n"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=writer, stderr=writer, env=environment())
    os.close(writer)
    os.close(reader)
    assert process.wait() == code


def test_a_broken_pipe_elsewhere_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("traceops.cli.diagnose.main", broken)
    assert main(["diagnose", "x"]) == 70
