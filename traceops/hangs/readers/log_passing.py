"""States that pass: a node that did not answer and was ready again, and lines that say they try again."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.log_steps import sightings
from traceops.traces.text_lines import blocks, holds_any, lines

# 'Connection refused, retrying (1/34)', 'out of memory, will retry with batch size 16'; not 'after retrying 5 times'.
_AGAIN = re.compile(
    r"(?<!after )(?<!not )(?<!stopped )(?<!without )"
    r"\b(?:retrying|trying again|will (?:be )?(?:retry|retried|try again))\b",
    re.IGNORECASE,
)
_MOST = 16
_WENT_ON = 50  # lines of other things: it was tried again with success, or what came of it is told by other lines
# fairseq's 'WARNING: ran out of memory with exception: …', behind a time or a bar: a batch was left out.
_WARNING = re.compile(r"[\s|\d:.,T\[-]{0,40}WARN(?:ING)?\b[\s|\]:]")
_NOT_READY = "NodeNotReady"
_NEEDLES = (b"NodeNotReady", b"NodeReady", b"deletion ", b"Ready ")
_NODE = re.compile(r"\bNode (\S{1,253}) (?:status is|event)|\bnode/(\S{1,253})")
_CONDITION = re.compile(r"^\s{1,20}Ready\s{2,40}(True|False|Unknown)\b")  # of kubectl describe: as it is now
_AGE = re.compile(r"(?:^|\s)((?:\d{1,5}[dhms]){1,3})(?=\s)")  # LAST SEEN, or Age
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_READY_AGAIN = re.compile(r"\bNodeReady\b|Cancelling deletion of Pod")
_DELETES = re.compile(r"Marking for deletion Pod|\bdeleting pod")


def tries_again(body: str) -> bool:
    """Whether a line says of what failed that it is tried again: by itself it ended nothing."""
    return _AGAIN.search(body) is not None


class Retried:
    """The last few lines on what failed and is tried again, behind which nothing says that it went well."""

    def __init__(self) -> None:
        self._found: deque[tuple[int, int | None, str]] = deque(maxlen=_MOST)

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


@dataclass(frozen=True)
class _Said:
    """A line of Kubernetes about a node; '' where it names none. age: seconds before the list was made."""

    line: int
    node: str
    age: int | None
    text: str

    def is_behind(self, other: _Said) -> bool:
        if self.age is not None and other.age is not None and self.age != other.age:
            return self.age < other.age
        return self.line > other.line


def without_passed(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, nodes that were ready again before a pod was deleted as 'passed'.

    Raises InputError where the file cannot be read.
    """
    if not any(_NOT_READY in event.text for event in events):
        return events
    said, now = _read(path)
    gone = [one for one in said if _NOT_READY in one.text]
    named = {one.node for one in gone if one.node}
    passed = {one.line for one in gone if now or _passed(one, said, named)}
    return tuple(
        replace(event, kind="passed") if event.line in passed and _NOT_READY in event.text else event
        for event in events
    )


def _passed(gone: _Said, said: list[_Said], named: set[str]) -> bool:
    """Whether the node came back, and nothing was deleted in between."""
    back = [
        one
        for one in said
        if _READY_AGAIN.search(one.text) and one.is_behind(gone) and _same(gone.node, one.node, named)
    ]
    return any(
        not any(_DELETES.search(one.text) and one.is_behind(gone) and again.is_behind(one) for one in said)
        for again in back
    )


def _same(gone: str, back: str, named: set[str]) -> bool:
    """Whether it is the same node; a line of a pod names none, and is of the only one that is told of."""
    if gone and back:
        return gone == back
    return len(named) <= 1


def _read(path: str) -> tuple[list[_Said], bool]:
    """What is told of nodes and pods, and whether kubectl describe says of all that they are ready now."""
    said: list[_Said] = []
    ready: set[str] = set()
    for number, body in _lines(path):
        if (condition := _CONDITION.match(body)) is not None:
            ready.add(condition[1])
        elif _NOT_READY in body or _READY_AGAIN.search(body) or _DELETES.search(body):
            node, age = _NODE.search(body), _AGE.search(body)
            said.append(
                _Said(
                    number, "" if node is None else node[1] or node[2], None if age is None else _seconds(age[1]), body
                )
            )
    return said, ready == {"True"}


def _lines(path: str) -> Iterator[tuple[int, str]]:
    for number, block in blocks(path):
        if holds_any(block, _NEEDLES):
            yield from lines(block, number)


def _seconds(age: str) -> int:
    return sum(int(part[:-1]) * _SECONDS[part[-1]] for part in re.findall(r"\d+[dhms]", age))
