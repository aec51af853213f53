"""Lines that are no end of a program: its logger goes on after an error, what failed is tried again, it only warns."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from traceops.core.text import by_shape
from traceops.hangs.readers.steps import sightings
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("loggers")

_SEARCHED = 200
_LOGGERS_LEVEL = re.compile(r"(?:^|(?<=[\s|(\[:-]))(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)(?=[:|\s\]]|$)")
_SEVERE_LEVELS = ("ERROR", "FATAL", "CRITICAL")
_AFTER = 12  # characters behind the level that belong to a logger's form, where nothing stands before it
_TIME = re.compile(r"\b(\d\d):(\d\d):(\d\d)\b")
# Dates and times of day. Other digits are of a rank, a process or a host: another one goes on whatever happens here.
_MOMENT = re.compile(r"\d{1,4}(?:[-/.]\d{1,4}){1,2}|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?")
_DAY = 86_400
_ENDED_WELL = re.compile(r"\b(?i:finished|completed?|done|success\w{0,6}|saved)\b|(?i:output (?:dir|file|path))")
# A server that is up: of uvicorn, SGLang, text-generation-inference, Triton's.
_READY = re.compile(_GRAMMAR["ready"])
_FEWEST = 5  # lines that are no errors, behind the last that is one
_LATER_S = 60  # who shuts down after an error seldom takes longer
_NEAR_END = 5  # lines
_MOST_FORMS, _MOST_LINES = 256, 1 << 14


class _Form(Struct):
    """Of one logger: its last line that is an error, and what came after it."""

    time: int | None
    mild: int = 0
    later_s: int = 0
    ready: bool = False  # it says that its server is up
    done: int = 0  # the last line that says that something came to its end


class Loggers:
    """Tells loggers by what stands before a line's level, but for its time: '(EngineCore pid=7) …', '[rank3]: …'."""

    def __init__(self) -> None:
        self._forms: dict[str, _Form] = {}
        self._form_of: dict[int, str] = {}  # of a line that is an error

    def take(self, number: int, line: str) -> None:
        """A line as it stands in the log: what a launcher or torch put before it tells processes apart."""
        head = line[:_SEARCHED]
        if not self._forms and not any(map(head.__contains__, _SEVERE_LEVELS)):
            return
        if (level := _LOGGERS_LEVEL.search(head)) is None:
            return
        before = " ".join(_MOMENT.sub("0", head[: level.start()]).split())  # some fill a level with blanks: ' INFO'
        if before.strip("[( "):
            form = before
        else:
            after = head[level.end() : level.end() + _AFTER]
            form = before + "".join("0" if char.isdigit() else char for char in after)
        if level[1] in _SEVERE_LEVELS:
            if (form in self._forms or len(self._forms) < _MOST_FORMS) and len(self._form_of) < _MOST_LINES:
                self._forms[form] = _Form(_seconds(head))
                self._form_of[number] = form
        elif (told := self._forms.get(form)) is not None:
            told.mild += 1
            if told.time is not None and (now := _seconds(head)) is not None:
                told.later_s = max(told.later_s, (now - told.time) % _DAY)
            told.ready = told.ready or _READY.search(head) is not None
            if _ENDED_WELL.search(head) is not None:
                told.done = number

    def went_on(self, number: int, last: int) -> bool:
        """Whether the logger of the error in line `number` went on for long, to an end, or until its server was up.

        last: the log's last line.
        """
        told = self._forms.get(self._form_of.get(number, ""))
        if told is None or told.ready or told.mild < _FEWEST:
            return told is not None and told.ready
        return told.later_s >= _LATER_S or (told.done > 0 and last - told.done < _NEAR_END)


def _seconds(head: str) -> int | None:
    """The time of day."""
    found = _TIME.search(head)
    return None if found is None else 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])


# 'Connection refused, retrying (1/34)', 'out of memory, will retry with batch size 16'; not 'after retrying 5 times'.
_AGAIN = re.compile(_GRAMMAR["again"], re.IGNORECASE)
_MOST_RETRIED = 16
_WENT_ON = 50  # lines of other things: it was tried again with success, or what came of it is told by other lines
# fairseq's 'WARNING: ran out of memory with exception: …', behind a time or a bar: a batch was left out.
_WARNING = re.compile(r"[\s|\d:.,T\[-]{0,40}WARN(?:ING)?\b[\s|\]:]")


@by_shape
def tries_again(body: str) -> bool:
    """Whether a line says of what failed that it is tried again: by itself it ended nothing."""
    return _AGAIN.search(body) is not None


class Retried:
    """The last few lines on what failed and is tried again, behind which nothing says that it went well."""

    def __init__(self) -> None:
        self._found: deque[tuple[int, int | None, str]] = deque(maxlen=_MOST_RETRIED)

    def take(self, number: int, rank: int | None, body: str) -> None:
        self._found.append((number, rank, body))

    def look_for_step(self, body: str) -> None:
        """A step was made: what was tried again before went well."""
        if self._found and any(sightings(body.encode(errors="replace"))):
            self._found.clear()

    def found(self, last: int) -> Iterable[tuple[int, int | None, str]]:
        """Line number, who says it, text. last: the last line of the log."""
        return [one for one in self._found if last - one[0] <= _WENT_ON]


def only_warned(body: str) -> bool:
    """Whether a line calls itself a warning: its program went on."""
    return _WARNING.match(body) is not None
