"""How a log ends in which nothing failed: at which step, done or interrupted, and whether its steps train anything."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from traceops.core.text import first_words
from traceops.hangs.evidence import Frame, LogEnd, LogEvent
from traceops.hangs.readers.prefixes import without_prefixes
from traceops.hangs.readers.steps import sightings
from traceops.hangs.readers.tracebacks import Tracebacks
from traceops.hangs.readers.went_on import asked_to_stop, completed_at
from traceops.hangs.readers.whole_lines import last_blocks
from traceops.traces.text_lines import blocks, lines, text_lines

# Logs that end because somebody stopped the program: by Ctrl-C, or a signal of which it makes the same exception.


_NAME = re.compile(r"(?<![a-z\d_])[Kk]eyboard[ _]?[Ii]nterrupt(?:ion|ed)?\b")
_CAME = re.compile(r"\b(?:detected|received|caught|got|raised|stopped by|ended by)(?: an?| the)? $", re.IGNORECASE)
_DID_COME = re.compile(r" (?:was |signal )?(?:detected|received|caught|raised)\b", re.IGNORECASE)
_NEXT = re.compile(r" ?[^\w\s]|\s{0,8}$")  # an exception's message, or the next sentence
# DeepSpeed's 'Main process received SIGINT, exiting', torchrun's 'Received Signals.SIGINT death signal' and '… got
# signal: 2', 'Sending process 7 closing signal SIGINT'; srun's and mpirun's own words.
_SIGNAL = re.compile(
    r"\b(?:[Rr]eceived|[Gg]ot|[Cc]aught)(?: (?:an?|the|signal)){0,2}:? (?:Signals\.)?SIGINT\b(?! handler)"
    r"|\bSIGINT (?:was )?(?:received|caught)\b|\bReceived 2 death signal\b|\bclosing signal SIGINT\b"
    r"|\b[Gg]ot signal: 2(?!\d)|^(?:\^C)?srun: sending Ctrl-C to \S|^(?:\^C)?mpi(?:run|exec): killing job\b"
)
_ONLY_SAID = re.compile(r"\b(?i:if|when|whenever|once|until|unless|on|after|should|may|can|will|not|never|press)\b")
_SEARCHED = 400
_WORDS = (b"eyboard", b"SIGINT", b"ignal: 2", b" 2 death", b"Ctrl-C", b"killing job")
_MOST_QUOTED = 160


def interrupted(path: str) -> tuple[int, str] | None:
    """The line that tells of it and what that says; None where steps follow, or without one.

    Raises InputError where the file cannot be read.
    """
    found: tuple[int, str] | None = None
    for number, block in blocks(path):
        if not any(word in block for word in _WORDS):
            found = None if found is not None and any(sightings(block)) else found
            continue
        for at, line in lines(block, number):
            body = without_prefixes(line)
            if _says_so(body):
                found = found or (at, first_words(body.strip(), _MOST_QUOTED))
            elif found is not None and any(sightings(line.encode(errors="replace"))):
                found = None
    return found


def _says_so(body: str) -> bool:
    """Whether a line is the exception's own, or says that it or the signal came: 'Detected KeyboardInterrupt, …'.

    A program that only names it ('registered a handler for keyboard interrupt') was not interrupted.
    """
    if body[:1].isspace():
        return False
    if (signal := _SIGNAL.search(body, 0, _SEARCHED)) is not None:
        return _ONLY_SAID.search(body, 0, signal.start()) is None
    told = _NAME.search(body, 0, _SEARCHED)
    if told is None:
        return False
    before = body[: told.start()]
    if _CAME.search(before) is not None or _DID_COME.match(body, told.end()) is not None:
        return True
    labels = before.removesuffix("^C").split()
    return all(_is_label(word) for word in labels) and _NEXT.match(body, told.end()) is not None


def _is_label(word: str) -> bool:
    """Whether a word is of a time, a level or of who says a line, and no text."""
    return word.isupper() or not (word.isalpha() or word.endswith((".", ",", ";", "except")))


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
_JSON = re.compile(rb'\s{0,20}(?:\{\s{0,20}["}]|\[\s{0,20}[\[{"\]]|")')
_LEAST_ASCII = 0.2  # of a block's bytes: logs have their times, numbers and paths in it, whatever their language
_INTERRUPT = "KeyboardInterrupt"


def how_it_ends(path: Path) -> LogEnd:
    """How a log ends. Raises InputError where it cannot be read."""
    step: int | None = None
    of: int | None = None
    epoch: float | None = None
    done, last, number = False, 0, 0
    for number, block in last_blocks(str(path)):
        if not _is_text(block):
            continue
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


def _is_text(block: bytes) -> bool:
    """Whether it is a log's text: bytes or a JSON document without a failure prove nothing about a run."""
    if _JSON.match(block) and b"\n" not in block.strip():
        return False
    return sum(0x20 <= one < 0x7F for one in block[:4096]) >= _LEAST_ASCII * min(len(block), 4096)


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
