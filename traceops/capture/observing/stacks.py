"""Where the host of a rank is: stacks of its main thread, looked at when a look is due.

The compiled `Looks` (native/looks.c) has the thread look that holds the interpreter's lock, between two instructions. A
thread that waits for the lock sees the main thread only where it gives the lock up: functions of some ms that hold it
were counted as what follows them. If no thread holds the lock, the waiting thread gets it and looks by itself.
"""

from __future__ import annotations

import linecache
import opcode
import os
import re
import sys
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol

from traceops.capture.short_way.ways import LongWay
from traceops.capture.threads import all_frames, our_threads, with_callers
from traceops.core.redaction import redact_text
from traceops.core.text import is_compiled_code

# When it was made (`time.perf_counter_ns`), when the step began that went on and how many had ended (`LongWay.begun_ns`
# and `count`), the main thread's frames with their instructions, innermost first, the thread that looked, and its
# frames where it is another.
Frames = list[tuple[CodeType, int]]
Look = tuple[int, int, int, Frames, int, Frames]


class Looks(Protocol):
    """Waits for the next look."""

    def wait(self, seconds: float, look: bool, /) -> bool:
        """Wait so long, and then, with `look`, until somebody has looked, or we can. True where it was ended."""
        ...

    def take(self) -> Look | None:
        """The look that the latest `wait` brought."""
        ...

    def end(self) -> None:
        """Have `wait` return, now and from now on."""
        ...


class NoLooks:
    """The same where nothing is compiled: whoever waits has to look by itself."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def wait(self, seconds: float, look: bool, /) -> bool:
        """See `Looks`."""
        return self._ended.wait(seconds)

    def take(self) -> Look | None:
        """None."""
        return None

    def end(self) -> None:
        """See `Looks`."""
        self._ended.set()


def looks(way: LongWay) -> Looks:
    """The compiled one where it could be built, and where this is the main thread: it looks at no other."""
    is_main = threading.get_ident() == threading.main_thread().ident
    if is_main and getattr(sys, "_is_gil_enabled", lambda: True)():
        try:
            from traceops.capture.observing import _looks as native
        except ImportError:
            return NoLooks()
        made: Looks = native.Looks(way)
        return made
    return NoLooks()


_WITH = re.compile(r"(?:async\s+)?with\b")
_WITHOUT = re.compile(r"\b(?:no_grad|inference_mode)\s*\(|\bset_grad_enabled\s*\(\s*False\b")
_AGAIN = re.compile(
    r"\benable_grad\s*\(|\bset_grad_enabled\s*\(\s*True\b|\binference_mode\s*\(\s*(?:mode\s*=\s*)?False\b"
)
_OTHER_SCOPE = re.compile(r"(?:async\s+)?def\b|class\b")
_MOST_LINES = 2_000


def without_gradients(lines: Sequence[str], line: int) -> bool:
    """Of line number `line`, from 1 on. A block in a function that calls this one is none of its own."""
    if not 0 < line <= len(lines):
        return False
    inner = _indent(lines[line - 1])
    for text in reversed(lines[max(line - 1 - _MOST_LINES, 0) : line - 1]):
        said, indent = text.strip(), _indent(text)
        if not said or said.startswith("#") or indent >= inner:
            continue
        inner = indent
        if _WITH.match(said) and _AGAIN.search(said):
            return False
        if _WITH.match(said) and _WITHOUT.search(said):
            return True
        if not inner or _OTHER_SCOPE.match(said):
            return False
    return False


def _indent(text: str) -> int:
    expanded = text.expandtabs(8)
    return len(expanded) - len(expanded.lstrip())


_MOST_FRAMES = 100
_MOST_STACKS = 20_000
_MOST_TEXT = 160
_CAPTURE = f"{Path(__file__).parents[1]}{os.sep}"  # our own wrappers are none of the script's, however installed
_RESUME = opcode.opmap.get("RESUME", -1)
_ENGINE = "_engine_run_backward"  # autograd's own threads then run hooks and functions written in Python


class Stacks:
    """Samples of one thread's stack; `lines` are those of ``observed.jsonl`` that nobody has written yet."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._codes: dict[int, CodeType] = {}  # kept, so that no other code gets its id
        self._places: dict[tuple[int, int], int] = {}  # code and instruction -> frame
        # Code and instruction: whether nothing of it has run there.
        self._begun: dict[tuple[int, int], bool] = {}
        self._frames: dict[tuple[int, int], int] = {}  # code and line -> frame
        self._stacks: dict[bytes, int] = {}
        self._samples: list[int] = []
        self._since_begin: list[int] = []
        self._new: list[list[Any]] = []
        self._told = 0  # frames
        self.count = 0

    def sample(self, step: int, weight_us: int, look: Look | None = None, since_begin_us: int | None = None) -> None:
        """Count one look, which stands for so many µs of step number `step`; None: look now. since_begin_us: from the
        step's begin to the look; given with each look of a thread, or with none."""
        numbers = self._look() if look is None else self._looked(look)
        if numbers and self._count(numbers, step, weight_us) and since_begin_us is not None:
            self._since_begin.append(max(since_begin_us, 0))

    def _looked(self, look: Look) -> list[int]:
        _, _, _, frames, thread, beside = look
        if beside and frames[0][0].co_name == _ENGINE and self._is_engines(thread):
            return self._numbers(beside) + self._numbers(frames)
        begun = len(frames) > 1 and self._has_just_begun(*frames[0])
        return self._numbers(frames[1:] if begun else frames)

    def _has_just_begun(self, code: CodeType, instruction: int) -> bool:
        """See `is_begin`: then the time before is its caller's, or the collector's that told it."""
        where = (id(code), instruction)
        if (begun := self._begun.get(where)) is None:
            self._codes[id(code)] = code
            begun = self._begun[where] = is_begin(code, instruction)
        return begun

    def _numbers(self, frames: Frames) -> list[int]:
        numbers = []
        for code, instruction in frames:
            place = (id(code), instruction)
            number = self._places.get(place)
            numbers.append(self._place(code, place, _line(code, instruction)) if number is None else number)
        return numbers

    def _look(self) -> list[int]:
        """Where the thread is now; nothing where it is gone."""
        frames = all_frames()
        if (frame := frames.get(self._thread)) is None:
            return []
        numbers = self._walk(frame)
        if frame.f_code.co_name == _ENGINE:
            # Autograd's own thread runs the hooks: its frames are the innermost.
            numbers = next((self._walk(frames[ident]) for ident in frames if self._is_engines(ident)), []) + numbers
        # Before anything else: what a frame holds would live as long as we look.
        frame = None
        frames.clear()
        return numbers

    def _count(self, numbers: list[int], step: int, weight_us: int) -> bool:
        numbers.reverse()
        key = array("I", numbers).tobytes()
        if (stack := self._stacks.get(key)) is None:
            if len(self._stacks) >= _MOST_STACKS:
                return False
            stack = self._stacks[key] = len(self._stacks)
            self._new.append(["s", numbers])
        self._samples += (step, stack, weight_us)
        self.count += 1
        return True

    def _walk(self, innermost: FrameType) -> list[int]:
        numbers: list[int] = []
        places = self._places
        frames = with_callers(innermost, _MOST_FRAMES)
        if len(frames) > 1 and self._has_just_begun(innermost.f_code, innermost.f_lasti):
            del frames[0]
        for frame in frames:
            code = frame.f_code
            place = (id(code), frame.f_lasti)
            number = places.get(place)
            numbers.append(self._place(code, place, frame.f_lineno) if number is None else number)
        return numbers

    def _is_engines(self, ident: int) -> bool:
        """Whether neither Python nor we have started this thread."""
        if ident == self._thread or ident in getattr(threading, "_active", {}):
            return False
        return all(ident != one.ident for one in our_threads())

    def _place(self, code: CodeType, place: tuple[int, int], line: int | None) -> int:
        self._codes[id(code)] = code
        where = (id(code), line or 0)
        if (number := self._frames.get(where)) is None:
            number = self._frames[where] = len(self._frames)
            name = getattr(code, "co_qualname", code.co_name)
            self._new.append(["f", name, code.co_filename, code.co_firstlineno, line or 0, None])
        self._places[place] = number
        return number

    def take(self) -> list[list[Any]]:
        """The lines since it was asked last."""
        made, self._new = self._new, []
        samples, self._samples = self._samples, []
        since_begin, self._since_begin = self._since_begin, []
        without = []
        for line in made:
            if line[0] == "f":
                line[5] = _text(line[2], line[4])
                if line[5] is not None and without_gradients(linecache.getlines(line[2]), line[4]):
                    without.append(self._told)
                self._told += 1
        return [*made, *([["n", without]] if without else []), *([["t", samples, since_begin]] if samples else [])]


def is_begin(code: CodeType, instruction: int) -> bool:
    """Whether a function is only called there. Python lets others run first there, and then at the next call or loop.
    So a look that was due in C, as in the collector that then calls who wants to know, finds the function behind it."""
    if not 0 <= instruction < len(code.co_code) or code.co_code[instruction] != _RESUME:
        return False
    return code.co_code[instruction + 1] == 0  # others are behind a `yield` or an `await`


def _line(code: CodeType, instruction: int) -> int | None:
    """The line of an instruction, as `frame.f_lineno` has it."""
    for begin, end, line in code.co_lines():
        if begin <= instruction < end:
            return line
    return None


def _text(file: str, line: int) -> str | None:
    """The line of a script's own file, as it is now on disk; None for installed packages and compiled code."""
    if not line or file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return None
    if is_compiled_code(file) or file.startswith(_CAPTURE):
        return None
    if file.startswith((sys.prefix + "/lib", sys.base_prefix + "/lib")):
        return None
    return redact_text(linecache.getline(file, line).strip())[:_MOST_TEXT] or None
