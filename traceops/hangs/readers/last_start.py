"""A log's last start: its events with what became of each, containers and nodes that recovered among them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import first_phrase
from traceops.hangs.crashes import crash_kind
from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.hang_log import Starts, read_starts
from traceops.hangs.readers.steps import clock_of
from traceops.hangs.readers.went_on import with_ends, without_aftermath, without_outlived, without_requests
from traceops.hangs.readers.whole_lines import last_blocks
from traceops.traces.text_index import Words, blocks_with, holds, indexed
from traceops.traces.text_lines import blocks, lines

_NOT_READY = "NodeNotReady"
_OF_NODES = Words(b"NodeNotReady", b"NodeReady", b"deletion ", b"deleting pod", b"Ready ")
_NODE = re.compile(r"\bNode (\S{1,253}) (?:status is|event)|\bnode/(\S{1,253})")
_CONDITION = re.compile(r"^\s{1,20}Ready\s{2,40}(True|False|Unknown)\b")  # of kubectl describe: as it is now
_AGE = re.compile(r"(?:^|\s)((?:\d{1,5}[dhms]){1,3})(?=\s)")  # LAST SEEN, or Age
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_READY_AGAIN = re.compile(r"\bNodeReady\b|Cancelling deletion of Pod")
_DELETES = re.compile(r"Marking for deletion Pod|\bdeleting pod")


class _Said(Struct, frozen=True):
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
    """The events of a log, nodes that were ready again before a pod was deleted as 'passed'. Raises InputError where
    the file cannot be read."""
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
    """Whether the node came back before anything was deleted. A pod's line names no node: it is of the only one."""
    for again in said:
        same_node = gone.node == again.node if gone.node and again.node else len(named) <= 1
        if not (_READY_AGAIN.search(again.text) and again.is_behind(gone) and same_node):
            continue
        if not any(_DELETES.search(one.text) and one.is_behind(gone) and again.is_behind(one) for one in said):
            return True
    return False


def _read(path: str) -> tuple[list[_Said], bool]:
    """The lines on nodes and pods, and whether kubectl describe says of all that they are ready now."""
    said: list[_Said] = []
    ready: set[str] = set()
    for first, block in blocks_with(path, _OF_NODES):
        for number, body in lines(block, first):
            if (condition := _CONDITION.match(body)) is not None:
                ready.add(condition[1])
            elif _NOT_READY in body or _READY_AGAIN.search(body) or _DELETES.search(body):
                node, age = _NODE.search(body), _AGE.search(body)
                parts = [] if age is None else re.findall(r"\d+[dhms]", age[1])
                seconds = sum(int(part[:-1]) * _SECONDS[part[-1]] for part in parts)
                name = "" if node is None else node[1] or node[2]
                said.append(_Said(number, name, None if age is None else seconds, body))
    return said, ready == {"True"}


# Containers as kubectl tells of them: what ended one before it was started again, and how it is now.

# kubectl describe, and kubectl get -o yaml or json.
_LAST = re.compile(r'^(?P<indent> {1,80})"?(?:Last State|lastState)"?: ?')
_NOW = re.compile(r'^ {1,80}"?(?:State|state)"?: {0,40}(?P<value>[A-Za-z]{0,40})')
_RUNNING = re.compile(r"\brunning\b", re.IGNORECASE)
_DONE = re.compile(r'\bCompleted\b|"?[eE]xit ?[cC]ode"?: {1,40}0\b')
_WAITING = re.compile(r'\b[rR]eason"?: {1,40}"?(?P<reason>[A-Za-z]{1,60})')
_RESTARTS = re.compile(r'^ {1,80}"?(?:Restart Count|restartCount)"?: {1,40}(?P<count>\d{1,9})')
_CODE = re.compile(r'"?[eE]xit ?[cC]ode"?: {1,40}(?P<code>\d{1,3})')
_FINISHED = re.compile(r'"?[fF]inished(?:At)?"?: {1,40}"?(?P<when>[^"\n]{1,60}?)"?,?\s{0,40}$')
_NAME = re.compile(r'^ {1,80}(?:- )?"?name"?: {1,40}"?(?P<name>[\w.-]{1,80})')
_HEADING = re.compile(r"^ {1,8}(?P<name>[\w.-]{1,80}):\s{0,40}$")
_OF_PODS = Words(b"Last State:", b"lastState")
_MOST_BYTES = 1 << 24
_Now = Literal["running", "completed", "waiting", "ended"]


class _LastState(Struct, frozen=True):
    """The lines of what a container's last state was, and of its reason; how it is now, and what else is said."""

    lines: range
    reason: int | None
    now: _Now
    text: str


def with_pod_states(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, with what ended a container before its last start told as that. A container that runs again
    or is done is over it: 'passed'. Raises InputError where the file cannot be read."""
    ends = {event.line for event in events if event.kind in ("error", "memory", "exit")}
    text = _text(path) if ends and holds(path, _OF_PODS) else []
    lasts = ((place, _LAST.match(line)) for place, line in enumerate(text) if "{}" not in line)
    states = [_state(text, place, len(last["indent"])) for place, last in lasts if last is not None]
    found = []
    for event in events:
        state = next((state for state in states if event.line in state.lines), None)
        if state is None or event.kind in ("trouble", "status"):
            found.append(event)
        elif state.reason not in ends or event.line == state.reason:  # else its exit code is in the text of the reason
            kind = event.kind if state.now == "waiting" else "passed"
            found.append(replace(event, text=f"{event.text.strip()}: {state.text}", kind=kind))
    return tuple(found)


def _text(path: str) -> list[str]:
    found: list[str] = []
    size = 0
    for number, block in blocks(path):
        found += [line for _, line in lines(block, number)]
        size += len(block)
        if size > _MOST_BYTES:
            return []
    return found


def _state(text: Sequence[str], place: int, indent: int) -> _LastState:
    end = _end_of(text, place, indent)
    # the lines of the container that has the last state at `place`, from its heading or mark of a list on
    first = place
    while first > 0 and not _begins(text[first], indent):
        first -= 1
    behind = next((at for at in range(place + 1, len(text)) if _begins(text[at], indent)), len(text))
    now = next((at for at in range(first, behind) if _NOW.match(text[at]) and _indent(text[at]) == indent), None)
    own = text[place:end]
    how, said = _words(text[first:behind], own, [] if now is None else text[now : _end_of(text, now, indent)])
    reason = next((place + 1 + at for at, line in enumerate(own) if _WAITING.search(line)), None)
    return _LastState(range(place + 1, end + 1), reason, how, said)


def _indent(line: str) -> int:
    """Of a line's key; a list's mark counts as indentation."""
    return len(line) - len(line.lstrip(" -" if line.lstrip(" ").startswith("- ") else " "))


def _end_of(text: Sequence[str], place: int, indent: int) -> int:
    """Where the block that a key begins ends."""
    return next(
        (at for at in range(place + 1, len(text)) if text[at].strip() and _indent(text[at]) <= indent), len(text)
    )


def _begins(line: str, indent: int) -> bool:
    """Whether a container's lines begin here, or those of another part."""
    return bool(line.strip()) and len(line) - len(line.lstrip(" ")) < indent


def _words(container: Sequence[str], own: Sequence[str], now: Sequence[str]) -> tuple[_Now, str]:
    """How a container is now, and 'the last state of container pytorch, exit code 137, …; it runs again, …'."""
    text = "\n".join(now)
    how: _Now = "waiting"
    if _RUNNING.search(text) is not None:
        how = "running"
    elif _DONE.search(text) is not None:
        how = "completed"
    elif "erminated" in text:
        how = "ended"
    waits_for = _WAITING.search(text) if how == "waiting" else None
    heading = _HEADING.match(container[0]) if container else None
    named = heading or next((match for line in container if (match := _NAME.match(line)) is not None), None)
    code = next((match for line in own if (match := _CODE.search(line)) is not None), None)
    finished = next((match for line in own if (match := _FINISHED.search(line)) is not None), None)
    restarts = next((match for line in container if (match := _RESTARTS.match(line)) is not None), None)
    return how, first_phrase(
        "hangs",
        "container",
        "last",
        name=named["name"] if named is not None else None,
        code=code["code"] if code is not None else None,
        finished=finished["when"] if finished is not None else None,
        now=how,
        waits_for=waits_for["reason"] if waits_for is not None else "",
        restarts=restarts["count"] if restarts is not None else None,
    )


# Only torch's own prefix, '[rank3]:', behind a time or a host at most: it counts the ranks of the job.
_LINE = re.compile(rb"(?:^|\r)(?:[\w.,/:+-]{1,60} ){0,2}\[rank(\d{1,7})\]:? ?([^\r\n]{1,400})", re.MULTILINE)
_RANK = re.compile(rb"\[rank(\d{1,7})\]")
_OF_RANKS = Words(b"[rank")
_MOST = 1 << 12  # ranks


def last_lines(path: str) -> tuple[LogEvent, ...]:
    """The last line of each rank, as 'said', with the time of day in it, in order of ranks. Raises InputError where the
    file cannot be read."""
    last: dict[int, int] = {}  # the first line of the last block that names a rank
    for number, block in blocks_with(path, _OF_RANKS):
        for rank in map(int, set(_RANK.findall(block))):
            if rank in last or len(last) < _MOST:
                last[rank] = number
    found: dict[int, LogEvent] = {}
    for piece in indexed(path):
        if piece.number not in last.values():
            continue
        block, line, at = piece.data(), piece.number, 0
        for match in _LINE.finditer(block):
            if (rank := int(match[1])) in last:
                line, at = line + block.count(b"\n", at, match.start(1)), match.start(1)
                text = match[2].decode(errors="replace").strip()
                found[rank] = LogEvent("said", rank, path, line, text, clock=clock_of(match[0]))
    return tuple(found[rank] for rank in sorted(found))


def last_line(path: str, rank: int) -> tuple[LogEvent, ...]:
    """The last line of a rank's own log, as 'said'; empty where it has none. Raises InputError as `last_lines`."""
    said = [(at, line) for number, block in last_blocks(path) for at, line in lines(block, number) if line.strip()]
    return tuple(
        LogEvent("said", rank, path, at, line.strip(), clock=clock_of(line.encode(errors="replace")))
        for at, line in said[-1:]
    )


# 'OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 2, reducing to 1' (DeepSpeed), 'gradient overflow detected,
# ignoring gradient, setting loss scale to: 0.25' (fairseq), 'Gradient overflow.  Skipping step, …' (apex).
_SKIPPED = re.compile(r"(?:gradient )?overflow\b.{0,80}\bloss scal.{0,60}", re.IGNORECASE)
_OVERFLOWS = Words(b"verflow", b"VERFLOW")
_MOST_OVERFLOWS = 3


def _last_skipped(path: str, since: int, end: int) -> tuple[tuple[int, str], ...]:
    found: deque[tuple[int, str]] = deque(maxlen=_MOST_OVERFLOWS)
    for number, block in blocks_with(path, _OVERFLOWS):
        if number >= end:
            break
        for at, line in lines(block, number):
            if since < at < end and (skipped := _SKIPPED.search(line)) is not None:
                found.append((at, " ".join(skipped[0].split())))
    return tuple(found)


def read_last_start(path: str, rank: int | None = None) -> tuple[tuple[LogEvent, ...], Starts]:
    """The events of the last start that the log tells of, and by start those of the ones before it. rank: whose the
    lines are that name none. Raises InputError where the file cannot be read."""
    events, earlier = read_starts(path, rank)
    for judged in (without_requests, without_outlived, with_ends, without_aftermath, without_passed, with_pod_states):
        events = judged(path, events)
    since = max((event.line for start in earlier for event in start), default=0)
    # the events of a loss scaler at its minimum get the last overflows before them, none of an earlier start
    ends = [event.line for event in events if event.kind == "error" and crash_kind(event.text) == "loss_scale"]
    if ends:
        last = _last_skipped(path, since, min(ends))
        events = tuple(
            replace(event, before=last) if event.kind == "error" and event.line in ends else event for event in events
        )
    return events, earlier
