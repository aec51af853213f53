"""What a run's text log tells of a hang: timeouts, mismatches, errors and the processes that ended."""

from __future__ import annotations

import re
from collections import defaultdict

from traceops.hangs.crash_table import crash_kind
from traceops.hangs.evidence import Frame, LogEvent, LogKind
from traceops.hangs.readers.attempts import FATAL, Attempts
from traceops.hangs.readers.log_events import EventList, OpenEvent, records_from_log, says_why, shortened, with_more
from traceops.hangs.readers.messages import (
    GROUP,
    IN_PASSING,
    NEEDLES,
    OF_RAY,
    Speakers,
    ToldFields,
    rank_in_message,
    timed_out_rank,
    told_by,
)
from traceops.hangs.readers.prefixes import label_of
from traceops.hangs.readers.tracebacks import (
    NOT_THE_CAUSE,
    SURVIVED,
    LineFrames,
    Raised,
    Tracebacks,
    bare_exception,
    is_frame,
    operation_in,
)
from traceops.hangs.readers.trouble import Unexplained
from traceops.hangs.readers.whole_lines import LogicalLines, relevant_lines

__all__ = ["read_log", "read_starts", "records_from_log"]

Speaker = tuple[int | None, str]  # the rank, and the label of the process
Starts = tuple[tuple[LogEvent, ...], ...]  # by start

_STACK_OF_FAILED = "Stack trace of the failed collective:"
_MOST_LABELS = 1 << 10
_MOST_SPEAKERS = 1 << 14
# Threads that end a process repeat, in other words, what was said before.
_TERMINATE = "terminate called after throwing an instance of "
_WHAT = "what():"
_ECHOES = ("watchdog thread terminated with exception", "what():")
_MOST_BARE = 16
_PRINTED_AGAIN = 500  # lines in which the same exception is the same failure
_SHOWN_BEHIND = 2  # lines behind a message that ends in a colon: what is raised there is what it means
# A heading of Markdown, as in an issue that was pasted whole: its title repeats what the text has.
_HEADING = re.compile(r"^#{1,6} (?=\S)")
_MOST_HEADINGS = 8
_WENT_ON = 50  # lines after an exception without a traceback: the program went on


def read_log(path: str, rank: int | None = None) -> tuple[LogEvent, ...]:
    """The events of a log of any size, in its order; of each kind and rank the first and last hundred.

    rank: whose the lines are that name none. Raises InputError where the file cannot be read.
    """
    return read_starts(path, rank)[0]


def read_starts(path: str, rank: int | None = None) -> tuple[tuple[LogEvent, ...], Starts]:
    """The events of the last start that the log tells of, as `read_log`, and by start those of the ones before it."""
    speakers = Speakers(rank)
    events = _read(path, speakers)
    return _read(path, speakers) if speakers.misled else events


def _read(path: str, speakers: Speakers) -> tuple[tuple[LogEvent, ...], Starts]:
    reader = _LogReader(path, speakers)
    for number, line, may_tell in relevant_lines(path, NEEDLES, lambda: reader.busy):
        reader.read(number, line, may_tell)
    return reader.finish()


def _ends_nothing(text: str) -> bool:
    """Whether it is Ray's word on a process that ended, or the driver's on what a program survives."""
    return any(words in text for words in OF_RAY) or ("Xid (" in text and crash_kind(text, raised=False) is None)


def _is_its_object(before: LogEvent, ended: int, raised: Raised) -> bool:
    """Whether a message ends in a colon, behind which the program shows another's traceback."""
    is_behind = 0 < raised.line - ended <= _SHOWN_BEHIND
    return is_behind and not raised.link and before.kind == "error" and before.text.endswith(":")


class _LogReader:
    """Goes through the lines; what takes several lines is kept apart by speaker."""

    def __init__(self, path: str, speakers: Speakers) -> None:
        self._speakers = speakers
        self._lines: dict[str, LogicalLines] = {"": LogicalLines()}  # by label of the process
        self._label = ""  # of the line that is read
        self._events = EventList(path)
        self._attempts = Attempts()
        self._frames = LineFrames()
        self._tracebacks: defaultdict[Speaker, Tracebacks] = defaultdict(Tracebacks)
        self._open: set[Speaker] = set()  # in the middle of a traceback
        self._said = False  # a line that is not indented, and not of a traceback, has come
        self._at_head: int | None = None  # the line of the traceback that the log begins in the middle of
        self._raised: dict[int | None, OpenEvent] = {}
        self._ended: dict[int | None, int] = {}  # the last line of the last traceback
        self._bare: dict[int | None, tuple[int, str]] = {}  # exceptions without a traceback
        self._headings: list[tuple[int, int | None, str]] = []
        self._unexplained = Unexplained()
        self._last = 0  # line
        self._thrown: str | None = None  # the C++ exception that ends a process, whose message comes

    @property
    def busy(self) -> bool:
        """Whether the next lines matter, whatever they hold."""
        if any(lines.is_open for lines in self._lines.values()) or self._thrown is not None or self._attempts.is_open:
            return True
        return bool(self._open) or self._frames.is_open

    def read(self, number: int, line: str, may_tell: bool) -> None:
        """Take the next line. may_tell: it may hold one of `NEEDLES`; without, no rule knows it."""
        self._label = label_of(line)
        if self._label not in self._lines and len(self._lines) < _MOST_LABELS:
            self._lines[self._label] = LogicalLines()
        lines = self._lines.get(self._label, self._lines[""])
        joins = lines.is_open
        if self._events.says_nothing:
            self._unexplained.note(number, line)
        for its_number, whole in lines.take(number, line):
            self._take(its_number, whole, may_tell or joins)

    def _take(self, number: int, line: str, may_tell: bool = True) -> None:
        self._last = number
        rank, body = self._speakers.split(line)
        if self._frames.take(rank, body) or self._attempts.take(number, body):
            return
        if self._traceback(number, rank, body):
            return
        if body.startswith("#") and (heading := _HEADING.match(body)) is not None:
            if may_tell and len(self._headings) < _MOST_HEADINGS:
                self._headings.append((number, rank, body[heading.end() :]))
            return
        self._said = self._said or bool(body.strip() and not body[0].isspace())
        self._attempts.look_for_restart(number, body)
        self._events.since = self._attempts.begun
        if FATAL in body:
            self._attempts.failed()
            text = body[body.index(FATAL) :]
            self._frames.of_fatal(rank, self._events.add("error", rank, number, text))
            return
        if _TERMINATE in body:
            self._thrown = body.partition(_TERMINATE)[2].strip(" '")
        elif self._thrown is not None:
            thrown, self._thrown = self._thrown, None
            if _WHAT in body and told_by(body) is None:
                text = f"{thrown}: {body.partition(_WHAT)[2].strip()}"
                self._events.add("error", rank, number, text)
                return
        if _STACK_OF_FAILED in body:
            open_event = self._events.recent("timeout", rank, lambda event: not event.frames)
            self._frames.of_failed(rank, open_event)
            return
        self._told(number, rank, body, may_tell=may_tell or IN_PASSING in body)

    def _told(
        self, number: int, rank: int | None, body: str, frames: tuple[Frame, ...] = (), may_tell: bool = True
    ) -> OpenEvent | None:
        """Add what one line tells, if anything."""
        told = told_by(body) if may_tell else None
        if may_tell and (late := timed_out_rank(body)) is not None:
            self._timed_out(late, number, body)
        if told is not None and not frames and self._unexplained.survived(told.kind, number, rank, body):
            return None
        if told is None:
            self._unexplained.look_for_step(body)
        if told is None and self._events.says_nothing:
            self._unexplained.take(number, rank, body)
        bare = bare_exception(body) if told is None else None
        if bare is not None and not bare.startswith(NOT_THE_CAUSE):
            before = self._bare.get(rank)
            if len(self._bare) < _MOST_BARE if before is None else number - before[0] > _WENT_ON:
                self._bare[rank] = (number, bare)
            return None
        group = GROUP.search(body) if "[PG " in body else None
        if group is not None and told is not None and told.kind != "status":
            self._name_group(rank, group, None)
        if told is None:
            return None
        if rank is None:
            rank = rank_in_message(body, group)
        fields: ToldFields = {**told.fields}
        if group is not None:
            fields["group"], fields["group_description"] = group["group"], group["description"] or None
        if frames:
            fields["frames"] = frames
            if "op" not in fields and told.kind in ("timeout", "connection"):
                fields["op"] = operation_in(frames)
        if any(words in body for words in _ECHOES) and self._is_echo(told.kind, rank, fields):
            return None
        if told.kind == "status" and group is not None:
            self._name_group(rank, group, fields["completed"])
        if told.kind == "timeout" and (known := self._same_timeout(rank, fields)) is not None:
            known.amend(**{name: value for name, value in fields.items() if value is not None})
            return known
        if told.kind in ("mismatch", "missing"):
            same = self._events.recent(told.kind, rank, lambda event: event.accused == fields.get("accused", ()))
            if same is not None:  # logged first, raised then
                if frames and not same.event.frames:
                    same.amend(frames=frames)
                return same
        open_event = self._events.add(told.kind, rank, number, told.text, **fields)
        if told.pid is not None:
            self._attempts.killed(told.pid, open_event)
        return open_event

    def _timed_out(self, rank: int, number: int, body: str) -> None:
        """A rank whose collective timed out, as another says that only dumps: once, where it says nothing itself."""
        if self._events.recent("timeout", rank, lambda event: True) is None:
            self._events.add("timeout", rank, number, body)

    def _name_group(self, rank: int | None, group: re.Match[str], completed: int | None) -> None:
        """The timeout itself names no group; the rank's next lines do."""

        def nameless(event: LogEvent) -> bool:
            late = completed is None or event.sequence is None or event.sequence > completed
            return event.group is None and late

        open_event = self._events.recent("timeout", rank, nameless)
        if open_event is not None:
            open_event.amend(group=group["group"], group_description=group["description"] or None)

    def _is_echo(self, kind: LogKind, rank: int | None, fields: ToldFields) -> bool:
        def same(event: LogEvent) -> bool:
            return all(getattr(event, name) == fields.get(name) for name in ("op", "sequence"))

        if rank is not None:
            return self._events.recent(kind, rank, same) is not None
        return self._events.any_rank(kind, same)

    def _same_timeout(self, rank: int | None, fields: ToldFields) -> OpenEvent | None:
        """The same wait told once more: raised in Python after the watchdog logged it."""
        if fields.get("sequence") is None:
            return None
        names = ("op", "sequence", "elements_in", "elements_out")

        def same(event: LogEvent) -> bool:
            alike = all(getattr(event, name) == fields.get(name) for name in names)
            return alike and "group" in fields and event.group in (None, fields["group"])

        return self._events.recent("timeout", rank, same)

    def _traceback(self, number: int, rank: int | None, body: str) -> bool:
        """Whether the line is one of a traceback."""
        reported = self._attempts.reported_rank
        if rank is None and reported is not None and ("traceback :" in body or (reported, self._label) in self._open):
            rank = reported  # torchrun's report shows the error file of this rank
        speaker = rank, self._label
        if speaker not in self._tracebacks:
            begins = "Traceback" in body or body.startswith(SURVIVED) or is_frame(body)
            if not begins or len(self._tracebacks) >= _MOST_SPEAKERS:
                return False
        tracebacks = self._tracebacks[speaker]
        was_open = tracebacks.is_open
        raised = tracebacks.take(number, body)
        if tracebacks.is_open:
            self._open.add(speaker)
            if not was_open and not self._said:
                self._at_head = number
        else:
            self._open.discard(speaker)
        if raised is not None:
            self._add_raised(rank, raised)
        return (was_open and not tracebacks.dropped) or tracebacks.is_open

    def _add_raised(self, rank: int | None, raised: Raised) -> None:
        if not raised.survived:
            self._attempts.failed()
        if raised.survived or raised.text.startswith(NOT_THE_CAUSE):
            self._unexplained.failures.raised(raised.line, rank, raised.text)
            if raised.warned:
                self._unexplained.failures.warned(raised.end, rank, raised.text)
            return
        before, ended = self._raised.get(rank), self._ended.get(rank, 0)
        if rank in self._ended or len(self._ended) < _MOST_SPEAKERS:
            self._ended[rank] = raised.end
        if before is not None and before.event.line <= self._attempts.begun:
            before = None
        if before is not None and self._is_again(before.event, raised):
            return
        if before is not None and (raised.link == "origin" or _is_its_object(before.event, ended, raised)):
            text = with_more(before.event.text, raised.text)
            before.amend(text=text, frames=raised.frames + before.event.frames)
            return
        if raised.link == "cause" and before is not None and told_by(raised.text) is not None:
            if before.event.kind == "error" and crash_kind(before.event.text) == "exception":
                self._events.drop(before)  # what replaced it says more
            else:  # it was raised below, and says where that was called
                before.amend(frames=before.event.frames + raised.frames)
        open_event = self._told(raised.line, rank, raised.text, raised.frames)
        if open_event is None:
            text = raised.text
            if raised.link == "cause" and before is not None and before.event.kind == "error":
                self._events.drop(before)
                text = f"{text} (after {before.event.text})"
            speaker = rank if rank is not None else rank_in_message(text, None)
            open_event = self._events.add("error", speaker, raised.line, text, frames=raised.frames)
        if len(self._raised) < _MOST_SPEAKERS:
            self._raised[rank] = open_event

    @staticmethod
    def _is_again(before: LogEvent, raised: Raised) -> bool:
        """Whether it was printed, and is in an error file too."""
        return before.text == shortened(raised.text) and raised.line - before.line <= _PRINTED_AGAIN

    def finish(self) -> tuple[tuple[LogEvent, ...], Starts]:
        for label, lines in self._lines.items():
            self._label = label
            for number, line in lines.flush():
                self._take(number, line)
        self._attempts.add_to(self._events)
        for number, rank, heading in self._headings if self._events.says_nothing else ():
            self._told(number, rank, heading)
        events = self._events.in_order()
        if all(not says_why(event) or _ends_nothing(event.text) for event in events):
            # a paste of the last line only, with Ray's word on it, or with the launcher's on the end of its process
            ended = next((event.line for event in events if event.kind == "exit"), None)
            for rank, (number, text) in self._bare.items():
                late = (self._last if ended is None else ended) - number
                if ended is not None and not 0 < late <= _WENT_ON:
                    continue
                kind: LogKind = "error" if late <= _WENT_ON else "trouble"
                speaker = rank if rank is not None else rank_in_message(text, None)
                self._events.add(kind, speaker, number, text)
        self._unexplained.add_to(
            self._events,
            [(rank, tracebacks) for (rank, _), tracebacks in self._tracebacks.items()],
            self._at_head,
            self._last,
            of_several=self._speakers.saw_ranks,
        )
        events = self._events.in_order()
        latest = self._attempts.latest(events)
        return latest, self._attempts.earlier(events, latest)
