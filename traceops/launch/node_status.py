"""Launchers on several machines tell each other, in the run folder, whose ranks make no progress."""

from __future__ import annotations

import os
from pathlib import Path

from traceops.capture.environment import host


class NodeStatus:
    """A file for each machine whose ranks are still: ranks that wait for a slow one elsewhere do not hang.

    folder: shared by the machines. Where it is not, no machine ever learns that all of them are still.
    """

    def __init__(self, folder: Path, nnodes: int) -> None:
        self._folder = folder
        self._nnodes = nnodes
        self._own = folder / f".still.{host()}.{os.getpid()}"
        self._told = False

    def all_still(self, here: bool) -> bool:
        """Tell the others whether the ranks are still here; returns whether they are everywhere."""
        if self._nnodes > 1 and here != self._told:
            self._told = here
            if here:
                self._own.touch()
            else:
                self._own.unlink(missing_ok=True)
        return here and (self._nnodes == 1 or len(list(self._folder.glob(".still.*"))) >= self._nnodes)
