"""Which start of which job a log is of, by its name: Slurm's, torchrun's attempts, kubectl's --previous."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from traceops.hangs.evidence import LogEvent
from traceops.hangs.readers.log_outlived import as_outlived

_SLURM = re.compile(r"^slurm-(\d{1,18})(?:_(\d{1,9}))?(?=[._-])")
_ATTEMPT = re.compile(r"^attempt_(\d{1,6})$")
_PREVIOUS = re.compile(r"(?:^|[._-])prev(?:ious)?(?=[._-]|$)", re.IGNORECASE)

Job = tuple[int, int]  # Slurm's numbers of the job and of the task of its array, -1 without


def slurm_job(path: str | Path) -> Job | None:
    """The job that Slurm's default name of a log tells: slurm-123.out, slurm-123_4.out."""
    match = _SLURM.match(Path(path).name)
    return None if match is None else (int(match[1]), int(match[2] or -1))


def one_slurm_job(log: Sequence[LogEvent], texts: Sequence[Path]) -> tuple[list[LogEvent], list[tuple[str, str]]]:
    """The events of the latest job that tells any and of files that name none, and (file, why) of what is left out."""
    jobs = {job for text in texts if (job := slurm_job(text)) is not None}
    telling = {job for event in log if (job := slurm_job(event.path)) is not None}
    if len(jobs) < 2 or not telling:
        return list(log), []
    kept = max(telling)
    left_out = dict.fromkeys(event.path for event in log if slurm_job(event.path) not in (kept, None))
    problems = [
        (path, f"it is of another job of Slurm than what is told here ({_named(kept)}): traceops diagnose {path}")
        for path in left_out
    ]
    later = sorted(str(text) for text in texts if (job := slurm_job(text)) is not None and job > kept)
    problems += [
        (path, f"it is of a later job of Slurm than {_named(kept)}, and tells of no failure") for path in later
    ]
    return [event for event in log if event.path not in left_out], problems


def with_earlier_starts(log: Sequence[LogEvent]) -> list[LogEvent]:
    """The events, those of a start after which another began in files of its own as 'outlived'."""
    earlier = {path: _was_started_again(Path(path)) for path in {event.path for event in log}}
    return [
        as_outlived(event) if earlier[event.path] and event.kind not in ("status", "trouble") else event
        for event in log
        if not (earlier[event.path] and event.kind == "status")
    ]


def _named(job: Job) -> str:
    return f"{job[0]}" if job[1] < 0 else f"{job[0]}_{job[1]}"


def _beside(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [other for other in folder.parent.iterdir() if other.is_dir()]
    return []


def _is_later(folder: Path, attempt: int) -> bool:
    match = _ATTEMPT.match(folder.name)
    return match is not None and int(match[1]) > attempt


def _was_started_again(path: Path) -> bool:
    for folder in path.parents[:4]:
        if (match := _ATTEMPT.match(folder.name)) is not None:
            return any(_is_later(other, int(match[1])) for other in _beside(folder))
    if (found := _PREVIOUS.search(path.name)) is None:
        return False
    before, after = path.name[: found.start()], path.name[found.end() :]
    names = (f"{before}{after}", f"{before}{after}".lstrip("._-"), f"{before}{found[0][:1]}current{after}")
    return any(name not in ("", path.name) and (path.parent / name).is_file() for name in names)
