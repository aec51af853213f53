"""Tracebacks, fatal errors of Python and stacks of failed collectives as they go by in a log, one per rank."""

from __future__ import annotations

import re
from collections import deque
from typing import Literal

from msgspec import Struct, field

from traceops.core.text import by_shape
from traceops.hangs.evidence import Frame
from traceops.hangs.readers.log_events import OpenEvent
from traceops.hangs.stack_activity import is_own
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("tracebacks")
_START = "Traceback (most recent call last):"
HEAD_ONLY = f"{_START} …"  # of a traceback of which nothing more is there
_FRAME = re.compile(r'^\s{0,64}File "(.{0,4096})", line (\d{1,9})(?:, in(?: (.{1,1000}))?)?$')
_FATAL_FRAME = re.compile(r'^ {1,2}File "(.{0,4096})", line (\d{1,9}|\?\?\?) in (.{1,1000})$')
_TORN = 'File "'  # a frame whose line is cut, where all lines stood indented
_TORN_FILE = re.compile(r'^\s{0,64}File "([^"]{1,4096})"(?:,[^"]{0,20})?$')  # of which the file is whole
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# What Python goes on after.
SURVIVED = ("Exception ignored ", "Exception in thread", "--- Logging error ---")
# The level of a line in which a logger shows a traceback: its program goes on.
MILD = re.compile(r"\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?)\b|(?:^|\[)[VIW]\d{4} \d\d:\d\d:")
# Raised in torchrun or by its stopping a rank, not in the training.
NOT_THE_CAUSE = (
    "torch.distributed.elastic.",
    "SystemExit",
    "KeyboardInterrupt",
    "RuntimeError: KeyboardInterrupt",  # while torch's C++ parts are imported
    "torch.multiprocessing.spawn.",
    "RuntimeError: Horovod detected that one or more processes exited",  # horovodrun
)
# An exception as Python prints it in the first column; without a traceback it tells only of a program's own text.
_EXCEPTION = re.compile(_GRAMMAR["exception"])
_AROUND = re.compile(r"^(?:E {3,20})?['\"`]?")  # pytest's mark, the quote of whoever pasted it
# 'MeanSquaredError: 0.0123' is a metric.
_METRIC = re.compile(r"^[A-Za-z_]\w{0,300}Error: ?[-+]?(?:\d{1,18}\.\d|nan\b)")
# How a traceback ends, whatever the exception is called; 'ERROR:root:…' is another message, 'fire.Fire(train)' code.
_ENDS = re.compile(_GRAMMAR["ends"])
# What torch before 1.5 prints of a CUDA call that failed, before it raises a RuntimeError of the same words.
_AS_RAISED = "RuntimeError: cuda runtime error ({2}) : {3} at {0}:{1}"
_THC = re.compile(r"^THCudaCheck FAIL file=(\S{1,500}) line=(\d{1,9}) error=(\d{1,9}) : (.{1,300})$")
# The last line of a traceback without a message: 'NotImplementedError'.
_NAME = re.compile(r"^[A-Za-z_][\w.]{0,300}(?:Error|Exception|Interrupt|Expired)$")
_DOTTED = re.compile(r"^[a-z_][\w.]{0,300}\.[a-z_]{0,100}$")
_LABEL = re.compile(r"^[(\[][^()\[\]]{0,80}$")  # of who says a line, whose end is missing
_LEVEL = re.compile(r"^[A-Z]{1,8}$")  # 'ERR': of a logger that shows the traceback
# Ray's word on what a task raised: the task's own traceback follows, without its first line.
_OF_RAY = re.compile(r"^(?:ray\.exceptions\.)?RayTaskError\(\w{1,200}\): ")
# torch.distributed.checkpoint's word on each rank that failed, below its own exception.
_OF_RANK = re.compile(r" \(RANK \d{1,7}\)\s{0,8}$")
_INSTALLED = re.compile(r"\((?:[^\s()]{0,300}/)?(?:site|dist)-packages/")  # where libraries are: the file tells which
_FRAMES_BY = 2  # spaces by which frames stand further in than the exception
_STACK = 3  # frames from which on they are a stack
_MOST_FRAMES = 200
_LONGEST = 5000  # lines; what is longer is no traceback
# A wait in these functions is a wait in this operation.
_CALLS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_gather_into_tensor": "_all_gather_base",
    "reduce_scatter": "reduce_scatter", "reduce_scatter_tensor": "_reduce_scatter_base", "broadcast": "broadcast",
    "barrier": "barrier", "gather": "gather", "scatter": "scatter", "reduce": "reduce", "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all", "send": "send", "recv": "recv", "monitored_barrier": "monitored_barrier",
}  # fmt: skip


class Raised(Struct, frozen=True):
    """A whole traceback: its last line, its frames innermost first, and how it follows the one before. link: 'cause'
    where it replaces the exception before it, which it names; 'origin' where it is the exception of a worker that the
    one before tells of. survived: the process went on. end: its last line. warned: a logger shows it as a warning, or
    as less."""

    text: str
    line: int
    frames: tuple[Frame, ...]
    link: Literal["", "cause", "origin"]
    survived: bool
    end: int
    warned: bool = False


class _OpenTraceback(Struct):
    line: int
    offset: int  # of text before each line, such as a time
    base: int  # spaces before the lines that are not indented
    link: Literal["", "cause", "origin"]
    survived: bool
    warned: bool = False  # shown by a logger as a warning, or as less
    headless: bool = False  # without its first line: only what looks like an exception ends it
    frames: deque[Frame] = field(default_factory=lambda: deque(maxlen=_MOST_FRAMES))
    torn_file: str | None = None  # of the last frame, whose line is cut behind it
    shifted: bool = False
    flat: bool = False  # the last line is a frame without its spaces, so its line of code has none either
    length: int = 0


class Tracebacks:
    """The traceback of one speaker."""

    def __init__(self) -> None:
        self._open: _OpenTraceback | None = None
        self._chained = False
        self._survived = False
        self._of_ray = False  # the last traceback ended in Ray's word on another, which comes
        self.dropped = False  # the last line did not end a traceback: what had looked like one was none
        self._torn: tuple[int, str] | None = None  # the first frames without a head that no exception ended
        self._loose: tuple[int, str] | None = None  # the first such frames that may be a stack
        self._broken: tuple[int, str] | None = None  # the same with a head: another process wrote into it

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def take(self, number: int, body: str) -> Raised | None:
        """Look at the next line; the traceback that ends with it."""
        self.dropped = False
        found = body.find(_START)
        if found >= 0 and not body.startswith("\\n", found + len(_START)):  # not one in a string of JSON
            self._begin(number, body, found)
            return None
        if self._open is None and is_frame(body) and not self._survived:
            base = max(len(body) - len(body.lstrip(" ")) - _FRAMES_BY, 0)
            self._open = _OpenTraceback(number, 0, base, "origin" if self._of_ray else "", False, headless=True)
        if self._open is None:
            if body.strip():
                self._chained = any(words in body for words in _CHAINED) or (self._chained and not body.strip())
                self._survived = body.startswith(SURVIVED)
            return None
        return self._continue(self._open, number, body)

    def cut_off(self, at_head: int | None, *, at_end: bool) -> tuple[int, str] | None:
        """The line and the text of a traceback whose end did not come; None without one. at_head: the line in which one
        begins that nothing comes before. Elsewhere frames without a traceback's first line are a stack that the program
        printed. at_end: only one in which the log ends."""
        return self._open_at_end(at_head) or (None if at_end else self._broken)

    def without_ends(self) -> tuple[int, str] | None:
        """The line and the text of a traceback's frames, neither of whose ends is there; None of fewer than three."""
        if self._open is not None and self._open.headless and len(self._open.frames) >= _STACK:
            return self._open.line, _inside(self._open)
        return self._loose

    def _open_at_end(self, at_head: int | None) -> tuple[int, str] | None:
        if self._open is None:
            return None
        if self._open.headless and self._torn is not None and self._torn[0] == at_head:
            return self._torn  # frames from the head to the end: those of several, mixed
        if not self._open.frames:
            return None if self._open.headless else (self._open.line, HEAD_ONLY)
        if self._open.headless:
            return None if self._open.line != at_head else (at_head, _inside(self._open))
        return self._open.line, f"{_START} {_inside(self._open)}"

    def _begin(self, number: int, body: str, found: int) -> None:
        before = body[:found]
        link: Literal["", "cause", "origin"] = "cause" if self._chained else ""
        if before.endswith("Original "):
            link, found = "origin", found - len("Original ")
        elif _OF_RANK.match(body, found + len(_START)) is not None:
            link = "origin"
        warned = MILD.search(before) is not None
        survived = self._survived or warned or "Exception Group" in before
        in_report = before.strip() == "traceback :"
        self._open = _OpenTraceback(number, 0 if in_report else found, 2 if in_report else 0, link, survived, warned)
        self._chained = self._survived = False

    def _continue(self, open_: _OpenTraceback, number: int, body: str) -> Raised | None:
        open_.length += 1
        if open_.length > _LONGEST:
            self._open = None
            return None
        line = body[open_.offset :] if open_.shifted else body
        if not line.strip():
            return None
        if (match := _FRAME.match(line)) is None and open_.offset and not open_.frames:
            match = _FRAME.match(body[open_.offset :])
            open_.shifted = match is not None
        if match is not None:
            open_.frames.append(Frame(match[3] or "<module>", match[1], int(match[2])))
            open_.flat = not line[0].isspace()
            return None
        torn = _TORN_FILE.match(line)
        open_.torn_file = None if torn is None else torn[1]
        if open_.flat and not _ends_headless(line.strip()):
            open_.flat = False
            return None
        # Cut before the exception's own name: 'torch.distributed.ela', '(EngineCore_DP0 pi', 'ERR'.
        is_torn = line.startswith(_TORN) or any(form.match(line.strip()) for form in (_DOTTED, _LABEL, _LEVEL))
        if len(line) - len(line.lstrip(" ")) > open_.base or is_torn:
            return None
        self._open = None
        if not (_ends_headless if open_.headless else _ENDS.match)(line.strip()):  # a line of something else, or torn
            self._drop(open_)
            return None
        self._of_ray = _OF_RAY.match(line.strip()) is not None
        frames = tuple(reversed(open_.frames))
        return Raised(line.strip(), open_.line, frames, open_.link, open_.survived, number, open_.warned)

    def _drop(self, open_: _OpenTraceback) -> None:
        """Keep the frames of what no exception ended."""
        self.dropped = True
        if open_.headless and self._loose is None and len(open_.frames) >= _STACK:
            self._loose = open_.line, _inside(open_)
        if open_.headless and self._torn is None:
            self._torn = open_.line, _inside(open_)
        elif not (open_.headless or open_.survived) and self._broken is None and open_.frames:
            self._broken = open_.line, f"{_START} {_inside(open_)}"


def _inside(open_: _OpenTraceback) -> str:
    """The innermost line of the program's own, and the innermost of all; of a frame that is cut its file."""
    frames = open_.frames
    own = next((frame for frame in reversed(frames) if is_own(frame)), frames[-1])
    said = f"… {own} … {frames[-1]} …" if own != frames[-1] else f"… {own} …"
    if open_.torn_file is not None:
        said = f"{said} ({open_.torn_file}) …"
    return as_of_library(said)


def as_of_library(frames: str) -> str:
    """Frames as text, '(ray/worker.py:2174)' for what lies among the installed libraries."""
    return _INSTALLED.sub("(", frames)


def is_frame(body: str) -> bool:
    """Whether a line is a frame of a traceback."""
    if 'File "' not in body:
        return False
    match = _FRAME.match(body)
    return match is not None and match[3] is not None


def is_exception(line: str) -> bool:
    """Whether a line is how a traceback ends: 'ValueError: …'."""
    match = _EXCEPTION.match(line)
    return match is not None and match[0][(match[1] or "").rfind(".") + 1].isupper()


def _ends_headless(line: str) -> bool:
    return is_exception(line) or _NAME.match(line) is not None


def bare_exception(line: str) -> str | None:
    """The last line of a traceback, which somebody copied without it, or which old torch printed before it."""
    if (check := _THC.match(line)) is not None:
        return _AS_RAISED.format(*check.groups()[:3], check[4].strip())
    return _AROUND.sub("", line) if _is_bare(line) else None


@by_shape
def _is_bare(line: str) -> bool:
    line = _AROUND.sub("", line)
    return is_exception(line) and _METRIC.match(line) is None


def operation_in(frames: tuple[Frame, ...]) -> str | None:
    """The collective that the innermost call into torch.distributed is, as the flight recorder names it."""
    for frame in frames:
        if frame.file.endswith("torch/distributed/distributed_c10d.py") and frame.function in _CALLS:
            return _CALLS[frame.function]
    return None


_FAILED_FRAME = re.compile(r"^#(\d{1,4}) (\S{1,500}) from (.{1,4096}):(\d{1,9})\s{0,4}$")
_CURRENT = re.compile(r"^Current thread 0x[0-9a-f]{1,16}(?: \[.{0,200}\])? \(most recent call first\):")


class LineFrames:
    """Adds the frames that come to the event that they belong to."""

    def __init__(self) -> None:
        self._failed: tuple[int | None, OpenEvent] | None = None
        self._fatal: tuple[int | None, OpenEvent, bool] | None = None  # inside: of the thread that failed

    @property
    def is_open(self) -> bool:
        return self._failed is not None or self._fatal is not None

    def of_failed(self, speaker: int | None, event: OpenEvent | None) -> None:
        """The stack of this rank's failed collective comes; of None nobody knows which that is."""
        self._failed = None if event is None else (speaker, event)

    def of_fatal(self, speaker: int | None, event: OpenEvent) -> None:
        """The stacks of all threads come."""
        self._fatal = (speaker, event, False)

    def take(self, rank: int | None, body: str) -> bool:
        """Whether the line is a part of one."""
        if self._failed is not None and self._take_failed(*self._failed, rank, body):
            return True
        return self._fatal is not None and self._take_fatal(*self._fatal, rank, body)

    def _take_failed(self, speaker: int | None, event: OpenEvent, rank: int | None, body: str) -> bool:
        """Other lines may come in between."""
        if (match := _FAILED_FRAME.match(body)) is None:
            if not body.strip() or (rank == speaker and not body.startswith("#")):
                self._failed = None
            return False
        if rank in (None, speaker) and int(match[1]) == len(event.event.frames):
            _add(event, Frame(match[2], match[3], int(match[4])))
        return True

    def _take_fatal(self, speaker: int | None, event: OpenEvent, inside: bool, rank: int | None, body: str) -> bool:
        if rank != speaker:
            return False
        if _CURRENT.match(body):
            self._fatal = (speaker, event, True)
            return True
        if (frame := _FATAL_FRAME.match(body)) is not None:
            if inside:
                _add(event, Frame(frame[3], frame[1], int(frame[2]) if frame[2].isdecimal() else None))
            return True
        over = inside and bool(event.event.frames)
        if over or "Traceback" in body or body.startswith("Extension modules"):
            self._fatal = None
        return False


def _add(event: OpenEvent, frame: Frame) -> None:
    if len(event.event.frames) < _MOST_FRAMES:
        event.amend(frames=(*event.event.frames, frame))
