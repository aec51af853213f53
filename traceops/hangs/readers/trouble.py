"""Lines of trouble that no rule knows, and loggers that go on behind them: shown where nothing else says why."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct

from traceops.core.text import by_shape
from traceops.hangs.evidence import LogKind
from traceops.hangs.readers.log_events import EventList, says_why
from traceops.hangs.readers.steps import sightings
from traceops.hangs.readers.tracebacks import HEAD_ONLY, Tracebacks, as_of_library
from traceops.words.catalogue import grammar

_Line = tuple[int, int | None, str]  # number, who says it, text

# Loggers that go on after an error, what failed and is tried again, and what is only warned of: no end of a program.

_OF_LOGGERS = grammar("loggers")
_LOGGER_HEAD = 200
_LOGGERS_LEVEL = re.compile(r"(?:^|(?<=[\s|(\[:-]))(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)(?=[:|\s\]]|$)")
_SEVERE_LEVELS = ("ERROR", "FATAL", "CRITICAL")
_AFTER = 12  # characters behind the level that belong to a logger's form, where nothing stands before it
_TIME = re.compile(r"\b(\d\d):(\d\d):(\d\d)\b")
# Dates and times of day. Other digits are of a rank, a process or a host: another one goes on whatever happens here.
_MOMENT = re.compile(r"\d{1,4}(?:[-/.]\d{1,4}){1,2}|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?")
_DAY = 86_400
_ENDED_WELL = re.compile(r"\b(?i:finished|completed?|done|success\w{0,6}|saved)\b|(?i:output (?:dir|file|path))")
# A server that is up: of uvicorn, SGLang, text-generation-inference, Triton's.
_READY = re.compile(_OF_LOGGERS["ready"])
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
        head = line[:_LOGGER_HEAD]
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
        last: the log's last line."""
        told = self._forms.get(self._form_of.get(number, ""))
        if told is None or told.ready or told.mild < _FEWEST:
            return told is not None and told.ready
        return told.later_s >= _LATER_S or (told.done > 0 and last - told.done < _NEAR_END)


def _seconds(head: str) -> int | None:
    """The time of day."""
    found = _TIME.search(head)
    return None if found is None else 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3])


# 'Connection refused, retrying (1/34)', 'out of memory, will retry with batch size 16'; not 'after retrying 5 times'.
_AGAIN = re.compile(_OF_LOGGERS["again"], re.IGNORECASE)
_MOST_RETRIED = 16
_WENT_ON = 50  # lines of other things: it was tried again with success, or what came of it is told by other lines
# fairseq's 'WARNING: ran out of memory with exception: …', behind a time or a bar: a batch was left out.
_WARNING = re.compile(r"[\s|\d:.,T\[-]{0,40}WARN(?:ING)?\b[\s|\]:]")


@by_shape
def _tries_again(body: str) -> bool:
    """Whether a line says of what failed that it is tried again: by itself it ended nothing."""
    return _AGAIN.search(body) is not None


class Retried:
    """The last few lines on what failed and is tried again, behind which nothing says that it went well."""

    def __init__(self) -> None:
        self._found: deque[_Line] = deque(maxlen=_MOST_RETRIED)

    def take(self, number: int, rank: int | None, body: str) -> None:
        self._found.append((number, rank, body))

    def look_for_step(self, body: str) -> None:
        """A step was made: what was tried again before went well."""
        if self._found and any(sightings(body.encode(errors="replace"))):
            self._found.clear()

    def found(self, last: int) -> Iterable[_Line]:
        """Line number, who says it, text. last: the last line of the log."""
        return [one for one in self._found if last - one[0] <= _WENT_ON]


_GRAMMAR = grammar("trouble")
_SEARCHED = 400
_MOST = 8
# Who may fail, and how, in one clause: 'Worker 3 died', 'the job has failed', 'Trial t1 failed'.
_WHO = (
    r"\b(?i:workers?|ranks?|process(?:es)?|pods?|containers?|jobs?|tasks?|actors?|replicas?|nodes?|executors?|trainers?"
    r"|launchers?|servers?|engines?|schedulers?|requests?|training|trials?|steps?|commands?|scripts?|subprocess|child)\b"
)
_FAILS = (
    r"\b(?:(?:has|have|had|was|were|is|are|been|got|unexpectedly|suddenly) ){0,3}"
    r"(?:failed|crashed|died|aborted|dead|hung|evicted|preempted|unreachable|killed|cancell?ed|timed out"
    r"|terminated unexpectedly)\b"
)
_CLAUSE = re.compile(
    rf"{_WHO}(?: ['\"][\w.-]{{1,60}}['\"])?[^.;,:!?|=\"']{{0,40}}?[ ]{_FAILS}"
    r"(?! ?[:=] ?(?:0\b|[Ff]alse|[Nn]one)|[- ]over\b)"
)
# A message begins with it, or nearly so ('the job', 'All requests'); prose that a model wrote seldom does.
_CLAUSE_BEGINS = re.compile(r"[.;:!?|>)\]\"-] ?")
_BARE_WORD = re.compile(r"[^\W\d_]{2,40}")
# What has not happened, or only may: 'if a worker died', 'restart on failed', '0 tasks failed', 'has not failed'.
_ONLY_SAID = re.compile(_GRAMMAR["only_said"])
# The level of a line that is not severe says that nothing failed for good.
_MILD = re.compile(
    r"\b(?:DEBUG|INFO|NOTICE|WARN(?:ING)?)\b|\b(?:level|severity)\W{1,4}(?:debug|info|warn)|^\[?[IW]\d{3,4} |Warning: "
)
_EXIT = re.compile(_GRAMMAR["exit"])
_ENDS_WELL = ("0", "-0", "130", "-2")  # 2: somebody pressed Ctrl-C
# Of a benchmark, a test suite, an operator or a search: how many failed, or that none was well.
_COUNTED = re.compile(_GRAMMAR["counted"])
_NONE_WELL = re.compile(_GRAMMAR["none_well"])
_NAMED = re.compile(_GRAMMAR["named"])
# Programs that did not start or ended, in words of their own: MPI, C++, CUDA, Docker, ssh, the linker, Java.
_ENDED = re.compile(_GRAMMAR["ended"])
# A few words that end in 'error': '!!!! kernel execution error. (m: 256, error: 13)'.
_ERROR = re.compile(_GRAMMAR["error"])
# What somebody wrote or a model said, in a chat.
_CHAT = re.compile(r"\W{0,4}(?i:user|human|assistant|system|prompt|question|answer|instruction|response)\W{0,4}: ")
# At a log's end only, where the program did not go on: 'bash: torchrun: command not found', 'python: can't open file'.
_LATE = re.compile(_GRAMMAR["late"])
_GOES_ON = re.compile(r"\b(?:instead|[Rr]etry|[Ii]gnor|[Ss]kip|[Ff]all(?:ing)? ?back)")
_NCCL_NOTE = " NCCL INFO "  # connections that close as a job ends
_AT_END = 10  # lines
# What passes: a pod that waits for a node or an image, until it starts; a rendezvous that failed, until one succeeds.
_WAITS = re.compile(_GRAMMAR["waits"])
_STARTS = re.compile(r"\bSuccessfully (?:assigned|pulled)\b|\bStarted container\b|\bRendezvous complete\b")
# Torch's store at rank 0 is gone: nothing, where the program had come to its end.
_STORE = re.compile(r"\[c\d\dd\] (?:recv|send)\w{1,24} failed on SocketImpl\(")
_DONE = re.compile(_GRAMMAR["done"])
_OF_LAUNCHER = "torch.distributed.elastic."
_BY_HAND = "got signal: 2"  # somebody pressed Ctrl-C
# One is in whatever tells of a failure.
_WORDS = (
    "ailed", "ailure", "FAILED", "rash", " died", " dead", "bort", "ABORT", " hung", "vict", "unreach", "illed",
    "erminated", "TERMIN", "ancel", "reempted", "exit", "Exit", "EXIT", "status", "code ", "State=", "TIMEOUT",
    "NODE_F", "OUT_OF", "Succ", "closing signal", "rror", "xception", "ackoff", "ack-off", "ackOff", "ErrImage",
    "ContainerE", "nfigError", "fficient nv", "ContainerS", "Started con", "Scheduling", "not found", "o such",
    "No module", "denied", "annot ", "can't", "memory", "unable to", "imed out", "Process received", "slots",
    "onnection", "Job ex", "not permit", "isconnected", "Horovod has b", "node down: ", " ERROR",
    " INFO transport/", "not renewed", "ous complete",
)  # fmt: skip
_DONE_IN_SMALL = ("destroy_", "%|", "shut", "exiting", "done", "complete", "finished")
_OF_ALL = re.compile(r"(?<=\d)/\d")
_OF_FAILURES = (_STORE, _WAITS, _STARTS, _EXIT, _NAMED, _COUNTED, _ENDED, _CLAUSE)


class Failures:
    """The first few such lines, each message once; those that passed are left out."""

    def __init__(self) -> None:
        self._found: dict[str, _Line] = {}
        self._waits: dict[str, _Line] = {}
        self._store: dict[str, _Line] = {}
        self._late: deque[_Line] = deque(maxlen=_MOST)
        self._last = 0  # line that says anything
        self._done = False

    def take(self, number: int, rank: int | None, body: str) -> None:
        head = body[:_SEARCHED]
        if body.strip():
            self._last = number
        may_be_done, may_tell = _may_matter(head)
        if may_be_done and not self._done:
            self._done = _DONE.search(head) is not None
        if not may_tell:
            return
        if _STORE.search(head) is not None:
            _keep(self._store, number, rank, body)
        elif _WAITS.search(head) is not None:
            _keep(self._waits, number, rank, body)
        elif _says_failed(head):
            _keep(self._found, number, rank, body)
        elif _LATE.match(head) is not None and _GOES_ON.search(head) is None and _NCCL_NOTE not in head:
            self._late.append((number, rank, body.strip()))
        elif _STARTS.search(head) is not None:
            self._waits.clear()

    def raised(self, number: int, rank: int | None, text: str) -> None:
        """What torchrun raised, if it is because a rank failed: the end of its traceback."""
        if text.startswith(_OF_LAUNCHER) and _BY_HAND not in text:
            _keep(self._found, number, rank, text.rstrip("= "))

    def warned(self, number: int, rank: int | None, text: str) -> None:
        """An exception that a logger calls a warning, or less: nothing, unless the log ends there."""
        self._late.append((number, rank, text))

    def found(self) -> Iterable[_Line]:
        """Line number, who says it, text."""
        store = () if self._done else self._store.values()
        late = [one for one in self._late if self._last - one[0] < _AT_END]
        return sorted((*self._found.values(), *self._waits.values(), *store, *late), key=lambda one: one[0])[:_MOST]


@by_shape
def _may_matter(head: str) -> tuple[bool, bool]:
    """Whether a line may say that the program is done, and whether it may be a failure, whatever its digits."""
    lower = head.lower()
    may_be_done = any(map(lower.__contains__, _DONE_IN_SMALL)) or _OF_ALL.search(head) is not None
    if not any(map(head.__contains__, _WORDS)):
        return may_be_done, False
    may_have_failed = "Succ" in head or any(words.search(head) is not None for words in _OF_FAILURES)
    return may_be_done, may_have_failed or _ERROR.match(head) is not None or _LATE.match(head) is not None


def _keep(found: dict[str, _Line], number: int, rank: int | None, body: str) -> None:
    if len(found) < _MOST:
        found.setdefault("".join(filter(str.isalpha, body))[:_SEARCHED], (number, rank, body.strip()))


def _says_failed(head: str) -> bool:
    if _CHAT.match(head) is not None:
        return False
    if (ended := _EXIT.search(head)) is not None:
        before = head[: ended.start()]
        return ended["code"] not in _ENDS_WELL and _ONLY_SAID.search(before[-60:]) is None
    if any(words.search(head) is not None for words in (_NAMED, _COUNTED, _NONE_WELL, _ENDED)):
        return True
    if _ERROR.match(head) is not None:
        return True
    if (clause := _CLAUSE.search(head)) is None or _MILD.search(head) is not None:
        return False
    said = _CLAUSE_BEGINS.split(head[: clause.start()])[-1]  # what stands before it in its clause
    return len(_BARE_WORD.findall(said)) <= 1 and _ONLY_SAID.search(said + clause[0]) is None


# Lines that call themselves errors, in wordings that no rule knows: a log that holds them is not clean.

_SUSPECT_HEAD = 200
# A line's own level is the first that it names: '[INFO] … [error]' is none. What only holds such a word is no error:
# 'TEST ERROR: 0.02', '| ERROR | WER |', '--log-level ERROR', 'ERROR RATE'.
_LEVEL = re.compile(_GRAMMAR["level"])
# glog's E0913 23:44:51, TensorFlow's ': E ', NeMo's, TensorRT's, Ray's, CUDA's own '[10:46:15][1401][CUDA][E]'.
_GLOG = re.compile(_GRAMMAR["glog"])
# Ascend's EI0006, 'srun: error: ', click's 'Error: ', panics of Go and Rust, Hydra, docker, MPI, glibc.
_SAID = re.compile(_GRAMMAR["said"])
_ANYWHERE = re.compile(_GRAMMAR["anywhere"])
# What Kineto could not record; no job ends by that. 'ERROR:2026-11-24 00:21:36 53:53 DeviceProperties.cpp:56] …'
_KINETO = re.compile(r"[A-Z]{4,7}:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d{1,10}:\d{1,10} \w{1,80}\.(?:cpp|h):\d{1,6}\]")
# A traceback that rich drew in a box, or one of IPython, whose last lines may be missing.
_DRAWN = re.compile(_GRAMMAR["drawn"])
# Lines of one traceback, each with a level in front, or drawn: the first of them is enough.
_PIECE = re.compile(r'\] {3,40}\S|\] \s{0,4}File "|\^{4}|^[│╭]')
_PIECE_FRAME = re.compile(_GRAMMAR["piece_frame"])
_HEAD = "Traceback (most recent call last):"
# IPython's, whose head names the exception; below each frame it shows the code.
_OF_CELL = re.compile(r"(?:([A-Za-z_][\w.]{0,100}) {2,100})?Traceback \(most recent call last\)\s{0,4}$")
_CELL_FRAME = re.compile(r"(?:File )?(?P<file>[~/][^\s:]{1,300}:\d{1,9}),? in (?P<name>[\w<>.]{1,100})\(")
_SHOWN_BELOW = 12  # lines of code, at most, behind the frame in which a traceback is cut off
_MOST_JOINED = 4  # lines of a message that goes on
# A warning by its level: torch's store did not answer in time.
_STORE_SILENT = re.compile(r"\bwaitForInput: socket SocketImpl\(.{0,120} timed out after ")
_SEVERE = frozenset(("error", "fatal", "critical"))
# One is in whatever _LEVEL and _ANYWHERE find that is severe.
_SEVERE_WORDS = (
    "rror", "ERROR", "fatal", "FATAL", "critical", "CRITICAL", "ABORT", "Unhandled", "NVRM",
    "lockup", "blocked for", "ProcessGroup", "fault from GPU",
)  # fmt: skip
_ASIDE = re.compile(r"\[[^\]]{0,80}\]|\([^)]{0,80}\)|[\w.-]{0,40}[\d.:/][\w.:/-]{0,40}")  # times, places, names
_SETTING = re.compile(r"(?:level|verbosity|severity|threshold)\W{0,40}(?:to\W{1,4})?$", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:[\s:|)\]-]|\[[^\]]{0,80}\]){0,40}")
# A number, or what stands in the place of one, or other levels; not '404 Client Error' or '3 nodes are down'.
_VALUE = re.compile(_GRAMMAR["value"])
_NAME_GOES_ON = re.compile(r"[ -](?:rates?|counts?|counters?|levels?|bars?)\b", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_LETTERS = re.compile(r"[^\W\d_]{2}")
# Errors by name of which a program says that it goes on, or that healthy programs print.
_HANDLED = re.compile(_GRAMMAR["handled"])
# A level, a time and a place, and no message behind them: '09-23 10:49:22 worker.py:226]'.
_NO_MESSAGE = re.compile(r"[\s\d:,.-]{0,40}[\w./-]{1,80}\.(?:py|cc|cpp):\d{1,6}\]\s{0,8}$")
_HARMLESS = (
    "pip's dependency resolver", "Unable to register cu", "already registered", "meta_optimizer.cc:",
    "node_def_util.cc:", "slow_operation_alarm.cc", "Delay kernel timed out", "fork_posix.cc", "/select_algorithm.py",
    "PMIX ERROR", "Using pad_token, but", "buffer_comparator.cc:", "task/cgroup: unable to add task",
    "_is_a_lwp: ", "collect2: error: ld returned", "wandb: ERROR ", "Metrics will not be exported",
    "file_system_monitor.cc:",
)  # fmt: skip


class Suspects:
    """The first few such lines, each message once."""

    def __init__(self) -> None:
        self._found: dict[str, _Line] = {}
        self._unfinished: str | None = None  # a message that ends in a colon or a bracket: the next line has more
        self._cell: str | None = None  # IPython's traceback, whose frames come
        self._inside = 0  # the last line of a drawn traceback's head or frames

    def take(self, number: int, rank: int | None, body: str) -> None:
        if self._unfinished is not None and body.strip():
            self._go_on(self._unfinished, number, rank, body.strip()[:_SUSPECT_HEAD])
        if self._cell is not None and (frame := _CELL_FRAME.match(body[: 2 * _SUSPECT_HEAD])) is not None:
            at, who, said = self._found[self._cell]
            place = as_of_library(f"… {frame['name']} ({frame['file']}) …")
            self._found[self._cell], self._inside = (at, who, f"{said.partition(' …')[0]} {place}"), number
        head = body[:_SUSPECT_HEAD]
        if len(self._found) >= _MOST or not _may_be_severe(head) or not _is_severe(head):
            return
        if _HANDLED.search(body[: 2 * _SUSPECT_HEAD]) is None and not any(words in body for words in _HARMLESS):
            if _PIECE.search(head) is not None:
                self._take_piece(number, rank, body)
                return
            said = body.strip()
            alike = "".join(filter(str.isalpha, body))[:_SUSPECT_HEAD]
            if alike not in self._found and said.endswith((":", "{", "[")):
                self._unfinished = alike
            if (cell := _OF_CELL.match(said)) is not None:
                self._cell, self._inside = alike, number
                said = f"{cell[1]}, {_HEAD} …" if cell[1] else f"{_HEAD} …"
            self._found.setdefault(alike, (number, rank, said))

    def _go_on(self, unfinished: str, number: int, rank: int | None, more: str) -> None:
        """The next line of a message; of an object in JSON as far as to its first text."""
        at, who, said = self._found[unfinished]
        if who == rank and 0 < number - at <= _MOST_JOINED:
            self._found[unfinished] = at, who, f"{said} {more}"
        if who != rank or number - at >= _MOST_JOINED or not more.endswith(("{", "[")):
            self._unfinished = None

    def _take_piece(self, number: int, rank: int | None, body: str) -> None:
        """Of a traceback whose lines each have a level, or a box, around them: its innermost frame."""
        at, who, _ = self._found.setdefault("", (number, rank, body.strip()))
        self._inside = number
        if (frame := _PIECE_FRAME.search(body[: 2 * _SUSPECT_HEAD])) is not None and who == rank:
            inside = frame["name"] or frame["named"]
            place = (frame["file"] or frame["of"]).replace('", line ', ":")
            self._found[""] = at, who, as_of_library(f"{_HEAD} … {inside} ({place}) …")

    def found(self) -> Iterable[_Line]:
        """Line number, who says it, text."""
        return self._found.values()

    def cut_off(self, last: int) -> bool:
        """Whether the log ends within a traceback that is drawn, whose exception is missing. last: its last line."""
        return self._inside > 0 and last - self._inside <= _SHOWN_BELOW


def _is_message(after: str) -> bool:
    """Words, rather than a metric's value or the columns of a table."""
    if _NAME_GOES_ON.match(after) is not None or _NO_MESSAGE.match(after) is not None:
        return False
    said = after[between.end() :] if (between := _BETWEEN.match(after)) is not None else after
    return _VALUE.match(said) is None and _LETTERS.search(said) is not None


@by_shape
def _may_be_severe(head: str) -> bool:
    return _is_severe(head, is_message=lambda after: True)


def _is_severe(head: str, is_message: Callable[[str], bool] = _is_message) -> bool:
    if "waitForInput" in head and _STORE_SILENT.search(head) is not None:
        return True
    if (head[:1] in "│╭" or "Traceback (" in head) and _DRAWN.match(head) is not None:
        return True
    if _KINETO.match(head) is not None:
        return False
    if (glog := _GLOG.match(head)) is not None:
        return glog[glog.lastindex or 0] in "EFC"
    if (said := _SAID.match(head)) is not None:
        return is_message(head[said.end() :])
    if not any(map(head.__contains__, _SEVERE_WORDS)):
        return False
    if _ANYWHERE.search(head) is not None:
        return True
    level = _LEVEL.search(head)
    if level is None or (level[level.lastgroup or 0]).lower().split()[0] not in _SEVERE:
        return False
    if level["structured"] is not None:
        return "msg" in head or "message" in head
    return _is_before_a_level(head[: level.start()]) and is_message(head[level.end() :])


def _is_before_a_level(before: str) -> bool:
    """Times, places and a logger's name; not a sentence, a table or a setting."""
    is_table = before.startswith("|") or ("|" in before and _DIGIT.search(before) is None)
    if is_table or _SETTING.search(before) is not None:
        return False
    ends_apart = before.rstrip(" [(")[-1:] in (":", "|", "-", "]", ">")
    return ends_apart or len(_BARE_WORD.findall(_ASIDE.sub(" ", before))) <= 1


# Python's resource tracker outlives the process whose shared memory and semaphores it counts.
_GONE = "resource_tracker: There appear to be "
_BAR = re.compile(_GRAMMAR["bar"])
_BEFORE = 400  # characters in which the bar stands
_BAR_AT_END = 3  # lines


class Unfinished:
    """The bar in the middle of which a process ended, where the log ends there too."""

    def __init__(self) -> None:
        self._before = ""
        self._found: _Line | None = None

    def take(self, number: int, line: str) -> None:
        """A line as it stands in the log, with the bars in it."""
        said, _, gone = line.partition(_GONE)
        if gone[:1].isdecimal():
            place = said.rpartition("]")  # the bar in this line, or the line before
            shown = f"{place[0]}]"[-_BEFORE:] if place[1] else self._before
            bar = _BAR.search(shown.rpartition("\r")[2])
            if bar is not None and int(bar["done"]) < int(bar["of"]):
                name = bar["name"].strip(" :") or "a progress bar"
                self._found = number, None, f"{name}: {bar['done']}/{bar['of']}, then {_GONE}{gone.strip()}"
        elif not gone and line.strip():
            self._before = line.rstrip()[-_BEFORE:]

    def found(self, last: int) -> Iterable[_Line]:
        """Line number, who says it, text. last: the log's last line."""
        if self._found is not None and last - self._found[0] <= _BAR_AT_END:
            yield self._found


_FAILURES: tuple[LogKind, ...] = ("error", "memory", "cuda", "nccl", "connection")
_IN_REPORT = "traceback "  # torchrun's, of a rank whose end it tells in the lines before
_PASTE = 60  # lines at most: what somebody pasted, and no whole log
_WAIT_KINDS: tuple[LogKind, ...] = ("timeout", "missing", "monitor")


class Unexplained:
    """What failed and is tried again, what a program only warns of, and lines that say so in their own words."""

    def __init__(self) -> None:
        self._retried = Retried()
        self._warned = Retried()  # memory that ran out
        self._suspects = Suspects()
        self._loggers = Loggers()
        self._unfinished = Unfinished()
        self.failures = Failures()

    def note(self, number: int, line: str) -> None:
        """A line as it stands in the log."""
        self._loggers.take(number, line)
        self._unfinished.take(number, line)

    def take(self, number: int, rank: int | None, body: str) -> None:
        """A line that no rule knows."""
        self._suspects.take(number, rank, body)
        self.failures.take(number, rank, body)

    def survived(self, kind: LogKind, number: int, rank: int | None, body: str) -> bool:
        """Whether a failure ended nothing by itself, as its own line says."""
        if kind in _FAILURES and _tries_again(body):
            self._retried.take(number, rank, body)
            return True
        if kind == "memory" and _WARNING.match(body) is not None:
            self._warned.take(number, rank, body)
            return True
        return False

    def look_for_step(self, body: str) -> None:
        """A step was made: what failed before went well."""
        self._retried.look_for_step(body)
        self._warned.look_for_step(body)

    def add_to(
        self,
        events: EventList,
        tracebacks: Collection[tuple[int | None, Tracebacks]],
        at_head: int | None,
        last: int,
        *,
        of_several: bool,
    ) -> None:
        """Nothing that a rule knows is not nothing. last: the last line of the log. of_several: ranks write it."""
        told = [event for event in events.in_order() if says_why(event)]
        waits = [event.line for event in told if event.kind in _WAIT_KINDS]
        for number, rank, text in self._warned.found(waits[0]) if waits else ():
            events.add("memory", rank, number, text)  # a rank that leaves a batch out makes the others wait
        if told:
            return
        ends = any(event.kind in ("exit", "trouble") for event in events.in_order())
        suspects = [one for one in self._suspects.found() if not (ends and one[2].startswith(_IN_REPORT))]
        survived = [
            one for one in suspects if (one[1] is not None or not of_several) and self._loggers.went_on(one[0], last)
        ]
        lines = [*self._retried.found(last), *(one for one in suspects if one not in survived)]
        cut = ((rank, one.cut_off(at_head, at_end=bool(lines))) for rank, one in tracebacks)
        torn = [(found[0], rank, found[1]) for rank, found in cut if found is not None]
        cut_off = self._suspects.cut_off(last) or bool(torn)
        if torn:  # alone, behind what failed before them
            before = lines or [one for one in self.failures.found() if one[0] < torn[0][0]]
            lines = [*before, *([one for one in torn if one[2] != HEAD_ONLY] or torn)]
        if not lines and not ends:
            lines = [*self.failures.found(), *self._unfinished.found(last)]
        if not lines and last <= _PASTE:  # in a whole log these frames may be a stack that the program printed
            loose = ((rank, one.without_ends()) for rank, one in tracebacks)
            lines = [(found[0], rank, found[1]) for rank, found in loose if found is not None]
            cut_off = cut_off or bool(lines)
        for number, rank, text in survived:
            events.add("outlived", rank, number, text, was="trouble")
        for number, rank, text in lines:
            events.add("trouble", rank, number, text, cut_off=cut_off)
        for number, rank, text in self._warned.found(last):
            events.add("trouble", rank, number, text)
