"""Containers as kubectl tells of them: what ended one before it was started again, and how it is now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from traceops.hangs.evidence import LogEvent
from traceops.traces.text_lines import blocks, lines

# kubectl describe, and kubectl get -o yaml or json.
_LAST = re.compile(r'^(?P<indent> {1,80})"?(?:Last State|lastState)"?: ?')
_NOW = re.compile(r'^ {1,80}"?(?:State|state)"?: {0,40}(?P<value>[A-Za-z]{0,40})')
_RUNNING = re.compile(r"\brunning\b", re.IGNORECASE)
_DONE = re.compile(r'\bCompleted\b|"?[eE]xit ?[cC]ode"?: {1,40}0\b')
_WAITING = re.compile(r'\b[rR]eason"?: {1,40}"?(?P<reason>[A-Za-z]{1,60})')
_RESTARTS = re.compile(r'^ {1,80}"?(?:Restart Count|restartCount)"?: {1,40}(?P<count>\d{1,9})')
_CODE = re.compile(r'"?[eE]xit ?[cC]ode"?: {1,40}(?P<code>\d{1,3})')
_FINISHED = re.compile(r'"?[fF]inished(?:At)?"?: {1,40}"?(?P<when>[^"\n]{1,60}?)"?,?\s*$')
_NAME = re.compile(r'^ {1,80}(?:- )?"?name"?: {1,40}"?(?P<name>[\w.-]{1,80})')
_HEADING = re.compile(r"^ {1,8}(?P<name>[\w.-]{1,80}):\s*$")
_WORDS = ("Last State:", "lastState")
_MOST_BYTES = 1 << 24
_Now = Literal["running", "completed", "waiting", "ended"]


@dataclass(frozen=True)
class _LastState:
    """The lines of what a container's last state was, and of its reason; how it is now, and what else is said."""

    lines: range
    reason: int | None
    now: _Now
    text: str


def with_pod_states(path: str, events: tuple[LogEvent, ...]) -> tuple[LogEvent, ...]:
    """The events of a log, with what ended a container before its last start told as that.

    A container that runs again or is done is over it: 'passed'. Raises InputError where the file cannot be read.
    """
    ends = [event for event in events if event.kind in ("error", "memory", "exit")]
    text = _text(path) if ends else []
    states = list(_last_states(text)) if any(any(map(line.__contains__, _WORDS)) for line in text) else []
    lines_of = {event.line for event in ends}
    return tuple(told for event in events if (told := _told(event, states, lines_of)) is not None)


def _told(event: LogEvent, states: Sequence[_LastState], ends: set[int]) -> LogEvent | None:
    """The event with its container's state; None of a second line of the same end. ends: lines that tell of one."""
    state = next((state for state in states if event.line in state.lines), None)
    if state is None or event.kind in ("trouble", "status"):
        return event
    if state.reason in ends and event.line != state.reason:
        return None  # its exit code is in the text of the reason
    text = f"{event.text.strip()}: {state.text}"
    return replace(event, text=text) if state.now == "waiting" else replace(event, text=text, kind="passed")


def _text(path: str) -> list[str]:
    found: list[str] = []
    size = 0
    for number, block in blocks(path):
        found += [line for _, line in lines(block, number)]
        size += len(block)
        if size > _MOST_BYTES:
            return []
    return found


def _last_states(text: Sequence[str]) -> Iterator[_LastState]:
    for place, line in enumerate(text):
        if (last := _LAST.match(line)) is not None and "{}" not in line:
            yield _state(text, place, len(last["indent"]))


def _state(text: Sequence[str], place: int, indent: int) -> _LastState:
    end = _end_of(text, place, indent)
    first, behind = _container(text, place, indent)
    own = text[place:end]
    now = next((at for at in range(first, behind) if _is_now(text[at], indent)), None)
    said = [] if now is None else text[now : _end_of(text, now, indent)]
    how, waits_for = _how(said)
    reason = next((place + 1 + at for at, line in enumerate(own) if _WAITING.search(line)), None)
    told = _words(text[first:behind], own, how, waits_for)
    return _LastState(range(place + 1, end + 1), reason, how, told)


def _is_now(line: str, indent: int) -> bool:
    return _NOW.match(line) is not None and _indent(line) == indent


def _indent(line: str) -> int:
    """Of a line's key; a list's mark counts as indentation."""
    return len(line) - len(line.lstrip(" -" if line.lstrip(" ").startswith("- ") else " "))


def _end_of(text: Sequence[str], place: int, indent: int) -> int:
    """Where the block that a key begins ends."""
    return next(
        (at for at in range(place + 1, len(text)) if text[at].strip() and _indent(text[at]) <= indent), len(text)
    )


def _container(text: Sequence[str], place: int, indent: int) -> tuple[int, int]:
    """The lines of the container that has the last state at `place`, from its heading or mark of a list on."""
    first = place
    while first > 0 and not _begins(text[first], indent):
        first -= 1
    behind = next((at for at in range(place + 1, len(text)) if _begins(text[at], indent)), len(text))
    return first, behind


def _begins(line: str, indent: int) -> bool:
    """Whether a container's lines begin here, or those of another part."""
    outer = len(line) - len(line.lstrip(" "))
    return bool(line.strip()) and (outer < indent)


def _how(said: Sequence[str]) -> tuple[_Now, str]:
    text = "\n".join(said)
    if said and _RUNNING.search(text) is not None:
        return "running", ""
    if _DONE.search(text) is not None:
        return "completed", ""
    if "erminated" in text:
        return "ended", ""
    reason = _WAITING.search(text)
    return "waiting", "" if reason is None else reason["reason"]


def _words(container: Sequence[str], own: Sequence[str], how: _Now, waits_for: str) -> str:
    """'the last state of container pytorch, exit code 137, finished …; it runs again, after 3 restarts'."""
    heading = _HEADING.match(container[0]) if container else None
    named = heading or next((match for line in container if (match := _NAME.match(line)) is not None), None)
    code = next((match for line in own if (match := _CODE.search(line)) is not None), None)
    finished = next((match for line in own if (match := _FINISHED.search(line)) is not None), None)
    restarts = next((match for line in container if (match := _RESTARTS.match(line)) is not None), None)
    parts = ["the last state of a container" if named is None else f"the last state of container {named['name']}"]
    parts += [f"exit code {code['code']}"] if code is not None else []
    parts += [f"finished {finished['when']}"] if finished is not None else []
    now = {
        "running": "it runs again",
        "completed": "it has completed since",
        "ended": "it was started again and ended once more",
        "waiting": f"now it waits ({waits_for})" if waits_for else "how it is now is not told",
    }[how]
    count = f", restarts: {restarts['count']}" if restarts is not None else ""
    return f"{', '.join(parts)}; {now}{count}; kubectl logs --previous has its last lines"
