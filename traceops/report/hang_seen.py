"""What logs show of failures, whether or not it is a cause: nothing that was read and classified is left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceops.core.claims import first_phrase
from traceops.hangs.evidence import LogEvent
from traceops.hangs.job import how_to_bring
from traceops.hangs.model import Diagnosis, Root
from traceops.hangs.readers.messages import OF_RAY
from traceops.words.catalogue import rows

_MOST_LINES = 8
# Warnings of NCCL, RCCL and their plugins that healthy jobs print.
_HARMLESS = (
    "NET/OFI Only EFA provider is supported", "aws-ofi-nccl initialization failed", "Failed to open libibverbs.so",
    "NUMA auto balancing enabled", 'Missing "iommu=pt"', "Unable to open device mlx5", "MSCCL++: Cannot initialize",
)  # fmt: skip
# What a launcher says and does once something else has failed.
_AFTERWARDS = ("closing signal", "ChildFailedError")


def seen_events(diagnosis: Diagnosis) -> list[LogEvent]:
    """Lines that show trouble: all that were classified but how far ranks have come and what the causes quote."""
    crashes = [root.crash for root in diagnosis.roots if root.crash is not None]
    told = {
        event for crash in crashes for event in crash.events if _without_numbers(event) == _without_numbers(crash.event)
    }
    quoted = {what for root in diagnosis.roots for what, _ in root.evidence}
    return [
        event
        for event in diagnosis.evidence.log
        if event.kind not in ("status", "said")
        and event not in told
        and f"{event.path}:{event.line}" not in quoted
        and not any(_is_end_of(event, root) for root in diagnosis.roots)
    ]


def is_harmless(event: LogEvent) -> bool:
    """Whether it is NCCL's warning of what healthy jobs have too, or one after which the program went on."""
    known = any(words in event.text for words in _HARMLESS)
    return (event.kind == "nccl" and known) or (event.was == "nccl" and "NCCL WARN" in event.text)


def was_logged_only(event: LogEvent) -> bool:
    """Whether it is a line that calls itself an error, after which its logger goes on."""
    return event.kind == "outlived" and event.was == "trouble"


def _without_numbers(event: LogEvent) -> str:
    return "".join(char for char in event.text if not char.isdecimal())


def _is_end_of(event: LogEvent, root: Root) -> bool:
    """Whether a launcher's line on the end of ranks says what the cause says of them already."""
    code = str(event.exit_code)
    return bool(event.accused) and set(event.accused) <= set(root.ranks) and ("exit code", code) in root.evidence


def timed_out(diagnosis: Diagnosis) -> LogEvent | None:
    """The collective that timed out, where the logs tell of one only, whatever its number on each rank."""
    events = [event for event in diagnosis.evidence.log if event.kind == "timeout" and event.op is not None]
    calls = {(event.op, event.sequence) for event in events}
    return events[0] if len(calls) == 1 else None


def seen_groups(events: Sequence[LogEvent]) -> list[tuple[LogEvent, tuple[int, ...]]]:
    """The first event of each text, with the ranks that say the same, numbers in it aside."""
    groups: dict[tuple[str, str], list[LogEvent]] = {}
    for event in events:
        groups.setdefault((event.kind, _without_numbers(event)), []).append(event)
    return [
        (same[0], tuple(sorted({event.rank for event in same if event.rank is not None}))) for same in groups.values()
    ]


def most_telling(groups: Sequence[tuple[LogEvent, tuple[int, ...]]]) -> tuple[LogEvent, tuple[int, ...]]:
    """The first line that is not what follows from another's end, the first of all where each is, and who says it."""
    return next((group for group in groups if not _follows(group[0])), groups[0])


def _follows(event: LogEvent) -> bool:
    return event.kind in ("connection", "monitor", "exit") or any(words in event.text for words in _AFTERWARDS)


def seen_lines(diagnosis: Diagnosis) -> Iterator[tuple[LogEvent, tuple[int, ...]]]:
    """The lines to list, the first event of each message and the ranks that say it (none where no line tells).

    Beside hangs none: their causes tell what the lines mean.
    """
    if any(root.crash is None for root in diagnosis.roots):
        return
    yield from seen_groups(seen_events(diagnosis))[:_MOST_LINES]


def seen_left_out(diagnosis: Diagnosis) -> int:
    """How many kinds of messages `seen_lines` leaves to hang.json."""
    if any(root.crash is None for root in diagnosis.roots):
        return 0
    return max(len(seen_groups(seen_events(diagnosis))) - _MOST_LINES, 0)


def what_would_decide(diagnosis: Diagnosis) -> str:
    """The evidence to bring where no cause is known, with the command that gets it; '' where there is one."""
    seen = seen_events(diagnosis)
    key = _what_decides(diagnosis, seen)
    if key is None:
        return ""
    ranks = {event.rank for event in diagnosis.evidence.log if event.rank is not None}
    of_ray = any(words in event.text for event in seen for words in OF_RAY)
    how = how_to_bring("ray" if of_ray else diagnosis.evidence.setting)
    bring = how if key == "echoes" else "logs" if len(ranks) == 1 else "dumps"
    return first_phrase("hangs", "decide", key, bring=bring)


def _what_decides(diagnosis: Diagnosis, seen: Sequence[LogEvent]) -> str | None:
    """Which text of [decide] in words/hangs.ini: the first that applies."""
    kinds = {event.kind for event in seen}
    if "idle" in kinds:
        return "idle"
    if diagnosis.roots:
        return None
    # Of NCCL's warnings the rules of the fabric say what would tell more.
    nothing = all(is_harmless(event) or was_logged_only(event) for event in seen)
    more = [key for key, words in rows("seen.more") if any(words in event.text for event in seen)]
    cases = (
        (bool(diagnosis.evidence.lone), "lone"),
        (any(end.hangs is not None for end in diagnosis.evidence.ends), "hangs"),
        (nothing, None),
        ("ras" in kinds, "ras"),
        (kinds == {"outlived"}, "went_on"),
        (kinds <= {"inspector", "nccl"}, "inspector"),
        ("timeout" in kinds, "timeout"),
        (bool(more), next(iter(more), None)),
        (bool(kinds & {"connection", "monitor", "exit"}), "echoes"),
        (any(event.cut_off for event in seen), "cut_off"),
    )
    return next((key for applies, key in cases if applies), "other")
