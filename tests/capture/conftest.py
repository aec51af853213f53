import subprocess
import sys

import pytest
from started import environment


@pytest.fixture
def python(tmp_path):
    """Runs Python in an empty folder with traceops importable; see `environment`."""

    def run(*arguments, env=None, compiler=False):
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path, text=True, capture_output=True, timeout=600,
            env=environment(compiler=compiler, **(env or {})),
        )  # fmt: skip

    return run
