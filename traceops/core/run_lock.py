"""A run folder belongs to one run while that is going: a lock on a file in it, which ends with the processes."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from traceops.core.errors import UsageError
from traceops.core.installation import stat_fields

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is launched
    fcntl = None  # type: ignore[assignment]

LOCK = ".run.lock"
LauncherState = Literal["running", "gone", "unknown"]
_READER_S = 0.5  # a reader of run.json holds the lock for a moment
_PAUSE_S = 0.05
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)
_MOST_BYTES = 4096


class FolderInUse(UsageError):
    """Another run is writing to the folder."""


class Launcher(Struct, frozen=True):
    """The process that runs a run. start_ticks: when it began, in the kernel's clock ticks; None if not known."""

    pid: int
    host: str
    start_ticks: int | None = None

    @classmethod
    def this(cls) -> Launcher:
        """This process."""
        return cls(os.getpid(), platform.node(), _start_ticks(os.getpid()))

    @classmethod
    def of(cls, value: Any) -> Launcher | None:
        """From JSON; None for anything else."""
        if not isinstance(value, dict):
            return None
        pid, host, ticks = (value.get(name) for name in ("pid", "host", "start_ticks"))
        if not isinstance(pid, int) or pid <= 0 or not isinstance(host, str):
            return None
        return cls(pid, host, ticks if isinstance(ticks, int) else None)

    def alive(self) -> bool:
        """Whether it still runs; only its own host knows."""
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        return self.start_ticks is None or self.start_ticks == _start_ticks(self.pid)


class RunLock:
    """Held until `release`, or until every process that has `descriptor` open has ended. descriptor: None where the
    file system knows no locks. path: of the file, which goes with the lock; None where others may hold it too. made:
    the folders that were not there before, the innermost first."""

    def __init__(self, descriptor: int | None, path: Path | None = None, made: Sequence[Path] = ()) -> None:
        self.descriptor = descriptor
        self._path = path
        self._made = made

    def release(self) -> None:
        """Let others have the folder."""
        if self.descriptor is None:
            return
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        os.close(self.descriptor)
        self.descriptor = None

    def take_back(self) -> None:
        """`release`, and remove the folders that were made for it where they are empty."""
        self.release()
        _remove(self._made)


def hold(folder: Path, *, shared: bool = False) -> RunLock:
    """Lock `folder`, which is made if need be. shared: with the launchers of the same run on other machines. Raises
    FolderInUse, and UsageError where the folder cannot be written to."""
    path = folder / LOCK
    deadline = time.monotonic() + _READER_S
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            _remove(made)
            raise UsageError(
                f"{folder} cannot be written ({error.strerror}); make room or get permission there, "
                "or choose another --out"
            ) from error
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, "no locks")
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                with suppress(OSError):  # a full disk
                    # Leave in the file who holds the lock
                    us = Launcher.this()
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps({"pid": us.pid, "host": us.host}).encode() + b"\n", 0)
                return RunLock(descriptor, None if shared else path, made)
        except FileNotFoundError:  # its holder has just released it, and the file with it
            pass
        except OSError as error:
            if error.errno not in _BUSY:  # a file system without locks: never refuse for that
                os.close(descriptor)
                return RunLock(None)
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise FolderInUse(_refusal(folder)) from error
        os.close(descriptor)
        time.sleep(_PAUSE_S)


def _remove(folders: Sequence[Path]) -> None:
    """Those that are empty, up to the first that is not."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _refusal(folder: Path) -> str:
    holder = _holder(folder)
    who = "another run" if holder is None else f"a run that is still going (pid {holder.pid} on {holder.host})"
    return f"{folder} is in use by {who}; wait for its end, or choose another --name or --out"


@contextmanager
def held(folder: Path, *, shared: bool = False) -> Iterator[RunLock]:
    """`hold` for the time of the block."""
    lock = hold(folder, shared=shared)
    try:
        yield lock
    finally:
        lock.release()


def in_use(folder: Path) -> bool:
    """Whether a run holds the lock of `folder`; False where that cannot be known."""
    if fcntl is None:
        return False
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _BUSY
    finally:
        os.close(descriptor)
    return False


def launcher_state(folder: Path, launcher: Launcher) -> LauncherState:
    """What became of the launcher that said it runs `folder`; unknown where only another machine could tell."""
    if in_use(folder):
        return "running"
    if launcher.host != platform.node():
        return "unknown"
    return "running" if launcher.alive() else "gone"


def _holder(folder: Path) -> Launcher | None:
    try:
        with (folder / LOCK).open("rb") as file:
            return Launcher.of(json.loads(file.read(_MOST_BYTES)))
    except (OSError, ValueError):
        return None


def _start_ticks(pid: int) -> int | None:
    try:
        return int(stat_fields(pid)[19])
    except (ValueError, IndexError):
        return None
