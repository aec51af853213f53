"""Failures in a log behind the end of its training: an evaluation, an upload or a clean-up failed."""

from __future__ import annotations

import re
from dataclasses import replace

from traceops.hangs.evidence import LogEvent, LogKind
from traceops.hangs.readers.log_steps import sightings
from traceops.traces.text_lines import blocks

# Of Hugging Face's Trainer, of Lightning, and of a logger.
TRAINED = (
    rb"'train_runtime': |`Trainer\.fit` stopped: `max_"
    rb"|\bINFO\b[^\n\r]{0,80}[Tt]raining (?:is )?(?:completed?|finished|done)\b"
)
_TRAINED = re.compile(TRAINED)
_WORDS = (b"'train_runtime'", b"`Trainer.fit`", b"raining")
_OWN: tuple[LogKind, ...] = ("error", "memory", "cuda")


def with_ends(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, those whose failure comes behind the end of a training that is marked `after_end`.

    Raises InputError where the file cannot be read.
    """
    lines = [event.line for event in events if event.kind in _OWN]
    if not lines or (end := _end(path, min(lines))) is None:
        return events
    return tuple(
        replace(event, after_end=True) if event.kind in _OWN and event.line > end else event for event in events
    )


def _end(path: str, before: int) -> int | None:
    """The line in which a training ends, before another one; None where steps follow, or without one."""
    end: int | None = None
    for number, block in blocks(path):
        if number >= before:
            break
        if end is None and not any(word in block for word in _WORDS):
            continue
        told = [match.start() for match in _TRAINED.finditer(block)]
        steps = max((sight.place for sight in sightings(block)), default=-1)
        if told and told[-1] > block.rfind(b"\n", 0, max(steps, 0)):
            at = number + block.count(b"\n", 0, told[-1])
            end = at if at < before else None
        elif steps >= 0 and number + block.count(b"\n", 0, steps) < before:
            end = None
    return end
