"""What the launcher does about a hang: notice it, save the evidence, name the cause, and end the job if it may."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from traceops.capture.last_words import LastWords
from traceops.capture.progress import Progress
from traceops.capture.responder import DUMP, ask
from traceops.core.capture_failure import steps_unseen
from traceops.core.errors import TraceopsError
from traceops.hangs.evidence import Stall
from traceops.launch.display import Screen
from traceops.launch.evidence import collect, set_aside
from traceops.launch.folder import short_path
from traceops.launch.hang_timeouts import HangTimeouts
from traceops.launch.watch import NodeStatus, Watch

_LONGEST_S = 25.0
INTERRUPTED_S = 5.0
_HURRIED_S = 0.5
_MOST_STALLS = 5  # that are saved, of a job that goes on after each
_AGAIN = 2.0  # times as long as when it was said last


class HangWatch:
    """Watches the ranks of one run; after a stall it needs a moment to save what they are doing.

    out: the run folder. progress: the launcher's own. last_words: what ended captures, where somebody listens.
    all_still: how several nodes agree that none of them moves, where not by files in the run folder.
    stall: the one that lasts. saved: whether what the ranks are doing was saved, before the user or we end them.
    """

    def __init__(
        self,
        limits: HangTimeouts,
        out: Path,
        progress: Path,
        screen: Screen,
        nnodes: int = 1,
        all_still: Callable[[bool], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._out = out
        self._progress = progress
        self._screen = screen
        told = NodeStatus(out / "evidence", nnodes).all_still if all_still is None else all_still
        self._watch = Watch(limits, progress, screen.say, told)
        self._work: threading.Thread | None = None
        self._deadline = 0.0
        self._began = time.monotonic()
        self._seen_s = self._say_again_s = 0.0
        self._stalls = 0
        self.stall: Stall | None = None
        self.saved = False
        self.last_words: LastWords | None = None

    @property
    def kills(self) -> bool:
        """Whether the job is ended at a hang."""
        return self._limits.kills

    def observe(self, records: Sequence[Progress]) -> bool:
        """Told of the ranks' records again and again, returns whether it is time to end the job."""
        now = time.monotonic()
        if self._work is not None and self.kills:
            return not self._work.is_alive() or now > self._deadline
        if self.last_words is not None and any(steps_unseen(failure) for failure in self.last_words.heard()):
            return False  # what does not move may well train: nobody can tell
        stall = self._watch.observe(records, now)
        if self._work is not None:
            if not self._work.is_alive():
                self._after(stall, now)
        elif stall is not None:
            self._begin(stall, records, now)
        return False

    def _begin(self, stall: Stall, records: Sequence[Progress], now: float) -> None:
        before = "a step" if stall.kind == "step" else "a first step"
        ends = "" if self.kills else "; the job goes on (--kill-on-hang would end it)"
        self._screen.say(f"hang: {stall.stalled_s:.0f} s without {before}; saving what the ranks are doing{ends}")
        self.stall, self._seen_s, self._say_again_s = stall, now, _AGAIN * stall.stalled_s
        self._stalls += 1
        if self._stalls <= _MOST_STALLS:
            self.saved = True
            # Not in the launcher's own thread, where Ctrl-C would have to wait for it.
            self._start(self._respond, records, stall, _LONGEST_S)

    def _after(self, stall: Stall | None, now: float) -> None:
        """The ranks' state is saved, and the job goes on: do they?"""
        assert self.stall is not None
        if self._watch.since > self._seen_s:
            self._screen.say(f"the ranks go on after {self._watch.since - self._seen_s + self.stall.stalled_s:.0f} s")
            self._keep_apart()
        elif stall is not None and stall.stalled_s > self._say_again_s:
            self._say_again_s = _AGAIN * stall.stalled_s
            self._screen.say(f"still no step for {stall.stalled_s:.0f} s: Ctrl-C ends the job, its evidence is saved")

    def _keep_apart(self) -> None:
        """It was no hang: what was saved is none of the run's end."""
        self.stall, self.saved, self._work = None, False, None
        try:
            kept = set_aside(self._out)
        except OSError as error:
            self._screen.say(f"the evidence of the stall stays with the run's: {error}")
            return
        if kept is not None:
            self._screen.say(f"what they did meanwhile: traceops diagnose {short_path(kept)}")

    def rank_failed(self, records: Sequence[Progress]) -> None:
        """Told once torchrun ends the ranks because one failed: the others say what they wait in, if they can."""
        for record in records:
            ask(self._progress, record.rank, DUMP)

    def interrupted(self, records: Sequence[Progress]) -> bool:
        """Told that the user ends the job; starts to save what ranks that seem to hang are doing, if they do.

        Returns whether it saves. `saves` says when to end the job.
        """
        if self._work is not None:
            return False
        stall = self._watch.suspect(records, time.monotonic())
        if stall is None:
            return False
        self._screen.say(
            f"no step for {stall.stalled_s:.0f} s: first saving what the ranks are doing (again to kill them at once)"
        )
        self.saved = True
        self._start(self._save, records, stall, INTERRUPTED_S)
        return True

    def _start(
        self,
        work: Callable[[Sequence[Progress], Stall], None],
        records: Sequence[Progress],
        stall: Stall,
        most_s: float,
    ) -> None:
        self._work = threading.Thread(target=work, args=(records, stall), daemon=True)
        self._work.start()
        self._deadline = time.monotonic() + most_s

    def saves(self) -> bool:
        """Whether what the ranks are doing is still being saved, and may be."""
        return self._work is not None and self._work.is_alive() and time.monotonic() < self._deadline

    def finish(self, *, hurried: bool, well: bool) -> None:
        """The job has ended. Wait for a verdict that is not ready; hurried: for a moment only. well: it was no hang."""
        if self._work is not None:
            self._work.join(_HURRIED_S if hurried else _LONGEST_S)
        if well and self.stall is not None:
            self._keep_apart()

    def _save(self, records: Sequence[Progress], stall: Stall) -> None:
        try:
            collect(self._out, self._progress, records, stall, began_s=self._began, within_s=INTERRUPTED_S - 0.5)
        except (TraceopsError, OSError) as error:  # a full disk, say; the job is ended all the same
            self._screen.say(f"what the ranks were doing cannot be saved: {error}")

    def _respond(self, records: Sequence[Progress], stall: Stall) -> None:
        try:
            collect(self._out, self._progress, records, stall, began_s=self._began)
            from traceops.hangs.diagnose import diagnose
            from traceops.render.hang.terminal import print_diagnosis

            diagnosis = diagnose(self._out, jobs=1)
        except (TraceopsError, OSError) as error:  # a full disk, say
            self._screen.say(f"the hang cannot be explained: {error}")
            return
        with self._screen.paused():
            print_diagnosis(diagnosis, sys.stderr)
