import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def python(tmp_path):
    """Runs Python in an empty folder with traceops importable; one thread, as the ranks have."""

    def run(*arguments, env=None):
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path, text=True, capture_output=True, timeout=120,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})},
        )  # fmt: skip

    return run
