"""The launcher's guard: what it does beside the training may fail, and never changes how the training ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from traceops.core.claims import Wording
from traceops.launch.display import Screen

_text = Wording("launch", "chores")


class Containment:
    """Runs what the training does not need, and says once of each that it failed.

    failed: what failed so far, with why.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.failed: dict[str, str] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Let no error out of the block; `what` it does, by its key in [chores] of words/launch.ini."""
        try:
            yield
        except Exception as error:  # MemoryError too; a signal that ends us goes through
            with suppress(Exception):  # of reporting it: the screen may be what fails
                if what not in self.failed:
                    self.failed[what] = reason(error)
                    self._screen.say(_text("failed", chore=_text(what), why=self.failed[what]))


def reason(error: Exception) -> str:
    """The error in the system's words, with the file where it names one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
