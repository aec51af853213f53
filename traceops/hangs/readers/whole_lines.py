"""The lines of a log that are worth a look, whole: those that terminals, e-mails or C++ broke are joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from pathlib import Path

from msgspec.structs import astuple

from traceops.core.text import by_shape
from traceops.hangs.crashes import memory_message
from traceops.hangs.readers.messages import BY_RANK, RANK_LINE, WORK
from traceops.hangs.readers.prefixes import LearnedPrefixes, common_prefix, host_prefix, plain, without_prefixes
from traceops.traces.text_index import Block, Words, edge_blocks, indexed
from traceops.traces.text_lines import lines, words_in
from traceops.words.catalogue import grammar

_GRAMMAR = grammar("whole_lines")
_NARROWEST, _WIDEST = 50, 400  # characters
_FRAME = re.compile(r"\s{0,40}File \"")
_WHOLE = re.compile(r"\s{0,40}File \"[^\"]{1,4096}\", line \d{1,9}(?:, in .{1,400})?$")
_TO_NAME = re.compile(r"\s{0,40}File \"[^\"]{1,4096}\", line \d{1,9}, in \S{1,400}$")
_MOST_OF_FRAME = 4  # lines
# What begins a line, and continues none.
_BEGINS = re.compile(_GRAMMAR["begins"])


def unwrapped(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Numbered lines, those that were broken as one, with the number of the first; else unchanged."""
    bodies = [without_prefixes(line) for _, line in lines]  # as an e-mail quotes it
    if (wrap := _wrap_of(bodies)) is None:
        yield from lines
        return
    at, glue = wrap
    held: tuple[int, str] | None = None
    last = ""
    for (number, _), line in zip(lines, bodies, strict=True):
        if held is not None and _continues(last, line, at, glue):
            held = held[0], f"{held[1]}{glue}{line}"
        else:
            if held is not None:
                yield held
            held = number, line
        last = line
    if held is not None:
        yield held


def _wrap_of(lines: Sequence[str]) -> tuple[int, str] | None:
    """The longest line, and what stood where lines were broken, a space or nothing: frames are whole only joined."""
    widest = max(map(len, lines), default=0)
    if not _NARROWEST <= widest <= _WIDEST:
        return None
    hard = word = 0
    for at, line in enumerate(lines):
        if _FRAME.match(line) is None or _WHOLE.match(line) is not None:
            continue
        following = lines[at + 1 : at + _MOST_OF_FRAME]
        if len(line) == widest and _is_frame(line, following, ""):
            hard += 1
        elif _is_frame(line, following, " ") and len(line) + 1 + _first_word(following[0]) > widest:
            word += 1
    return (widest, "" if hard >= word else " ") if hard or word else None


def _is_frame(line: str, following: Sequence[str], glue: str) -> bool:
    for more in following:
        if not more.strip() or _BEGINS.match(more) is not None:
            return False
        line = f"{line}{glue}{more}"
        if _TO_NAME.match(line) is not None:
            return True
    return False


def _first_word(line: str) -> int:
    return len(line.split(None, 1)[0]) if line.strip() else 0


def _continues(last: str, line: str, at: int, glue: str) -> bool:
    if not line.strip() or _BEGINS.match(line) is not None or len(set(last)) < 5:  # a rule is no text
        return False
    if not glue:
        return len(last) == at
    return not line[0].isspace() and bool(last.strip()) and len(last) + 1 + _first_word(line) > at


# Messages that terminals, e-mails and C++ broke over several lines, as one line each, without quotation marks.

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
_MEMORY_SENTENCE = re.compile(_GRAMMAR["memory_sentence"])
_MOST_OF_MEMORY = 16  # lines; each process on the GPU has a sentence
_NCCL = "NCCL error"
_NCCL_MORE = ("nccl", "Last error:")
# An exception whose message begins in the next line; or goes on there, '… because of the following error:'.
_TO_COME = re.compile(_GRAMMAR["to_come"])
# VS Code's debugger: the exception's name, its message in the next line.
_BY_EDITOR = ("Exception has occurred: ", "发生异常: ")
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
        if line.startswith(_BY_EDITOR):
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
    if (label := _LABEL.match(first)) is None or not line.startswith(label[0]):
        return 0
    both = _end_of_labels(first, label.end())
    return both if line.startswith(first[:both]) else label.end()


def _end_of_labels(line: str, begin: int = 0) -> int:
    """Where what is said begins, behind a launcher's label and torch's own: '[rank 1] [rank1]: '."""
    for _ in range(2):
        label = _PREFIX.match(line, begin)
        begin = begin if label is None else label.end()
    return begin


@by_shape
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


_SAMPLE = 1 << 15  # bytes
_EDGE, _LAST = 16, 4  # blocks
_PASTE = 1 << 18  # bytes; a file up to this is read whole, whatever it holds


def relevant_lines(path: str, words: Words, busy: Callable[[], bool]) -> Iterator[tuple[int, str, bool]]:
    """Numbered lines; those of a paste without the spaces that all of them begin with, those of hosts without names.
    Beside each: whether one of the words may stand in it. In a large log a block with one is rare, and few of its lines
    hold it. busy: whether the next lines matter, whatever they hold. Raises InputError where the file cannot be
    read."""
    file = Path(path)
    is_paste = file.is_file() and file.stat().st_size <= _PASTE
    indent = None if is_paste else 0
    passed: Block | None = None
    prefix: re.Pattern[str] | None = None
    first = True
    for place in indexed(path):
        if not first and not is_paste and not place.holds(words) and not busy():
            passed = place
            continue
        passed = None
        number, block = place.number, place.data()
        if indent is None:
            indent = _indent(block)
        if first:
            first, sample = False, [line for _, line in lines(block[:_SAMPLE], number)]
            prefix = host_prefix(sample) or common_prefix([line[indent:] for line in sample])
        cut = ((at, line[indent:] if indent and line[:indent].isspace() else line) for at, line in lines(block, number))
        own = ((at, line if prefix is None else prefix.sub("", line, count=1)) for at, line in cut)
        if is_paste:
            yield from ((at, line, True) for at, line in unwrapped(list(own)))
            continue
        if not place.holds(words) and not busy():
            passed = place
            continue
        # An escape may stand within a word.
        found = None if b"\x1b" in block else [word.decode() for word in words_in(block, words.words)]
        for at, line in own:
            yield at, line, found is None or any(map(line.__contains__, found))
    for at, line in lines(passed.data(), passed.number) if passed is not None else ():
        yield at, line if prefix is None else prefix.sub("", line, count=1), True


def ends_of(path: str) -> Iterator[tuple[int, bytes]]:
    """The blocks at a log's beginning and at its end: of a log of a few megabytes all."""
    return ((block.number, block.data()) for block in edge_blocks(path, _EDGE, _EDGE))


def last_blocks(path: str) -> Iterator[tuple[int, bytes]]:
    """The blocks at a log's end."""
    return ((block.number, block.data()) for block in edge_blocks(path, 0, _LAST))


def _indent(block: bytes) -> int:
    """By how much all lines are indented, as people paste them."""
    return min((len(line) - len(line.lstrip(b" \t")) for line in block.splitlines() if line.strip()), default=0)


NEWEST_FIRST = (
    "has its newest line first: read it oldest first (gcloud logging read --order=asc; where each message is one line, "
    "tac FILE turns it round)"
)
# A time with its second's parts: of whole seconds many lines have the same.
_TIME = re.compile(
    rb"^[^\n\r]{0,60}?\b(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?:Z|[+-]\d\d:?\d\d|\b)", re.MULTILINE
)
_FEWEST = 5  # times that differ from the one before
_SHARE = 0.9


def is_newest_first(head: bytes) -> bool:
    """Whether nearly each time in the lines of a log's begin is before the one above it."""
    times = [(match[1], match[2], (match[3] or b"").ljust(9, b"0")) for match in _TIME.finditer(head)]
    moves = [after < before for before, after in pairwise(times) if after != before]
    return len(moves) >= _FEWEST and sum(moves) >= _SHARE * len(moves) and times[-1] < times[0]
