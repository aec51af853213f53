"""All processes of a run, also those whose parents have ended, so that none is left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import suppress

import psutil  # type: ignore[import-untyped, unused-ignore]

from traceops.capture.settings import ENV


class ProcessTree:
    """The processes that `root` has started, and theirs; psutil compares start times, so pids may be reused.

    env: the environment of `root`, which its descendants share.
    """

    def __init__(self, root: subprocess.Popen[bytes], env: Mapping[str, str]) -> None:
        self._root = root
        self._mark = env.get(ENV, "").rstrip("}") or None  # what a rank adds to it comes behind
        self._known: dict[int, psutil.Process] = {}

    def command(self) -> int | None:
        """The process that `root` started for the command; orphans come to be its children later."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._root.pid).children()
            return min(((child.create_time(), child.pid) for child in children), default=(0, None))[1]
        return None

    def refresh(self) -> None:
        """Note the processes that there are now."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._root.pid).children(recursive=True):
                self._known[child.pid] = child

    def end(self) -> None:
        """Kill what is left, after a moment in which a data loader ends after its rank."""
        self.refresh()
        if self._root.poll() is None:
            self._root.kill()
        self._root.wait()
        self._known.update({orphan.pid: orphan for orphan in self._orphans()})
        left = [child for child in self._known.values() if _lives(child)]
        _, left = psutil.wait_procs(left, timeout=1.0)
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=5.0)

    def _orphans(self) -> list[psutil.Process]:
        """Processes of ours that we never saw as anybody's child: their environment names this very run."""
        found = []
        if self._mark is not None:
            for process in psutil.process_iter():
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    if process.environ().get(ENV, "").startswith(self._mark):
                        found.append(process)
        return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
