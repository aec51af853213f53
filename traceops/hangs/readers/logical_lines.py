"""Messages that terminals, e-mails and C++ broke over several lines, as one line each, without quotation marks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import astuple
from itertools import product

from traceops.hangs.memory_message import memory_message
from traceops.hangs.readers.learned_prefixes import LearnedPrefixes
from traceops.hangs.readers.line_prefixes import plain, without_prefixes
from traceops.hangs.readers.log_rules import WORK
from traceops.hangs.readers.log_stalls import BY_RANK, RANK_LINE

_PREFIX = re.compile(r"(?:\[rank[ :]{0,2}\d{1,7}\]:? ?|\[[A-Za-z_-]{1,40}\d{1,7}\]: ?)")
# Of srun and mpirun: anything may begin with a number and a colon, so it is one where the line before has the same.
_LABEL = re.compile(r"^(?: {0,6}\d{1,7}: |\[\d{1,9},(?:mpirank:)?\d{1,7}(?:,[\w-]{1,60})?\]<std(?:out|err)>: ?)")
_TIMEOUT = ("Watchdog caught collective operation timeout", "WorkNCCL(")
_BEGUN = re.compile(r"Work[A-Z]{1,5}CCL\(SeqNum=\d{1,18}, OpType=\w{1,40},")  # its end is cut off
_TORN = re.compile(r"timeout:(?: W(?:o(?:r(?:k[A-Z]{0,5}\(?)?)?)?)?\s{0,8}$")
_MEMORY = "out of memory. Tried to allocate"
_MEMORY_WORDS = ("iB", "memory", "unallocated", "PyTorch", "capac", "PYTORCH", "pytorch.org")
# The message broken before it says how much: '… CUDA out of memory.', or by a narrow terminal within these words.
_MEMORY_TO_COME = re.compile(r"(?:CUDA|HIP|XPU) out(?: of(?: memory\.(?: Tried(?: to)?)?)?)?\s{0,8}$")
# How its sentences begin, on lines of their own behind whatever a logger puts there.
_MEMORY_SENTENCE = re.compile(
    r"Tried to allocate |GPU \d{1,4} has a total |Process \d{1,10} has |Including non-PyTorch |Of the allocated memory "
    r"|If reserved but unallocated |See documentation for Memory "
)
_MOST_OF_MEMORY = 16  # lines; each process on the GPU has a sentence
_NCCL = "NCCL error"
_NCCL_MORE = ("nccl", "Last error:")
# An exception whose message begins in the next line; or goes on there, '… because of the following error:'.
_TO_COME = re.compile(
    r"(?:Error|Exception|Error\(s\) in loading state_dict for \w{1,200}):\s{0,8}$"
    r"|^[A-Za-z_][\w.]{0,200}(?:Error|Exception): .{1,400}:\s{0,8}$"
)
# VS Code's debugger: the exception's name, its message in the next line.
_IN_EDITOR = re.compile(
    r"^(?:Exception has occurred|发生异常): ([A-Za-z_][\w.]{0,200})(?:\s{1,8}\(note: .{0,200}\))?\s{0,8}$"
)
# Ray's memory monitor says in the next line how much the node used.
_OF_RAY = "due to the node running low on memory."
_NODES_MEMORY = "Memory on the node"
_MOST = 5  # lines that are joined
_MOST_RANKS = 1 << 13  # of Horovod's list, a line each
_LONGEST = 2000  # characters of a line that may be joined


class LogicalLines:
    """Holds a line that begins a broken message until its rest has come."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._number = 0
        self._learned = LearnedPrefixes()

    @property
    def is_open(self) -> bool:
        return bool(self._held)

    def take(self, number: int, line: str) -> Iterator[tuple[int, str]]:
        """The whole lines that are ready, with the number of their first line."""
        said, line = line, self._learned.without(without_prefixes(plain(line)))
        if not line and "%|" in said:  # a progress bar, and nothing behind it
            return
        line = _IN_EDITOR.sub(r"\1:", line)
        if self._held:
            if self._continues(line):
                self._held.append(self._said_in(line))
                if len(self._held) >= self._most() or self._is_whole():
                    yield from self.flush()
                return
            yield from self.flush()
        if _begins(line):
            self._held, self._number = [line.rstrip()], number
        else:
            yield number, line

    def flush(self) -> Iterator[tuple[int, str]]:
        """What is held, whole or not."""
        if self._held:
            yield self._number, _joined(self._held)
            self._held = []

    def _continues(self, line: str) -> bool:
        first = self._held[0]
        own = line[: _end_of_labels(line)]
        if len(line) > _LONGEST or (own and own.rstrip() != first[: _end_of_labels(first)].rstrip()):
            return False
        body = line[_own_length(first, line) :]
        if not body.strip():
            return False
        if first.endswith(BY_RANK):
            return RANK_LINE.match(body) is not None
        if _NCCL in first:
            return body.lstrip().startswith(_NCCL_MORE) or self._held[-1].endswith("Last error:")
        if first.endswith(_OF_RAY):
            return body.startswith(_NODES_MEMORY)
        if _is_to_come(first):
            return "Traceback" not in body
        if _is_of_memory(first):
            return self._continues_memory(body)
        return not any(words in body for words in _TIMEOUT[:1]) and "Traceback" not in body

    def _continues_memory(self, body: str) -> bool:
        """Whether the next of its words come, and none that it has said: another rank's do not belong to it."""
        text = " ".join(self._held)
        if "Traceback" in body or "out of memory" in body:
            return False
        if _MEMORY not in text:
            more = f"{text} {self._of_memory(body.strip())}"
            return _MEMORY in more or _MEMORY_TO_COME.search(more) is not None
        again = "Tried to allocate" in body or ("has a total capac" in body and "has a total capac" in text)
        return not again and any(word in body for word in _MEMORY_WORDS)

    def _said_in(self, line: str) -> str:
        """What a line adds: without who says it."""
        if (of_rank := RANK_LINE.match(line)) is not None:
            return of_rank[1]
        body = line[_own_length(self._held[0], line) :].strip()
        return self._of_memory(body) if _is_of_memory(self._held[0]) else body

    def _of_memory(self, body: str) -> str:
        sentence = _MEMORY_SENTENCE.search(body) if self._held[-1].endswith((".", ",")) else None
        return body if sentence is None else body[sentence.start() :]

    def _most(self) -> int:
        if self._held[0].endswith(BY_RANK):
            return _MOST_RANKS
        return _MOST_OF_MEMORY if _is_of_memory(self._held[0]) else _MOST

    def _is_whole(self) -> bool:
        first = self._held[0]
        if first.endswith(BY_RANK):
            return False
        text = " ".join(self._held)
        if _is_to_come(first) or first.endswith(_OF_RAY):
            return True
        if _NCCL in first:
            return len(self._held) > 2 and self._held[-2].endswith("Last error:")
        if _is_of_memory(first):
            return text.endswith(("environment-variables)", "CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
        return WORK.search(_joined(self._held)) is not None


def _own_length(first: str, line: str) -> int:
    """Of the labels of who says a line, where they are those of the first line: srun's, torch's, or both."""
    if (end := _end_of_labels(line)) > 0:
        return end
    label = _LABEL.match(first)
    if label is None or not line.startswith(label[0]):
        return 0
    both = _end_of_labels(first, label.end())
    return both if line.startswith(first[:both]) else label.end()


def _end_of_labels(line: str, begin: int = 0) -> int:
    """Where what is said begins, behind a launcher's label and torch's own: '[rank 1] [rank1]: '."""
    for _ in range(2):
        label = _PREFIX.match(line, begin)
        begin = begin if label is None else label.end()
    return begin


def _begins(line: str) -> bool:
    if len(line) > _LONGEST:
        return False
    if any(words in line for words in _TIMEOUT):
        return WORK.search(line) is None and ("WorkNCCL(" in line or _TORN.search(line) is not None)
    if _is_to_come(line) or line.rstrip().endswith((BY_RANK, _OF_RAY)):
        return True
    if _MEMORY in line:
        return memory_message(line).free is None or memory_message(line).unallocated is None
    if _MEMORY_TO_COME.search(line) is not None:
        return True
    return _NCCL in line and "NCCL version" in line


def _is_to_come(line: str) -> bool:
    """Whether an exception's message begins, or goes on, in the next line; behind labels too."""
    return line.rstrip().endswith(":") and _TO_COME.search(line[_end_of_labels(line) :]) is not None


def _joined(parts: list[str]) -> str:
    """The parts as one line: broken at a space, or within a word where only that makes a message of it."""
    if _is_of_memory(parts[0]):
        return _joined_memory(parts)
    spaced = " ".join(parts)
    if len(parts) < 2 or _TIMEOUT[1] not in spaced.replace(" ", "") or WORK.search(spaced) is not None:
        return spaced
    ways = [
        parts[0] + "".join(space + part for space, part in zip(glue, parts[1:], strict=True))
        for glue in product((" ", ""), repeat=len(parts) - 1)
    ]
    whole = (text for text in ways if WORK.search(text) is not None)
    begun = (text for text in ways if _BEGUN.search(text) is not None)
    return next(whole, None) or next(begun, spaced)


def _is_of_memory(first: str) -> bool:
    return _MEMORY in first or _MEMORY_TO_COME.search(first) is not None


def _joined_memory(parts: list[str]) -> str:
    """The parts broken at spaces, but within a number where only that lets it be read."""
    glue = [" "] * (len(parts) - 1)

    def text() -> str:
        return parts[0] + "".join(space + part for space, part in zip(glue, parts[1:], strict=True))

    def numbers() -> int:
        return sum(number is not None for number in astuple(memory_message(text())))

    for place in range(len(glue)):
        before, glue[place] = numbers(), ""
        if numbers() <= before:
            glue[place] = " "
    return text()
