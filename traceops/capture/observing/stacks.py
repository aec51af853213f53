"""Where the host of a rank is: stacks of its main thread, looked at when a look is due."""

from __future__ import annotations

import linecache
import opcode
import sys
import threading
from array import array
from types import CodeType, FrameType
from typing import Any

from traceops.capture.all_frames import all_frames, with_callers
from traceops.capture.observing.grad_lines import without_gradients
from traceops.capture.observing.looks import Frames, Look
from traceops.capture.threads import our_threads
from traceops.core.code_places import is_compiled_code
from traceops.core.redaction import redact_text

_MOST_FRAMES = 100
_MOST_STACKS = 20_000
_MOST_TEXT = 160
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
        self._new: list[list[Any]] = []
        self._told = 0  # frames
        self.count = 0

    def sample(self, step: int, weight_us: int, look: Look | None = None) -> None:
        """Count one look, which stands for so many µs of step number `step`; None: look now."""
        numbers = self._look() if look is None else self._looked(look)
        if numbers:
            self._count(numbers, step, weight_us)

    def _looked(self, look: Look) -> list[int]:
        _, _, _, frames, thread, beside = look
        if beside and frames[0][0].co_name == _ENGINE and self._is_engines(thread):
            return self._numbers(beside) + self._numbers(frames)
        begun = len(frames) > 1 and self._has_just_begun(*frames[0])
        return self._numbers(frames[1:] if begun else frames)

    def _has_just_begun(self, code: CodeType, instruction: int) -> bool:
        """See `is_begin`: then the time before is its caller's, or the collector's that told it."""
        where = (id(code), instruction)
        begun = self._begun.get(where)
        if begun is None:
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
        frame = frames.get(self._thread)
        if frame is None:
            return []
        numbers = self._walk(frame)
        if frame.f_code.co_name == _ENGINE:
            numbers = self._walk_engine(frames) + numbers
        # Before anything else: what a frame holds would live as long as we look.
        frame = None
        frames.clear()
        return numbers

    def _count(self, numbers: list[int], step: int, weight_us: int) -> None:
        numbers.reverse()
        key = array("I", numbers).tobytes()
        stack = self._stacks.get(key)
        if stack is None:
            if len(self._stacks) >= _MOST_STACKS:
                return
            stack = self._stacks[key] = len(self._stacks)
            self._new.append(["s", numbers])
        self._samples += (step, stack, weight_us)
        self.count += 1

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

    def _walk_engine(self, frames: dict[int, FrameType]) -> list[int]:
        """The frames of a thread that autograd itself started."""
        for ident in frames:
            if self._is_engines(ident):
                return self._walk(frames[ident])
        return []

    def _is_engines(self, ident: int) -> bool:
        """Whether neither Python nor we have started this thread."""
        if ident == self._thread or ident in getattr(threading, "_active", {}):
            return False
        return all(ident != one.ident for one in our_threads())

    def _place(self, code: CodeType, place: tuple[int, int], line: int | None) -> int:
        self._codes[id(code)] = code
        where = (id(code), line or 0)
        number = self._frames.get(where)
        if number is None:
            number = self._frames[where] = len(self._frames)
            name = getattr(code, "co_qualname", code.co_name)
            self._new.append(["f", name, code.co_filename, code.co_firstlineno, line or 0, None])
        self._places[place] = number
        return number

    def take(self) -> list[list[Any]]:
        """The lines since it was asked last."""
        made, self._new = self._new, []
        samples, self._samples = self._samples, []
        without = []
        for line in made:
            if line[0] == "f":
                line[5] = _text(line[2], line[4])
                if line[5] is not None and without_gradients(linecache.getlines(line[2]), line[4]):
                    without.append(self._told)
                self._told += 1
        return [*made, *([["n", without]] if without else []), *([["t", samples]] if samples else [])]


def is_begin(code: CodeType, instruction: int) -> bool:
    """Whether a function is only called there. Python lets others run first there, and then at the next call or loop.

    So a look that was due in C, as in the collector that then calls who wants to know, finds the function behind it.
    """
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
    if is_compiled_code(file):
        return None
    if file.startswith((sys.prefix + "/lib", sys.base_prefix + "/lib")):
        return None
    return redact_text(linecache.getline(file, line).strip())[:_MOST_TEXT] or None
