"""Lines of a log that tell of trouble and name no cause: shown where nothing else does."""

from __future__ import annotations

from collections.abc import Collection

from traceops.hangs.evidence import LogKind
from traceops.hangs.readers.log_events import EventList, says_why
from traceops.hangs.readers.log_failures import Failures
from traceops.hangs.readers.log_loggers import Loggers
from traceops.hangs.readers.log_passing import Retried, only_warned, tries_again
from traceops.hangs.readers.log_suspects import Suspects
from traceops.hangs.readers.log_tracebacks import HEAD_ONLY, Tracebacks
from traceops.hangs.readers.log_unfinished import Unfinished

_FAILURES: tuple[LogKind, ...] = ("error", "memory", "cuda", "nccl", "connection")
_IN_REPORT = "traceback "  # torchrun's, of a rank whose end it tells in the lines before
_PASTE = 60  # lines at most: what somebody pasted, and no whole log
_WAITS: tuple[LogKind, ...] = ("timeout", "missing", "monitor")


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
        if kind in _FAILURES and tries_again(body):
            self._retried.take(number, rank, body)
            return True
        if kind == "memory" and only_warned(body):
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
        waits = [event.line for event in told if event.kind in _WAITS]
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
        cut_off = self._suspects.cut_off(last)
        cut = ((rank, one.cut_off(at_head, at_end=bool(lines))) for rank, one in tracebacks)
        torn = [(found[0], rank, found[1]) for rank, found in cut if found is not None]
        if torn and not lines:  # what failed before it comes first
            lines = [one for one in self.failures.found() if one[0] < torn[0][0]]
        lines += [one for one in torn if one[2] != HEAD_ONLY] or torn
        cut_off = cut_off or bool(torn)
        if not lines and not ends:
            lines = [*self.failures.found(), *self._unfinished.found(last)]
        if not lines and last <= _PASTE:
            # In a whole log they may be a stack that the program printed.
            loose = ((rank, one.without_ends()) for rank, one in tracebacks)
            lines = [(found[0], rank, found[1]) for rank, found in loose if found is not None]
            cut_off = cut_off or bool(lines)
        for number, rank, text in survived:
            events.add("outlived", rank, number, text, was="trouble")
        for number, rank, text in lines:
            events.add("trouble", rank, number, text, cut_off=cut_off)
        for number, rank, text in self._warned.found(last):
            events.add("trouble", rank, number, text)
