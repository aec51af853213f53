"""Stacks of a process as faulthandler, py-spy and gdb write them."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from msgspec import Struct, field

from traceops.core.errors import FileError
from traceops.hangs.evidence import Frame, RankStacks, ThreadStack
from traceops.hangs.readers.prefixes import without_prefixes
from traceops.traces.source import open_binary
from traceops.traces.text_index import Words, blocks_with
from traceops.traces.text_lines import text_head, text_lines
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("stacks")


class Thread(Struct):
    """A thread as its writer tells it; `first` where gdb or the process id says that it is the main one."""

    number: int | None
    name: str | None
    writer: Literal["fault", "py-spy", "gdb"]
    current: bool = False
    first: bool = False
    frames: list[Frame] = field(default_factory=list)


class Dump(Struct):
    """Threads in the order of the file; `open` while frames of the last one may follow."""

    threads: list[Thread] = field(default_factory=list)
    open: bool = False
    _numbers: set[int | None] = field(default_factory=set)

    def add(self, thread: Thread) -> None:
        self.threads.append(thread)
        self._numbers.add(thread.number)
        self.open = True

    def has(self, number: int) -> bool:
        return number in self._numbers

    def stacks(self, main: int | None) -> list[ThreadStack]:
        """The threads' stacks. main: the main thread's number where the file tells it."""
        chosen = self._main(main)
        return [
            ThreadStack(
                main=thread is chosen,
                frames=tuple(thread.frames),
                name=thread.name,
                native=bool(thread.frames) and all(is_native_file(frame.file) for frame in thread.frames),
            )
            for thread in self.threads
        ]

    def _main(self, main: int | None) -> Thread | None:
        by_number = [thread for thread in self.threads if main is not None and thread.number == main]
        by_name = [thread for thread in self.threads if thread.name == "MainThread"]
        by_process = [thread for thread in self.threads if thread.first]
        # Interpreters list the newest thread first; py-spy sorts by thread and names the main one.
        last = [thread for thread in self.threads[-1:] if thread.writer == "fault"]
        return next(iter([*by_number, *by_name, *by_process, *last]), None)


def is_native_file(file: str) -> bool:
    """Whether a frame's file is compiled code: a library, an executable, a C or C++ source, or not told."""
    name = file.rpartition("/")[2]
    if name.endswith((".py", ".pyx", ".pyc")) or file.startswith("<"):
        return False
    suffixes = (".so", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp", ".inl", ".S", ".rs", ".dylib")
    return ".so." in name or name.endswith(suffixes) or not name or "." not in name or name.startswith("python")


_HEAD = 1 << 16
_MOST_FRAMES = 2000  # a thread; recursion is no reason to run out of memory
_MOST_THREADS = 20_000
_JSON_LIMIT = 1 << 26
# Our own first line: "# rank 3, pid 123, main thread 0x00007f…"; only its last part matters.
_MAIN = re.compile(r"^# .{0,200}?\bmain thread[ :=]{1,3}(0x[0-9a-fA-F]{1,16}|\d{1,20})")
_FAULT_THREAD = re.compile(
    r"^(Thread|Current thread) (0x[0-9a-fA-F]{1,16})(?: \[(.{0,200})\])? \(most recent call first\):"
)
_FAULT_STACK = re.compile(r"^(?:Current thread's )?(C stack trace|Stack) \(most recent call first\):", re.IGNORECASE)
_FAULT_FRAME = re.compile(r'^  File "(.{0,4096})", line (\d{1,9}|\?\?\?) in (.{1,1000})$')
_FAULT_START = re.compile(r"^(?:Fatal Python error: |Timeout \(\d)")
_PYSPY_PROCESS = re.compile(r"^Process \d{1,10}: ")
_PYSPY_THREAD = re.compile(r'^Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(([^()]{1,40})\)(?:: "(.{0,200})")?\s{0,4}$')
_GDB_THREAD = re.compile(r'^Thread (\d{1,9}) \((?:Thread (0x[0-9a-f]{1,16}) )?\(?LWP (\d{1,10})\)?(?: "(.{0,100})")?\)')
_GDB_FRAME = re.compile(r"^#\d{1,6} {1,4}(?:0x[0-9a-f]{1,16} in )?(\S.{0,2000})")
_GDB_ALONE = re.compile(rb"^\s{0,400}#0 {1,4}0x[0-9a-f]{6,16} in ")  # gdb's bt of one thread, and nothing before it
_STACK_LINE = re.compile(_GRAMMAR["stack_line"].encode(), re.MULTILINE)
# What only a training's log has: a dump inside one belongs to the log's reader.
# Of a process that went on; behind prefixes.
_DUMP_IN_LOG = re.compile(_GRAMMAR["dump_in_log"].encode())
_OF_DUMPS = Words(b"Thread 0x", b" (idle", b" (active")
_PREFIXED = re.compile(rb"[^\n]{1,200}?(?:Process \d{1,10}: |Thread (?:0x|\d{1,20} \()|Current thread 0x)")
_RANK_OF_PROCESS = re.compile(rb"(?:--local[_-]rank[= ]|\bRANK=|^# rank )(\d{1,7})\b")
_OF_PROCESS = 2000  # bytes in which a dump tells whose it is
_HOLE = re.compile(rb"\0{64,4096}")
_BEGINNINGS = ("Thread ", "Current thread ", "Process ", "#", "Fatal Python", "Timeout (", "Python v")
_FATAL = b"Fatal Python error: "
_LOG_LINE = re.compile(_GRAMMAR["log_line"].encode(), re.MULTILINE)


def sniff(path: str) -> str | None:
    """'stacks', 'log', or None for what is no text, from the first kilobytes; raises InputError if unreadable."""
    head = text_head(path, _HEAD)[:_HEAD]
    if not head.strip() or _is_binary(head):
        return None
    if _is_pyspy_json(head) or _GDB_ALONE.match(head) is not None:
        return "stacks"
    head = head.replace(b"\r\n", b"\n")
    if _PREFIXED.match(head) is not None:
        head = b"\n".join(without_prefixes(line).encode() for line in head.decode(errors="replace").split("\n"))
    if _MAIN.match(head[:400].decode(errors="replace")) is not None or _PYSPY_PROCESS.match(
        head[:40].decode("latin-1")
    ):
        return "stacks"
    first = _STACK_LINE.search(head)
    died = _FATAL in head  # the last words of a process in its own log
    if first is not None and not died and _LOG_LINE.search(head) is None and head.count(b"\n", 0, first.start()) < 40:
        return "stacks"
    return "log"


def read_stacks(path: str, rank: int | None = None) -> RankStacks:
    """The threads of the last dump in the file; raises InputError where it holds none. The main thread is the one that
    the file's first line or the dump names so; faulthandler lists it last."""
    if (threads := _json_threads(path)) is None:
        threads = _last_dump(path)
    if not threads:
        raise FileError(path, "holds no stacks; dump them with py-spy dump --pid PID, or faulthandler")
    return RankStacks(rank, path, tuple(threads))


def rank_of_process(head: bytes) -> int | None:
    """The rank that the command line or a comment of a dump tells: '--local_rank=1', 'RANK=1', '# rank 3, pid 7'."""
    told = _RANK_OF_PROCESS.search(head[:_OF_PROCESS])
    return None if told is None else int(told[1])


def stacks_in_log(path: str, rank: int | None = None) -> RankStacks | None:
    """The last dump of all threads within a log, of a process that went on: a server's watchdog, a signal. Python's own
    last words are none: they belong to what ended it. Raises InputError where the file cannot be read."""
    if not any(_DUMP_IN_LOG.search(block) is not None for _, block in blocks_with(path, _OF_DUMPS)):
        return None
    threads = tuple(_last_dump(path))
    return RankStacks(rank, path, threads) if threads else None


def _begins_dump(line: str) -> bool:
    found = _FAULT_START.match(line) or _PYSPY_PROCESS.match(line) or (line.startswith("# ") and _MAIN.match(line))
    return bool(found)


def _kept(best: Dump, dump: Dump, main: int | None) -> Dump:
    """The later dump, unless it has no frames, or lacks the main thread that the one before has."""
    if not any(thread.frames for thread in dump.threads):
        return best
    cut_off = main is not None and best.has(main) and not dump.has(main)  # while it was written
    return best if cut_off else dump


def _last_dump(path: str) -> list[ThreadStack]:
    """Dumps follow each other in a file; the last one with frames counts, with the main thread if any has it."""
    main: int | None = None
    current, best = Dump(), Dump()
    for _, said in text_lines(path):
        line = _plain(said)
        thread = _thread(line)
        if _begins_dump(line) or (thread is not None and thread.number is not None and current.has(thread.number)):
            best, current = _kept(best, current, main), Dump()
        if line.startswith("# ") and (told := _MAIN.match(line)) is not None:
            main = int(told[1], 0)
        elif thread is not None:
            if len(current.threads) < _MOST_THREADS:
                current.add(thread)
        elif (told := _FAULT_STACK.match(line)) is not None:
            if told[1].lower() == "stack":
                current.add(Thread(None, None, "fault"))
            else:  # Python 3.14 goes on with the C frames of the current thread
                current.open = False
        elif not current.threads and line.startswith("#0 ") and (frame := _frame(line, "gdb")) is not None:
            current.add(Thread(None, None, "gdb", first=True))
            current.threads[-1].frames.append(frame)
        elif current.open and len(frames := current.threads[-1].frames) < _MOST_FRAMES:
            frame = _frame(line, current.threads[-1].writer)
            if frame is not None:
                frames.append(frame)
    return _kept(best, current, main).stacks(main)


def _plain(line: str) -> str:
    """A line of a dump without what a collector or a server put before it."""
    return line if line[:1] in (" ", "") or line.startswith(_BEGINNINGS) else without_prefixes(line)


def _thread(line: str) -> Thread | None:
    """The thread that a line announces."""
    if not line.startswith(("Thread ", "Current thread ")):
        return None
    if (match := _FAULT_THREAD.match(line)) is not None:
        return Thread(int(match[2], 16), match[3], "fault", current=match[1] == "Current thread")
    if (match := _PYSPY_THREAD.match(line)) is not None:
        return Thread(int(match[1], 0), match[3], "py-spy")
    if (match := _GDB_THREAD.match(line)) is not None:
        thread = int(match[2], 16) if match[2] else int(match[3])
        return Thread(thread, match[4], "gdb", first=match[1] == "1")
    return None


def _frame(line: str, writer: str) -> Frame | None:
    if writer == "fault":
        match = _FAULT_FRAME.match(line)
        return None if match is None else Frame(match[3], match[1], _number(match[2]))
    if writer == "gdb":
        if (match := _GDB_FRAME.match(line)) is None:
            return None
        # 'ncclAllReduce (sendbuff=0x7f…) from /usr/lib/libnccl.so.2' or '… at src/enqueue.cc:12'
        for word in (" at ", " from "):
            before, found, place = match[1].rpartition(word)
            if found and before.endswith(")"):
                return _frame_at(match[1].partition(" (")[0], place)
        return Frame(match[1].partition(" (")[0], "")
    # From ' step (train.py:12)' or ' clock_nanosleep (libc.so.6)'; local variables are indented further.
    if not line.startswith("    ") or line[4:5].isspace() or not line.rstrip().endswith(")"):
        return None
    function, _, place = line.strip()[:-1].rpartition(" (")
    return _frame_at(function, place) if function and place else None


def _frame_at(function: str, place: str) -> Frame:
    """place: 'train.py:12', or a file alone."""
    file, _, number = place.rpartition(":")
    return Frame(function, file, _number(number)) if file and number.isdecimal() else Frame(function, place)


def _number(text: str) -> int | None:
    """A line number; faulthandler writes ??? for one it does not know, py-spy 0 for native frames."""
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else None


def _json_threads(path: str) -> list[ThreadStack] | None:
    """py-spy's --json; None where the file is something else."""
    with open_binary(path) as file:
        head = file.read(_HEAD)
        if not _is_pyspy_json(head):
            return None
        data = head + file.read(_JSON_LIMIT)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"is not whole JSON ({error}); dump the stacks again") from error
    if not isinstance(document, list):
        return []
    dump = Dump([thread for row in document[:_MOST_THREADS] if (thread := _json_thread(row)) is not None])
    return dump.stacks(None)


def _json_thread(row: Any) -> Thread | None:
    if not isinstance(row, dict) or not isinstance(row.get("frames"), list):
        return None
    name, os_thread = row.get("thread_name"), row.get("os_thread_id")
    thread = Thread(
        os_thread if isinstance(os_thread, int) else None,
        name if isinstance(name, str) else None,
        "py-spy",
        first=isinstance(os_thread, int) and os_thread == row.get("pid"),
    )
    for frame in row["frames"][:_MOST_FRAMES]:
        if isinstance(frame, dict) and isinstance(frame.get("name"), str):
            file, line = frame.get("filename"), frame.get("line")
            native = isinstance(file, str) and is_native_file(file)
            number = line if isinstance(line, int) and line > 0 and not native else None
            thread.frames.append(Frame(frame["name"], file if isinstance(file, str) else "", number))
    return thread


def _is_pyspy_json(head: bytes) -> bool:
    return head.lstrip()[:1] == b"[" and b'"frames"' in head and (b'"thread_id"' in head or b'"pid"' in head)


def _is_binary(head: bytes) -> bool:
    """Whether bytes are no text: NULs, but for the hole in a log cut while open, or many control bytes."""
    head = _HOLE.sub(b"", head)
    if head.count(b"\0") * 200 > len(head):
        return True
    odd = sum(head.count(bytes([code])) for code in range(1, 32) if code not in (7, 8, 9, 10, 12, 13, 27))
    return odd * 20 > len(head)
