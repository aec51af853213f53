"""A ceiling on what a window records: torch's profiler takes time and memory for each operator when it stops.

Measured with torch 2.13 on two shared cores: 0.15 ms and 9 kB for each operator that autograd sees. The other ranks
meanwhile wait in a collective, whose process group has a timeout.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from traceops.capture.guard import contained, text

_S_PER_OPERATOR, _BYTES_PER_OPERATOR = 0.15e-3, 9_000
MOST_OPERATORS = 300_000
_PART_OF_TIMEOUT = 0.25
_RECORDED_BYTES = 1_500  # of an operator while it is recorded
_MUCH_BYTES = 256 << 20  # by which the process grows in a window for no other reason, as programs go
_PAGE = 4096


class Ceiling:
    """Counts the operators of a window, from where it opens: those that autograd sees, or by the memory they take."""

    def __init__(self) -> None:
        self._counted, self._held = _operators(), _resident_bytes()
        self._recorded = 0

    def step_ended(self, *, recorded: bool) -> str | None:
        """Why the next step must not be recorded; None where it may. recorded: the step was, and no warmup."""
        before, self._counted = self._counted, _operators()
        held, self._held = self._held, _resident_bytes()
        grown = self._held - held
        step = max(self._counted - before, grown // _RECORDED_BYTES if recorded and grown > _MUCH_BYTES else 0)
        self._recorded += step if recorded else 0
        next_one = self._recorded + step
        if next_one <= _most():
            return None
        took_s, took_gb = next_one * _S_PER_OPERATOR, next_one * _BYTES_PER_OPERATOR / 1e9
        return text("window_full", step=step, seconds=took_s, gb=took_gb)


def may_record_early(steps: int) -> bool:
    """Whether so many steps may be recorded after the first one, by all that ran until now."""
    return steps * _operators() <= _most()


def _most() -> int:
    within = contained(_timeout_s)
    return MOST_OPERATORS if within is None else min(MOST_OPERATORS, int(_PART_OF_TIMEOUT * within / _S_PER_OPERATOR))


def _operators() -> int:
    """How many operators autograd has seen in this thread."""
    torch = sys.modules.get("torch")
    count = contained(lambda: torch._C._autograd._get_sequence_nr()) if torch is not None else None
    return count or 0


def _resident_bytes() -> int:
    pages = contained(Path("/proc/self/statm").read_text)
    return 0 if pages is None else int(pages.split()[1]) * _PAGE


def _timeout_s() -> float:
    """Of the default process group. Raises what torch does where there is none."""
    group: Any = sys.modules["torch.distributed.distributed_c10d"]._get_default_group()
    timeout: timedelta = group._get_backend(group._device_types[0]).options._timeout
    return timeout.total_seconds()
