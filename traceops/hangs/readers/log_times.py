"""When a job's log was written: the times in its lines, of its steps and at its end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from traceops.hangs.readers.log_steps import Moment, moment_of, sightings
from traceops.traces.text_lines import blocks

_HEAD = 200  # bytes of a line in which its time is looked for
_OF_KERNEL = (b"NVRM: ", b" kernel: ", b"Killed process")


@dataclass(frozen=True)
class LogTimes:
    """first, last: of the lines that have one; last_step: of the last step whose line has one. steps: it shows any.

    pids: those of the asked that it names as a process of the job.
    """

    first: Moment | None
    last: Moment | None
    last_step: Moment | None
    steps: bool
    pids: frozenset[int]


def read_times(path: str, pids: Sequence[int]) -> LogTimes:
    """When a log was written, and which of `pids` it names. Raises InputError where the file cannot be read."""
    first: Moment | None = None
    last: Moment | None = None
    last_step: Moment | None = None
    steps, named = False, set[int]()
    for _, block in blocks(path):
        lines = block.splitlines()
        if first is None:
            first = next((told for line in lines if (told := _moment(line)) is not None), None)
        last = next((told for line in reversed(lines) if (told := _moment(line)) is not None), last)
        seen = list(sightings(block))
        steps = steps or bool(seen)
        step = next((told for sight in reversed(seen) if (told := sight.moment) is not None), None)
        last_step = step or last_step
        named |= {pid for pid in pids if pid not in named and _names(block, pid)}
    return LogTimes(first, last, last_step, steps, frozenset(named))


def _moment(line: bytes) -> Moment | None:
    return None if any(words in line for words in _OF_KERNEL) else moment_of(line[:_HEAD])


def _names(block: bytes, pid: int) -> bool:
    """Whether a line names the process as the job's: torchrun's report, NCCL's 'host:pid:tid', Ray's 'pid=4711'."""
    digits = b"%d" % pid
    if digits not in block:
        return False
    named = re.compile(rb"(?:\bpid[=: ]{1,3}|:|\[)" + digits + rb"\b(?!\.)")
    lines = (line for line in block.splitlines() if digits in line)
    return any(named.search(line) for line in lines if not any(words in line for words in _OF_KERNEL))
