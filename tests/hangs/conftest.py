from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis


@pytest.fixture
def told(tmp_path: Path) -> Callable[[str | bytes], Diagnosis]:
    """The diagnosis of one log; modules whose evidence is of several files have a fixture of their own."""

    def of(text: str | bytes) -> Diagnosis:
        path = tmp_path / "job.out"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return diagnose(path)

    return of
