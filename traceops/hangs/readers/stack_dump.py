"""One dump of all threads of a process while it is being read, and which of them is the main one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from traceops.hangs.evidence import Frame, ThreadStack


@dataclass
class Thread:
    """A thread as its writer tells it; `first` where gdb or the process id says that it is the main one."""

    number: int | None
    name: str | None
    writer: Literal["fault", "py-spy", "gdb"]
    current: bool = False
    first: bool = False
    frames: list[Frame] = field(default_factory=list)


@dataclass
class Dump:
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
