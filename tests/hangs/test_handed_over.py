"""Logs as stores and CI systems hand them over: newest first, or several in one archive."""

from __future__ import annotations

import pytest

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.readers.whole_lines import is_newest_first

LINES = (
    "INFO step 11 loss 2.2",
    "INFO step 12 loss 2.1",
    "ERROR Traceback (most recent call last):",
    'ERROR   File "train.py", line 10, in main',
    "ERROR     x = x.view(2, 3)",
    "ERROR RuntimeError: shape '[2, 3]' is invalid for input of size 5",
)


def log(lines: tuple[str, ...] = LINES) -> list[str]:
    return [f"2026-11-24T00:05:{second:02}.100Z {line}\n" for second, line in enumerate(lines)]


def test_a_log_with_its_newest_line_first_is_not_judged(tmp_path):
    """Its launcher's error was told, and its traceback, upside down, as four messages of trouble."""
    file = tmp_path / "downloaded.txt"
    file.write_text("".join(reversed(log())))
    with pytest.raises(InputError, match=r"has its newest line first: .*--order=asc"):
        diagnose(file)


@pytest.mark.parametrize(
    "text",
    [
        "".join(log()),
        "".join(log() + log() + log() + log()),  # several runs, one after the other
        "".join(line for pair in zip(log(), log()[1:], strict=False) for line in reversed(pair)),  # ranks, mixed
        "step 9\nstep 8\nstep 7\nstep 6\nstep 5\nstep 4\nstep 3\n",
    ],
)
def test_other_logs_are_read(text: str):
    assert not is_newest_first(text.encode())
