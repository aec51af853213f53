"""The run folder, which all ranks agree on and which never mixes two runs, and which process writes as which rank."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from traceops.capture.environment import environment_that_matters, git_state, host, script_name, software_versions
from traceops.capture.manifest import merge, read_ranks, readable_ranks, write_json, write_rank
from traceops.capture.settings import CaptureSettings
from traceops.core.errors import UsageError
from traceops.core.installation import stat_fields

_asked = 0


class ProcessPlace(NamedTuple):
    """Which process of the job this is. local_rank: its number on this host."""

    rank: int
    local_rank: int
    world_size: int


def who_am_i() -> ProcessPlace:
    """From torch.distributed if it is up, else from torchrun's variables."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
        return ProcessPlace(rank, int(os.environ.get("LOCAL_RANK", rank)), world)
    rank = int(os.environ.get("RANK", "0"))
    return ProcessPlace(rank, int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("WORLD_SIZE", "1")))


def agreed_folder(settings: CaptureSettings) -> Path:
    """The absolute run folder; without ``settings.out`` rank 0 names it and tells the others. Raises UsageError if
    several ranks have no way to agree yet."""
    if settings.out is not None:
        return Path(settings.out).absolute()
    name = f"{script_name()}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    dist = sys.modules.get("torch.distributed")
    place = who_am_i()
    if dist is not None and dist.is_available() and dist.is_initialized():
        # The group's store, not a broadcast: that would need the right device to be current already.
        global _asked
        _asked += 1
        key = f"traceops/out/{_asked}"
        store = dist.distributed_c10d._get_default_store()
        if place.rank == 0:
            store.set(key, name)
        name = store.get(key).decode()
    elif place.world_size > 1:
        raise UsageError(
            "the ranks cannot agree on a run folder before torch.distributed is initialised; open "
            "traceops.capture after init_process_group, pass out=…, or start through `traceops run`"
        )
    return Path("profile", name).absolute()


def claim(out: Path, rank: int, world_size: int, settings: CaptureSettings) -> None:
    """Make this rank's folder in `out`, emptied if ``settings.overwrite`` says so. Raises UsageError if another run's
    traces lie there. A launcher has looked already, before any rank ran."""
    own = out / f"rank_{rank}"
    if settings.launched:
        own.mkdir(parents=True, exist_ok=True)
        return
    if settings.overwrite:
        shutil.rmtree(own, ignore_errors=True)
        if rank == 0:
            clear_beyond(out, world_size)
    elif (own / "manifest.json").exists() or any(own.glob("*.pt.trace.json*")):
        raise UsageError(f"{own} holds another run; choose another folder, or pass overwrite=True")
    own.mkdir(parents=True, exist_ok=True)


def clear_beyond(out: Path, world_size: int) -> None:
    """Remove run.json and the ranks of a larger world from `out`."""
    (out / "run.json").unlink(missing_ok=True)
    for folder in out.glob("rank_*"):
        number = folder.name.removeprefix("rank_")
        if number.isdigit() and int(number) >= world_size:
            shutil.rmtree(folder)


def write_run(out: Path) -> None:
    """Write run.json from the ranks that can be seen; the last rank to end leaves the full picture."""
    with (out / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        ranks = read_ranks(out)
        running = any(rank.status == "running" for rank in ranks)
        failed = [rank for rank in ranks if rank.status in ("failed", "terminated")]
        first = min(failed, key=lambda rank: rank.ended_ns or 0, default=None)
        clean = 0 if all(rank.exit_code == 0 for rank in ranks) else None
        run = merge(
            ranks,
            name=out.name,
            command=list(sys.orig_argv),
            argv=list(sys.argv),
            environment=environment_that_matters(os.environ),
            versions=software_versions(),
            git=git_state(Path.cwd()),
            ended_ns=None if running else max((rank.ended_ns or 0 for rank in ranks), default=None),
            status="running" if running else "failed" if first else "finished",
            exit_code=clean if first is None else first.exit_code,
            failed_rank=None if first is None else first.rank,
        )
        write_json(out / "run.json", asdict(run))


def record_exit(out: Path | None, settings: CaptureSettings, code: int, error: str | None) -> None:
    """Write how this process ended into its manifest, whichever capture of it wrote that; `error` if one ended it."""
    if out is None:
        return
    for record in readable_ranks(out)[0]:
        if record.pid != os.getpid():
            continue
        if error is not None and record.error is None:
            record = replace(record, status="failed", error=error)
        write_rank(out, replace(record, exit_code=code))
    if not settings.launched:
        write_run(out)


_FILE = ".joined"  # a line a process: the rank's, then those that came later


@dataclass(frozen=True)
class Unrecorded:
    """A process that ended steps as a rank that another process is already. restarted: that one had ended by then, as
    where torchrun starts all ranks again. None where it ran elsewhere."""

    rank: int
    pid: int
    restarted: bool | None


def is_first(out: Path, rank: int) -> bool:
    """Whether no other process is this rank: one that trains by itself takes itself for rank 0. Each leaves a line."""
    folder = out / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    line = f"{os.getpid()} {host()}\n".encode()
    try:
        _write(folder / _FILE, os.O_CREAT | os.O_EXCL, line)
    except FileExistsError:
        before = _lines(folder / _FILE)
        state = "elsewhere"
        if before and before[0][1:] == [host()] and before[0][0].isdigit():
            state = "beside" if _runs(int(before[0][0])) else "after"
        with suppress(OSError):
            _write(folder / _FILE, os.O_APPEND, f"{os.getpid()} {state}\n".encode())
        return False
    return True


def unrecorded(out: Path, ranks: Iterable[int]) -> Iterator[Unrecorded]:
    """The processes that came later, by rank."""
    for rank in sorted(ranks):
        for line in _lines(out / f"rank_{rank}" / _FILE)[1:]:
            if len(line) == 2 and line[0].isdigit():
                yield Unrecorded(rank, int(line[0]), {"after": True, "beside": False}.get(line[1]))


def _write(path: Path, flags: int, line: bytes) -> None:
    file = os.open(path, flags | os.O_WRONLY, 0o644)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _lines(path: Path) -> list[list[str]]:
    try:
        return [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    state = stat_fields(pid)[:1]
    return bool(state) and state[0] not in "ZX"
