"""What the launcher does about a hang: notice it, save the evidence, say who did it."""

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
from traceops.launch.evidence import collect
from traceops.launch.hang_timeouts import HangTimeouts
from traceops.launch.node_status import NodeStatus
from traceops.launch.process_activity import look, state
from traceops.launch.watch import Watch

_LONGEST_S = 25.0
INTERRUPTED_S = 5.0
_HURRIED_S = 0.5
_BETWEEN_LOOKS_S = 0.3


class HangWatch:
    """Watches the ranks of one run; after a stall it needs a moment before they may be ended.

    out: the run folder. progress: the launcher's own. last_words: what ended captures, where somebody listens.
    all_still: how several nodes agree that none of them moves, where not by files in the run folder.
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
        self._out = out
        self._progress = progress
        self._screen = screen
        told = NodeStatus(out / "evidence", nnodes).all_still if all_still is None else all_still
        self._watch = Watch(limits, progress, screen.say, told)
        self._work: threading.Thread | None = None
        self._deadline = 0.0
        self._began = time.monotonic()
        self.stall: Stall | None = None
        self.saved: Stall | None = None  # of ranks that the user ended
        self.last_words: LastWords | None = None

    def observe(self, records: Sequence[Progress]) -> bool:
        """Told of the ranks' records again and again, returns whether it is time to end the job."""
        now = time.monotonic()
        if self._work is not None:
            return not self._work.is_alive() or now > self._deadline
        if self.last_words is not None and any(steps_unseen(failure) for failure in self.last_words.heard()):
            return False  # what does not move may well train: nobody can tell
        self.stall = self._watch.observe(records, now)
        if self.stall is not None:
            before = "a step" if self.stall.kind == "step" else "a first step"
            self._screen.say(f"hang: {self.stall.stalled_s:.0f} s without {before}; saving what the ranks are doing")
            # Not in the launcher's own thread, where Ctrl-C would have to wait for it.
            self._work = threading.Thread(target=self._respond, args=(records, self.stall), daemon=True)
            self._work.start()
            self._deadline = now + _LONGEST_S
        return False

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
        now = time.monotonic()
        stall = self._watch.suspect(records, now)
        if stall is None:
            return False
        self._screen.say(
            f"no step for {stall.stalled_s:.0f} s: first saving what the ranks are doing (again to kill them at once)"
        )
        self.saved = stall
        self._work = threading.Thread(target=self._save, args=(records, stall), daemon=True)
        self._work.start()
        self._deadline = now + INTERRUPTED_S
        return True

    def saves(self) -> bool:
        """Whether what the ranks are doing is still being saved, and may be."""
        return self._work is not None and self._work.is_alive() and time.monotonic() < self._deadline

    def finish(self, *, hurried: bool) -> None:
        """Wait for a verdict that was not ready when the job had to be ended; hurried: for a moment only."""
        if self._work is not None:
            self._work.join(_HURRIED_S if hurried else _LONGEST_S)

    def _save(self, records: Sequence[Progress], stall: Stall) -> None:
        until = time.monotonic() + INTERRUPTED_S - 0.5
        try:
            alive = [record for record in records if state(record.pid) not in ("gone", "Z", "T", "t")]
            before = look(alive, self._progress)
            time.sleep(_BETWEEN_LOOKS_S)
            after = look(alive, self._progress)
            working = {rank: now for rank, now in after.items() if rank in before and now.moved_since(before[rank])}
            collect(
                self._out, self._progress, records, stall,
                began_s=self._began, within_s=until - time.monotonic(), working=working,
            )  # fmt: skip
        except (TraceopsError, OSError) as error:  # a full disk, say; the job is ended all the same
            self._screen.say(f"what the ranks were doing cannot be saved: {error}")

    def _respond(self, records: Sequence[Progress], stall: Stall) -> None:
        try:
            collect(self._out, self._progress, records, stall, began_s=self._began)
            from traceops.hangs.diagnose import diagnose
            from traceops.render.hang.terminal import print_diagnosis

            diagnosis = diagnose(self._out, jobs=1)
        except (TraceopsError, OSError) as error:  # a full disk, say; the job is ended all the same
            self._screen.say(f"the hang cannot be explained: {error}")
            return
        with self._screen.paused():
            print_diagnosis(diagnosis, sys.stderr)
