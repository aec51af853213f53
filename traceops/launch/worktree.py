"""A commit checked out for as long as a block runs, and removed however the block ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from traceops.core.errors import UsageError
from traceops.launch.repository import Repository, run_git, short
from traceops.launch.signals import held_signals

# A post-checkout hook is for people who check something out, and may be slow.
_WITHOUT_HOOKS = ("-c", f"core.hooksPath={os.devnull}")


def add_command(commit: str, tree: Path) -> list[str]:
    """git's arguments that check `commit` out into `tree`."""
    return [*_WITHOUT_HOOKS, "worktree", "add", "--quiet", "--detach", str(tree), commit]


def remove_command(tree: Path) -> list[str]:
    """git's arguments that remove `tree` with whatever the training left in it."""
    return ["worktree", "remove", "--force", str(tree)]


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """An empty folder, without links in its path; gone after the block, whatever it holds by then."""
    folder = Path(tempfile.mkdtemp(prefix="traceops-base-")).resolve()
    try:
        yield folder
    finally:
        with held_signals():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def checked_out(repository: Repository, commit: str, tree: Path) -> Iterator[None]:
    """`commit` in `tree`, a folder to be made, inside the block.

    Raises UsageError if git cannot check it out.
    """
    try:
        with held_signals() as received:  # half a worktree could not be removed
            done = run_git(repository.root, *add_command(commit, tree))
        if received:
            signal.raise_signal(received[0])
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise UsageError(f"git cannot check out {short(commit)} into {tree}: {said}")
        yield
    finally:
        with held_signals():
            if run_git(repository.root, *remove_command(tree)).returncode:
                shutil.rmtree(tree, ignore_errors=True)
                run_git(repository.root, "worktree", "prune")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM, and a terminal that goes away, leave the block through its ``finally``, as Ctrl-C does."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def hang_up(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)  # which a launch in progress knows how to end on

    handlers = {signal.SIGTERM: leave, signal.SIGHUP: hang_up}
    # nohup and the like ignore a signal on purpose
    ours = [number for number in handlers if signal.getsignal(number) is signal.SIG_DFL]
    before = {number: signal.signal(number, handlers[number]) for number in ours}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
