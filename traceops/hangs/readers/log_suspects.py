"""Lines that call themselves errors, in wordings that no rule knows: a log that holds them is not clean."""

from __future__ import annotations

import re
from collections.abc import Iterable

from traceops.hangs.readers.log_tracebacks import as_of_library

_SEARCHED = 200
_MOST = 8
# A line's own level is the first that it names: '[INFO] … [error]' is none. What only holds such a word is no error:
# 'TEST ERROR: 0.02', '| ERROR | WER |', '--log-level ERROR', 'ERROR RATE'.
_LEVEL = re.compile(
    r"\[ ?(?P<bracketed>debug|info|notice|warn|warning|error|fatal|critical)(?=[ \]])"
    r"|(?:^|(?<=[\s|(\[-]))(?P<level>DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL(?: ERROR)?|CRITICAL)(?=[:|\s\]]|$)"
    r'|(?:\blevel=|"(?:level|severity)": ?)"?(?P<structured>[A-Za-z]{4,8})\b'
)
# glog's E0913 23:44:51, TensorFlow's ': E ', NeMo's, TensorRT's, Ray's, CUDA's own '[10:46:15][1401][CUDA][E]'.
_GLOG = re.compile(
    r"\[?([A-Z])\d{3,4} \d\d:\d\d:\d\d\.\d|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{1,9}: ([A-Z]) "
    r"|\d\d:\d\d:\d\d\.\d{3,9}: ([A-Z]) {1,8}\d{1,10} \S{1,200}\](?! ?$)"  # XLA's client, with a thread
    r"|\[NeMo ([A-Z]) |(?:\[[\d/:-]{8,30}\] ?)?\[TRT[\w-]{0,10}\] \[([A-Z])\] "
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ([A-Z]) \d{1,10} \d{1,10}\] "
    r"|(?:\[[^\]\[]{1,60}\] ?){1,4}\[([A-Z])\] "
)
# Ascend's EI0006, 'srun: error: ', click's 'Error: ', panics of Go and Rust, Hydra, docker, MPI, glibc.
_SAID = re.compile(
    r"(?:\[?[\w.-]{1,40}\]? ?)?E[A-Z]\d{4}: |(?:[\w./-]{1,60}: (?:fatal )?error|Error|error|panic): "
    r"|(?!.{0,40}\b(?i:mean|squared|absolute|relative|test|validation|train\w*|set|rounding|word|rate|final|best)\b)"
    r"[A-Z][\w ]{1,40} error: (?=[A-Z](?:\S{0,80} ){4})"  # 'HCCL demo error: In function initDevice(): …'
    r"|\s{0,8}traceback ?: (?=Signal \d{1,2} \(SIG)"  # torchrun's report without its lines on the rank
    r"|thread '[^']{1,60}' panicked at |Error executing job with |(?:docker: )?Error response from daemon"
    r"|\*\*\* (?:An error occurred in MPI_|stack smashing)|(?:free|malloc|realloc|munmap_chunk)\(\): "
    r"|[\w./-]{1,200}: (?:line \d{1,7}: )?(?=fork: retry: )"
    r"|double free or corruption|corrupted (?:size|double-linked)|[^\s:]{1,60}: .{1,120}: Assertion `"
)
_ANYWHERE = re.compile(
    r"\bUnhandled exception\b|: ABORT\s{0,8}$|\bNVRM: .{0,60}\b(?:RmInitAdapter|rm_init_adapter)\b.{0,60} failed\b"
    # The kernel's own watchdogs: a core, or a process that waits for a disk or a driver.
    r"|\bBUG: soft lockup - CPU#|\bINFO: task \S{1,80}:\d{1,10} blocked for more than \d"
    r"|\*ERROR\* ring \S{1,40} timeout\b"
    r"|\bSegmentation fault from GPU at 0x"  # Intel's driver
    r"|\b(?:amdgpu|habanalabs|i915|xe)(?: [\w:.]{1,20})?: (?:[\w ]{1,40}: )?error\b"
    # The stack of what torch's watchdog of collectives raised, without the words before it.
    r"|\bException raised from \w{1,60} at \S{1,150}ProcessGroup[A-Z]{1,5}CCL\.cpp:"
    r"|\bframe #\d{1,3}: c10d::ProcessGroup[A-Z]{1,5}CCL::Work[A-Z]{1,5}CCL::(?:checkTimeout|handleException)\("
)
# What Kineto could not record; no job ends by that. 'ERROR:2026-11-24 00:21:36 53:53 DeviceProperties.cpp:56] …'
_KINETO = re.compile(r"[A-Z]{4,7}:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d{1,10}:\d{1,10} \w{1,80}\.(?:cpp|h):\d{1,6}\]")
# A traceback that rich drew in a box, or one of IPython, whose last lines may be missing.
_DRAWN = re.compile(
    r"│ \S.{0,150}:\d{1,7} in [\w<>]{1,60}\s|╭─{1,150} Traceback \(most recent call last\)"
    r"|(?:[A-Za-z_][\w.]{0,100}?)?(?: {2,100})?Traceback \(most recent call last\)\s{0,4}$"
)
# Lines of one traceback, each with a level in front, or drawn: the first of them is enough.
_PIECE = re.compile(r'\] {3,40}\S|\] \s{0,4}File "|\^{4}|^[│╭]')
_PIECE_FRAME = re.compile(
    r'\] {0,8}File "(?P<file>[^"]{1,200}", line \d{1,9}), in (?P<name>[\w<>.]{1,100})'
    r"|│ (?P<of>\S.{0,150}?:\d{1,9}) in (?P<named>[\w<>.]{1,100})\s"
)
_HEAD = "Traceback (most recent call last):"
# IPython's, whose head names the exception; below each frame it shows the code.
_OF_CELL = re.compile(r"(?:([A-Za-z_][\w.]{0,100}) {2,100})?Traceback \(most recent call last\)\s{0,4}$")
_CELL_FRAME = re.compile(r"(?:File )?(?P<file>[~/][^\s:]{1,300}:\d{1,9}),? in (?P<name>[\w<>.]{1,100})\(")
_SHOWN_BELOW = 12  # lines of code, at most, behind the frame in which a traceback is cut off
_MOST_JOINED = 4  # lines of a message that goes on
# A warning by its level: torch's store did not answer in time.
_STORE = re.compile(r"\bwaitForInput: socket SocketImpl\(.{0,120} timed out after ")
_SEVERE = frozenset(("error", "fatal", "critical"))
# One is in whatever _LEVEL and _ANYWHERE find that is severe.
_WORDS = (
    "rror",
    "ERROR",
    "fatal",
    "FATAL",
    "critical",
    "CRITICAL",
    "ABORT",
    "Unhandled",
    "NVRM",
    "lockup",
    "blocked for",
    "ProcessGroup",
    "fault from GPU",
)
_ASIDE = re.compile(r"\[[^\]]{0,80}\]|\([^)]{0,80}\)|[\w.-]{0,40}[\d.:/][\w.:/-]{0,40}")  # times, places, names
_BARE_WORD = re.compile(r"[^\W\d_]{2,40}")
_SETTING = re.compile(r"(?:level|verbosity|severity|threshold)\W{0,40}(?:to\W{1,4})?$", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:[\s:|)\]-]|\[[^\]]{0,80}\]){0,40}")
# A number, or what stands in the place of one, or other levels; not '404 Client Error' or '3 nodes are down'.
_VALUE = re.compile(
    r"[-+]?(?!(?!0 )\d{1,18} {1,4}[A-Za-z]{2,40} {1,4}[A-Za-z])"
    r"\d{1,18}(?:[.,]\d{1,18})?(?:[eE][-+]?\d{1,3})?\s{0,4}%?(?:[\s,;|)/=]|$)"
    r"|(?i:nan|inf|none|no|n/a|ok)\s{0,4}(?:[,;|)/]|$)"
    r"|(?:DEBUG|INFO|WARN|WARNING|ERROR|FATAL|CRITICAL)\b"
)
_NAME_GOES_ON = re.compile(r"[ -](?:rates?|counts?|counters?|levels?|bars?)\b", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_LETTERS = re.compile(r"[^\W\d_]{2}")
# Errors by name of which a program says that it goes on, or that healthy programs print.
_GOES_ON = re.compile(r"\b(?:(?<!fork: )[Rr]etry(?:ing)?|[Ii]gnor(?:ed|ing)|going to /tmp instead|skipping fork)\b")
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
        self._found: dict[str, tuple[int, int | None, str]] = {}
        self._unfinished: str | None = None  # a message that ends in a colon or a bracket: the next line has more
        self._cell: str | None = None  # IPython's traceback, whose frames come
        self._inside = 0  # the last line of a drawn traceback's head or frames

    def take(self, number: int, rank: int | None, body: str) -> None:
        if self._unfinished is not None and body.strip():
            self._go_on(self._unfinished, number, rank, body.strip()[:_SEARCHED])
        if self._cell is not None and (frame := _CELL_FRAME.match(body[: 2 * _SEARCHED])) is not None:
            at, who, said = self._found[self._cell]
            place = as_of_library(f"… {frame['name']} ({frame['file']}) …")
            self._found[self._cell], self._inside = (at, who, f"{said.partition(' …')[0]} {place}"), number
        if len(self._found) >= _MOST or not _is_severe(body[:_SEARCHED]):
            return
        if _GOES_ON.search(body[: 2 * _SEARCHED]) is None and not any(words in body for words in _HARMLESS):
            if _PIECE.search(body[:_SEARCHED]) is not None:
                self._take_piece(number, rank, body)
                return
            said = body.strip()
            alike = "".join(char for char in body if char.isalpha())[:_SEARCHED]
            if alike not in self._found and _goes_on(said):
                self._unfinished = alike
            if (head := _OF_CELL.match(said)) is not None:
                self._cell, self._inside = alike, number
                said = f"{head[1]}, {_HEAD} …" if head[1] else f"{_HEAD} …"
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
        if (frame := _PIECE_FRAME.search(body[: 2 * _SEARCHED])) is not None and who == rank:
            inside = frame["name"] or frame["named"]
            place = (frame["file"] or frame["of"]).replace('", line ', ":")
            self._found[""] = at, who, as_of_library(f"{_HEAD} … {inside} ({place}) …")

    def found(self) -> Iterable[tuple[int, int | None, str]]:
        """Line number, who says it, text."""
        return self._found.values()

    def cut_off(self, last: int) -> bool:
        """Whether the log ends within a traceback that is drawn, whose exception is missing. last: its last line."""
        return self._inside > 0 and last - self._inside <= _SHOWN_BELOW


def _goes_on(said: str) -> bool:
    return said.endswith((":", "{", "["))


def _is_severe(head: str) -> bool:
    if "waitForInput" in head and _STORE.search(head) is not None:
        return True
    if (head[:1] in "│╭" or "Traceback (" in head) and _DRAWN.match(head) is not None:
        return True
    if _KINETO.match(head) is not None:
        return False
    if (glog := _GLOG.match(head)) is not None:
        return glog[glog.lastindex or 0] in "EFC"
    if (said := _SAID.match(head)) is not None:
        return _is_message(head[said.end() :])
    if not any(map(head.__contains__, _WORDS)):
        return False
    if _ANYWHERE.search(head) is not None:
        return True
    level = _LEVEL.search(head)
    if level is None or (level[level.lastgroup or 0]).lower().split()[0] not in _SEVERE:
        return False
    if level["structured"] is not None:
        return "msg" in head or "message" in head
    return _is_before_a_level(head[: level.start()]) and _is_message(head[level.end() :])


def _is_before_a_level(before: str) -> bool:
    """Times, places and a logger's name; not a sentence, a table or a setting."""
    if (
        before.startswith("|")
        or ("|" in before and _DIGIT.search(before) is None)
        or _SETTING.search(before) is not None
    ):
        return False
    return (
        before.rstrip(" [(")[-1:] in (":", "|", "-", "]", ">") or len(_BARE_WORD.findall(_ASIDE.sub(" ", before))) <= 1
    )


def _is_message(after: str) -> bool:
    """Words, rather than a metric's value or the columns of a table."""
    if _NAME_GOES_ON.match(after) is not None:
        return False
    said = after[between.end() :] if (between := _BETWEEN.match(after)) is not None else after
    return _VALUE.match(said) is None and _LETTERS.search(said) is not None
