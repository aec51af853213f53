"""What comes after a failure: steps, answers or the end of a training, and how a log ends in which nothing failed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.text import first_words
from traceops.hangs.evidence import Frame, LogEnd, LogEvent, LogKind
from traceops.hangs.readers.prefixes import without_prefixes
from traceops.hangs.readers.steps import Moment, Scale, Sighting, moment_of, sightings
from traceops.hangs.readers.tracebacks import Tracebacks
from traceops.hangs.readers.whole_lines import last_blocks
from traceops.traces.text_index import Words, blocks_with, indexed
from traceops.traces.text_lines import lines, text_lines
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("went_on")
# Of Hugging Face's Trainer, of Lightning, and of a logger.
TRAINED = (
    rb"'train_runtime': |`Trainer\.fit` stopped: `max_"
    rb"|\bINFO\b[^\n\r]{0,80}[Tt]raining (?:is )?(?:completed?|finished|done)\b"
)
_TRAINED = re.compile(TRAINED)
_WORDS = Words(
    b"'train_runtime': ", b"`Trainer.fit` stopped: `max_",
    *(b"raining %s%s" % (verb, end) for verb in (b"", b"is ") for end in (b"complete", b"finished", b"done")),
)  # fmt: skip
_OWN: tuple[LogKind, ...] = ("error", "memory", "cuda")


def with_ends(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, those whose failure comes behind the end of a training that is marked `after_end`. Raises
    InputError where the file cannot be read."""
    lines = [event.line for event in events if event.kind in _OWN]
    if not lines or (end := _end(path, min(lines))) is None:
        return events
    return tuple(
        replace(event, after_end=True) if event.kind in _OWN and event.line > end else event for event in events
    )


def _end(path: str, before: int) -> int | None:
    """The line in which a training ends, before another one; None where steps follow, or without one."""
    end: int | None = None
    for piece in indexed(path):
        if piece.number >= before:
            break
        if end is None and not piece.holds(_WORDS):
            continue
        number, block = piece.number, piece.data()
        told = [match.start() for match in _TRAINED.finditer(block)]
        steps = max((sight.place for sight in sightings(block)), default=-1)
        if told and told[-1] > block.rfind(b"\n", 0, max(steps, 0)):
            at = number + block.count(b"\n", 0, told[-1])
            end = at if at < before else None
        elif steps >= 0 and number + block.count(b"\n", 0, steps) < before:
            end = None
    return end


# Failures in a log after which it shows steps: the program went on, or was started again.

# What processes had printed into their buffers before they ended, a log may show after the traceback. Python's buffer
# holds 8 kB, and a job may have several.
_BUFFER = 1 << 14
_BUFFERS = 1 << 16
ADVANCE = 10  # steps: the other ranks may make one or two before they wait for the one that failed
_SIGHTS = 3  # of steps at different seconds
_COUNTED: tuple[Scale, ...] = ("steps", "bars", "batches")  # one by one
_FURTHEST = 2  # counts of a block that matter to what came long before
_WENT_ON = 50  # lines after an exception that was outlived before: it was outlived again
# The program's own end, as Hugging Face's Trainer, Lightning, a logger, an editor and Slurm's seff tell of it;
# torchrun, DeepSpeed's launcher, W&B and Ray; pytest and unittest, where all tests passed.
_COLOUR = rb"[\x1b\[\d;m]{0,40}"
_COMPLETED = re.compile(
    TRAINED + rb"|^Process finished with exit code 0\b|^State: COMPLETED \(exit code 0\)"
    rb"|\bworker group successfully finished\b|:main\] Process \d{1,10} exits successfully\b"
    rb"|\bWaiting for W&B process to finish\.\.\. " + _COLOUR + rb"\(success\)"
    rb"|\bJob '[\w-]{1,100}' succeeded\b"
    rb"|== " + _COLOUR + rb"\d{1,6} (?:passed|skipped|deselected|xfailed|xpassed|warnings?)\b"
    rb"(?:(?! failed| error)[^\n\r=]){0,160} in \d"
    rb"|\bApplication startup complete\."  # a server was started once more
    rb"|\bRan \d{1,6} tests? in [\d.]{1,12}s\r?\n\r?\nOK\b",
    re.MULTILINE,
)  # fmt: skip
_COMPLETED_WORDS = (
    b"'train_runtime'", b"`Trainer.fit`", b"raining", b"exit code 0", b"successfully", b"(success)", b"' succeeded",
    b" passed", b"\nOK", b" startup complete",
)  # fmt: skip
_OF_SERVICE = re.compile(rb"([\w.-]{1,100}?) {1,40}\| ")  # docker compose says whose line it is
_SEVERE = re.compile(rb"\b(?:ERROR|WARNING|CRITICAL)\b|(?:^|\[)[EW]\d{4} \d\d:")
_HEAD = 200  # bytes of a line in which its time is looked for


def without_outlived(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, those that were not its end as 'outlived'. Raises InputError where it cannot be read."""
    lines = sorted({event.line for event in events if event.kind not in ("status", "trouble", "outlived")})
    if not lines:
        return events
    windows, last = _read(path, lines)
    outlived = {window.line for window in windows if _is_outlived(window, events)}
    known = {_raised_at(event) for event in events if event.line in outlived} - {None}
    outlived |= {event.line for event in events if _raised_at(event) in known and last - event.line > _WENT_ON}
    behind = {window.line: window.shown for window in windows if window.line not in outlived}
    return tuple(
        as_outlived(event)
        if event.line in outlived and event.kind not in ("status", "trouble")
        else replace(event, steps_behind=behind.get(event.line))
        for event in events
        if event.kind != "status" or event.line > max(outlived, default=0)
    )


def as_outlived(event: LogEvent) -> LogEvent:
    """The event as one that was not the end."""
    return replace(event, kind="outlived", was=event.was or event.kind)


def _is_outlived(window: _Window, events: Sequence[LogEvent]) -> bool:
    """Whether steps were made after the failure, rather than by ranks that a launcher ended because of it."""
    if window.is_far:
        return True
    if (at := window.went_on_at) is None:
        return False
    ends = [
        event.line
        for event in events
        if event.kind == "exit" and event.line > at and (event.exit_code is None or event.exit_code > 0)
    ]
    return not ends or any(event.kind in _OWN and at < event.line < max(ends) for event in events)


def _raised_at(event: LogEvent) -> tuple[str, str, int | None] | None:
    """Which exception, and the line of code that raised it; None of what has no traceback."""
    if event.kind == "exit" or not event.frames:
        return None
    return event.text.partition(":")[0], event.frames[0].file, event.frames[0].line


def _read(path: str, lines: Sequence[int]) -> tuple[list[_Window], int]:
    """Each failure that lines follow, with the steps behind it, and the last line."""
    windows: list[_Window] = []
    wanted, last, seen = 0, 0, False
    for piece in indexed(path):
        number, begin, last = piece.number, piece.begin, piece.behind
        wants = wanted < len(lines) and lines[wanted] < last
        open_windows = [window for window in windows if not window.is_far]
        if not wants and not open_windows and begin >= _BUFFER:
            continue
        block = piece.data()
        found = list(sightings(block)) if wants or open_windows or begin < _BUFFER else []
        at, line = 0, number
        while wanted < len(lines) and lines[wanted] < last:
            while line < lines[wanted]:
                at, line = block.index(b"\n", at) + 1, line + 1
            # behind the progress bars, which carriage returns divide
            place = block.rfind(b"\r", at, max(block.index(b"\n", at) - 1, at)) + 1 or at
            window = _Window(lines[wanted], begin + place, _moment(block, place), service=_service(block, at))
            shown = seen or any(sight.place < place for sight in found)
            window.flushes = shown and window.offset < _BUFFER // 2
            windows.append(window)
            open_windows.append(window)
            wanted += 1
        seen = seen or bool(found)
        if open_windows:
            furthest = _furthest(found)
            ends = {service: completed_at(block, service) for service in {window.service for window in open_windows}}
            for window in open_windows:
                near = window.is_near(begin)
                for sight in found if near else furthest:
                    if window.service is not None and not sight.head.startswith(window.service + b" "):
                        continue  # another service goes on, whatever happens to this one
                    window.take(sight, begin if not near else begin + sight.place, number, block)
                if (end := ends[window.service]) is not None and begin + end > window.offset:
                    window.went_on_at = window.went_on_at or number + block.count(b"\n", 0, end)
    return windows, last


def _furthest(found: Sequence[Sighting]) -> list[Sighting]:
    kept: list[Sighting] = []
    for scale in {sight.scale for sight in found}:
        counts = {sight.number: sight for sight in found if sight.scale == scale}
        kept += [counts[count] for count in sorted(counts)[-_FURTHEST:]]
    return kept


class _Series(Struct):
    """The counts of one scale close behind a failure. first, furthest: counts; begin: where the first is. flushed: the
    first that was in no buffer. later: the first with a time behind the failure, and the seconds of those."""

    first: int
    furthest: int
    begin: int
    flushed: int | None = None
    later: int | None = None
    seconds: set[int] = field(default_factory=set)

    def advanced(self, sight: Sighting, offset: int, flushes: bool, failed: Moment | None) -> bool:
        """Whether a count shows that steps were made meanwhile: no one buffer holds so much, or it was in none."""
        count, self.furthest = sight.number, max(sight.number, self.furthest)
        if flushes or sight.flushed:
            self.flushed = count if self.flushed is None else self.flushed
            if count - self.flushed >= ADVANCE:
                return True
        moment = None if failed is None else sight.moment
        if failed is not None and moment is not None and failed[0] == moment[0] and moment[1] > failed[1]:
            self.later = count if self.later is None else self.later
            self.seconds = {*sorted(self.seconds)[: _SIGHTS - 1], moment[1]}
            if len(self.seconds) == _SIGHTS and count - self.later >= ADVANCE // 2:
                return True
        return count - self.first >= ADVANCE and offset > self.begin + _BUFFER


class _Window(Struct):
    """A failure in a line, at `offset` bytes, and the counts behind it, of each scale. flushes: the log shows steps
    before a buffer can have been full. is_far: there are two counts beyond all that buffers can hold. service: of
    docker compose. went_on_at: the line that says otherwise that the program went on."""

    line: int
    offset: int
    moment: Moment | None = None
    flushes: bool = False
    service: bytes | None = None
    is_far: bool = False
    went_on_at: int | None = None
    close: dict[Scale, _Series] = field(default_factory=dict)
    beyond: dict[Scale, int] = field(default_factory=dict)

    @property
    def shown(self) -> int | None:
        """The furthest step close behind the failure: made before it, or after; None of no more than a few."""
        told = [self.close[scale] for scale in _COUNTED if scale in self.close]
        return next((one.furthest for one in told if one.furthest - one.first >= ADVANCE), None)

    def is_near(self, begin: int) -> bool:
        """Whether what is at `begin` may still have been in a buffer."""
        return begin <= self.offset + _BUFFERS

    def take(self, sight: Sighting, offset: int, number: int, block: bytes) -> None:
        """A count at an offset; it is in the line `number` or behind that, in `block`."""
        if offset < self.offset:
            return
        scale, count = sight.scale, sight.number
        series = self.close.get(scale)
        if not self.is_near(offset):
            if series is None or count > series.furthest:
                self.is_far |= self.beyond.get(scale, count) != count
                self.beyond[scale] = count
        elif series is None:
            self.close[scale] = series = _Series(count, count, offset)
            series.advanced(sight, offset, self.flushes, self.moment)
        elif count > series.furthest:
            gone = series.advanced(sight, offset, self.flushes, self.moment)
            if gone and scale in _COUNTED:
                self.went_on_at = self.went_on_at or number + block.count(b"\n", 0, sight.place)


def completed_at(block: bytes, service: bytes | None = None) -> int | None:
    """Where the last line of a block stands that says of the program that it came to its end. service: of docker
    compose; the end of another does not count."""
    ends = []
    if any(word in block for word in _COMPLETED_WORDS):
        ends = [match.start() for match in _COMPLETED.finditer(block)]
    if service is not None:
        ends = [end for end in ends if _service(block, block.rfind(b"\n", 0, end) + 1) == service]
        if (exited_well := block.find(b"\n" + service + b" exited with code 0\n")) >= 0:
            ends.append(exited_well + 1)
    return max(ends, default=None)


def _service(block: bytes, begin: int) -> bytes | None:
    """Which service of docker compose a line is of."""
    match = _OF_SERVICE.match(block, begin)
    return None if match is None else match[1]


def _moment(block: bytes, place: int) -> Moment | None:
    """When a failure was: the time of its line, or of the logger's line before its traceback."""
    end = block.find(b"\n", place)
    if (moment := moment_of(block[place : end if end >= 0 else None][:_HEAD])) is not None:
        return moment
    before = block[max(block.rfind(b"\n", 0, max(place - 1, 0)) + 1, place - 4 * _HEAD) : place][:_HEAD]
    return moment_of(before) if _SEVERE.search(before) is not None else None


# uvicorn's and aiohttp's line on a request: 'INFO:  127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK'.
_ANSWER = re.compile(r'"POST /\S{0,200} HTTP/\d(?:\.\d)?" (\d)\d\d\b')
_OF_SERVER = Words(b'"POST /', b"startup complete.")
_STARTED = "Application startup complete."
_STARTS_SERVER = _STARTED.encode()
_ENOUGH = 10  # answers: a few may be of requests that came before the failure
_CLOSE = 10  # lines behind a traceback, in which its own request is refused
_OF_FRAME = 6  # lines of it, at most
_OF_REQUEST: tuple[LogKind, ...] = ("error", "memory", "cuda")


def without_requests(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, failures of single requests as 'outlived' with the server's logger going on. Raises
    InputError where the file cannot be read."""
    close = {
        event.line: event.line + _OF_FRAME * len(event.frames) + _CLOSE for event in events if event.kind in _OF_REQUEST
    }
    answered = _answered(path, close) if close else set()
    return tuple(
        replace(event, kind="outlived", was="trouble")
        if event.line in answered and event.kind in _OF_REQUEST
        else event
        for event in events
    )


def _answered(path: str, close: Mapping[int, int]) -> set[int]:
    """The failures behind which the same start of the server goes on to answer. close: line to line."""
    left = dict.fromkeys(close, 0)
    refused: set[int] = set()
    answered: set[int] = set()
    for number, block in blocks_with(path, _OF_SERVER):
        if not left:
            break
        for at, line in lines(block, number):
            if _STARTED in line:
                left = {failed: count for failed, count in left.items() if failed >= at}
            elif (answer := _ANSWER.search(line)) is not None and answer[1] in "24":
                for failed in [failed for failed in left if failed < at]:
                    left[failed] += answer[1] == "2"
                    if answer[1] == "4" and at <= close[failed]:
                        refused.add(failed)
                    if left[failed] >= (1 if failed in refused else _ENOUGH):
                        answered.add(failed)
                        del left[failed]
    return answered


# SGLang: "SIGTERM received. … Draining requests and shutting down"; vLLM: "[shutdown] API server: shutdown triggered".
_ASKED = re.compile(_GRAMMAR["asked"])
_STOP_WORDS = ("shutting down", "[shutdown] ")
_TO_STOP = Words(*(word.encode() for word in _STOP_WORDS))
_SEARCHED = 400
_MOST_QUOTED = 160


def without_aftermath(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log without those behind a request to stop, where nothing failed before it. Raises InputError
    where the file cannot be read."""
    if not events or (asked := asked_to_stop(path)) is None or any(event.line < asked[0] for event in events):
        return events
    return ()


def asked_to_stop(path: str) -> tuple[int, str] | None:
    """The line in which a server is asked to stop, and what it says; None where it is at work behind that."""
    found: tuple[int, str] | None = None
    for piece in indexed(path):
        if found is None and not piece.holds(_TO_STOP):
            continue
        for at, line in lines(piece.data(), piece.number):
            head = line[:_SEARCHED]
            if found is None:
                if any(words in head for words in _STOP_WORDS) and _ASKED.search(head) is not None:
                    found = at, first_words(without_prefixes(line).strip(), _MOST_QUOTED)
            elif _STARTED in head or any(sightings(head.encode(errors="replace"))):
                found = None
    return found


# Logs that end because somebody stopped the program: by Ctrl-C, or a signal of which it makes the same exception.

_NAME = re.compile(r"(?<![a-z\d_])[Kk]eyboard[ _]?[Ii]nterrupt(?:ion|ed)?\b")
_CAME = re.compile(r"\b(?:detected|received|caught|got|raised|stopped by|ended by)(?: an?| the)? $", re.IGNORECASE)
_DID_COME = re.compile(r" (?:was |signal )?(?:detected|received|caught|raised)\b", re.IGNORECASE)
_NEXT = re.compile(r" ?[^\w\s]|\s{0,8}$")  # an exception's message, or the next sentence
# DeepSpeed's 'Main process received SIGINT, exiting', torchrun's 'Received Signals.SIGINT death signal' and '… got
# signal: 2', 'Sending process 7 closing signal SIGINT'; srun's and mpirun's own words.
_SIGNAL = re.compile(_GRAMMAR["signal"])
_ONLY_SAID = re.compile(r"\b(?i:if|when|whenever|once|until|unless|on|after|should|may|can|will|not|never|press)\b")
_OF_INTERRUPT = Words(b"eyboard", b"SIGINT", b"ignal: 2", b" 2 death", b"Ctrl-C", b"killing job")


def interrupted(path: str) -> tuple[int, str] | None:
    """The line that tells of it and what that says; None where steps follow, or without one. Raises InputError where
    the file cannot be read."""
    found: tuple[int, str] | None = None
    for piece in indexed(path):
        if not piece.holds(_OF_INTERRUPT):
            found = None if found is not None and any(sightings(piece.data())) else found
            continue
        for at, line in lines(piece.data(), piece.number):
            body = without_prefixes(line)
            if _says_so(body):
                found = found or (at, first_words(body.strip(), _MOST_QUOTED))
            elif found is not None and any(sightings(line.encode(errors="replace"))):
                found = None
    return found


def _says_so(body: str) -> bool:
    """Whether a line is the exception's own, or says that it or the signal came; naming it is not enough."""
    if body[:1].isspace():
        return False
    if (signal := _SIGNAL.search(body, 0, _SEARCHED)) is not None:
        return _ONLY_SAID.search(body, 0, signal.start()) is None
    if (told := _NAME.search(body, 0, _SEARCHED)) is None:
        return False
    before = body[: told.start()]
    if _CAME.search(before) is not None or _DID_COME.match(body, told.end()) is not None:
        return True
    # Words of a time, a level or of who says a line are no text.
    text = [word for word in before.removesuffix("^C").split() if not word.isupper()]
    is_text = any(word.isalpha() or word.endswith((".", ",", ";", "except")) for word in text)
    return not is_text and _NEXT.match(body, told.end()) is not None


_OF = re.compile(rb"\A[^\n\r]{0,40}?(?<!\d)(?:\d{1,9}\s{0,2}(?:/|of)|/)\s{0,8}(\d{1,9})\b")
_SKIPPED = re.compile(rb"\bstep=(\d{1,9}), skipped=(\d{1,9})\b")  # DeepSpeed
_LOSS = re.compile(_GRAMMAR["loss"].encode(), re.IGNORECASE)
_FEWEST_SKIPPED = 50  # steps
_SHARE_SKIPPED = 0.5
_SAME = 10  # losses in a row that are 0 or NaN
_JSON = re.compile(rb'\s{0,20}(?:\{\s{0,20}["}]|\[\s{0,20}[\[{"\]]|")')
_LEAST_ASCII = 0.2  # of a block's bytes: logs have their times, numbers and paths in it, whatever their language
_INTERRUPT = "KeyboardInterrupt"
_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARN|WARNING|ERROR)\b")  # of a logger, whose line no person wrote
_HANGS = re.compile(
    rb"\[HANG\]|\b(?:it|training|job|run|process|program|script|everything|ranks?|which|and|then|just|still|always) "
    rb"(?:hangs|hung|freezes|froze|deadlocks|(?:is|gets?|got|remains) stuck)\b"
    rb"|\bnever (?:progresses|gets past|finishes)\b|\b(?:is|are|keeps) (?:hanging|frozen)\b"
    rb"|\bhangs? (?:at|on|in|during|forever|indefinitely|before|after)\b",
    re.IGNORECASE,
)


def how_it_ends(path: Path) -> LogEnd:
    """How a log ends. Raises InputError where it cannot be read."""
    step: int | None = None
    of: int | None = None
    epoch: float | None = None
    done, serving, last, number = False, False, 0, 0
    hangs: tuple[int, str] | None = None
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
        if completed_at(block) is not None:
            done = done or any(not match[0].startswith(_STARTS_SERVER) for match in _COMPLETED.finditer(block))
        serving = serving or _STARTS_SERVER in block
        hangs = hangs or _says_it_hangs(number, block)
    stopped = interrupted(str(path))
    return LogEnd(
        str(path), last, step, of if of is not None and step is not None and of >= step else None, epoch, done, serving,
        stopped, asked_to_stop(str(path)), _interrupted_in(path) if stopped is not None else (),
        hangs,
    )  # fmt: skip


def _says_it_hangs(number: int, block: bytes) -> tuple[int, str] | None:
    """The first line in which a person writes that the job hangs. number: of the block's first line."""
    if _HANGS.search(block) is None:
        return None
    told = (
        (at, first_words(line.strip(), _MOST_QUOTED))
        for at, line in lines(block, number)
        if _HANGS.search(line.encode(errors="replace"))
        and _LEVEL.search(line) is None
        and without_prefixes(line).strip() == line.strip()
    )
    return next(told, None)


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
    Raises InputError where it cannot be read."""
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
        bad = last is not None and (last == "nan" or _is_zero(last.encode()))
        line, count, steps = skipped
        text = reason("hangs", "skipped_loss" if bad else "skipped_steps", skipped=count, steps=steps, loss=last)
        return LogEvent("idle", None, str(path), line, text)
    if flat is not None and len(losses) == _SAME:
        return LogEvent("idle", None, str(path), losses[0][0], reason("hangs", "flat_loss", loss=flat, lines=_SAME))
    return None


def _is_zero(value: bytes) -> bool:
    try:
        return float(value) == 0.0
    except ValueError:
        return False
