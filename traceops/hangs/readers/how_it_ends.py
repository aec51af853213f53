"""How a log ends in which nothing failed: at which step, done or interrupted, and whether its steps train anything."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from traceops.hangs.evidence import Frame, LogEnd, LogEvent
from traceops.hangs.readers.line_prefixes import without_prefixes
from traceops.hangs.readers.log_interrupts import interrupted
from traceops.hangs.readers.log_outlived import completed_at
from traceops.hangs.readers.log_requested import asked_to_stop
from traceops.hangs.readers.log_steps import sightings
from traceops.hangs.readers.log_tracebacks import Tracebacks
from traceops.hangs.readers.relevant_lines import last_blocks
from traceops.traces.text_lines import text_lines

_OF = re.compile(rb"\A[^\n\r]{0,40}?(?<!\d)(?:\d{1,9}\s{0,2}(?:/|of)|/)\s{0,8}(\d{1,9})\b")
_SKIPPED = re.compile(rb"\bstep=(\d{1,9}), skipped=(\d{1,9})\b")  # DeepSpeed
_LOSS = re.compile(
    rb"(?<![\w.])[\"']?(?:train[_ ]|lm )?loss[\"']?\s{0,2}[:=]\s{0,2}"
    rb"(-?\d{1,9}\.?\d{0,12}(?:[eE][-+]?\d{1,3})?|nan|inf)(?![\w.])",
    re.IGNORECASE,
)
_FEWEST_SKIPPED = 50  # steps
_SHARE_SKIPPED = 0.5
_SAME = 10  # losses in a row that are 0 or NaN
_INTERRUPT = "KeyboardInterrupt"


def how_it_ends(path: Path) -> LogEnd:
    """How a log ends. Raises InputError where it cannot be read."""
    step: int | None = None
    of: int | None = None
    epoch: float | None = None
    done, last, number = False, 0, 0
    for number, block in last_blocks(str(path)):
        last = number + block.count(b"\n") - block.endswith(b"\n")
        for sight in sightings(block):
            if sight.scale == "epochs":
                epoch = sight.number / 1_000_000
            else:
                total = _OF.match(block[sight.place : sight.place + 80])
                step, of = sight.number, None if total is None else int(total[1])
        done = completed_at(block) is not None or done
    stopped = interrupted(str(path))
    return LogEnd(
        str(path), last, step, of if of is not None and step is not None and of >= step else None, epoch, done,
        stopped, asked_to_stop(str(path)), _interrupted_in(path) if stopped is not None else (),
    )  # fmt: skip


def _interrupted_in(path: Path) -> tuple[Frame, ...]:
    """The frames of the last traceback that a Ctrl-C ended."""
    tracebacks = Tracebacks()
    found: tuple[Frame, ...] = ()
    for number, line in text_lines(str(path)):
        raised = tracebacks.take(number, without_prefixes(line))
        if raised is not None and raised.text.startswith(_INTERRUPT):
            found = raised.frames or found
    return found


def idle_training(path: Path) -> LogEvent | None:
    """What a log says of steps that train nothing: skipped by the loss scaler, or with a loss of 0 or NaN throughout.

    Raises InputError where it cannot be read.
    """
    skipped: tuple[int, int, int] | None = None  # line, skipped, of
    losses: deque[tuple[int, bytes]] = deque(maxlen=_SAME)
    for number, block in last_blocks(str(path)):
        if b"skipped=" in block:
            for match in _SKIPPED.finditer(block):
                skipped = number + block.count(b"\n", 0, match.start()), int(match[2]), int(match[1])
        if b"oss" in block:
            at, place = number, 0
            for match in _LOSS.finditer(block):
                at, place = at + block.count(b"\n", place, match.start()), match.start()
                losses.append((at, match[1].lower()))
    values = {value for _, value in losses}
    flat = "NaN" if values == {b"nan"} else "0" if values and all(_is_zero(value) for value in values) else None
    if skipped is not None and skipped[2] >= _FEWEST_SKIPPED and skipped[1] >= _SHARE_SKIPPED * skipped[2]:
        last = losses[-1][1].decode() if losses else None
        of_loss = f", and the loss is {last}" if last is not None and (last == "nan" or _is_zero(last.encode())) else ""
        text = f"{skipped[1]:,} of {skipped[2]:,} steps were skipped by the loss scaler (overflow in fp16){of_loss}"
        return LogEvent("idle", None, str(path), skipped[0], text)
    if flat is not None and len(losses) == _SAME:
        return LogEvent(
            "idle", None, str(path), losses[0][0], f"The loss is {flat} in each of the last {_SAME} lines that have one"
        )
    return None


def _is_zero(value: bytes) -> bool:
    try:
        return float(value) == 0.0
    except ValueError:
        return False
