"""Tests of communication in child processes, each with a deadline: a hang or a crash is a result."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from traceops.doctor.job import LAUNCH, Job
from traceops.doctor.model import Trial
from traceops.doctor.outcome import Ended, How, trials_of
from traceops.doctor.workers import Workers

_POLL_S = 0.02
_GRACE_S = 4.0  # for the others once a rank has failed: time to say what they see of it
_LEAVE_S = 15.0  # for ranks that are done, to end by themselves


def run_job(job: Job, environ: Mapping[str, str], logs: Path | None = None) -> tuple[Trial, ...]:
    """Run the stages of `job` in one launch, one process a device; one Trial a stage, in their order.

    logs: a folder for this job alone, made where it is not there: NCCL's own logs (``nccl.<host>.<pid>.log``) and
    the output of the ranks stay in it. A stage that is not done by its deadline, or in which a rank fails, ends the
    launch: the stages after it are ``not_evaluated``. No process is left behind, whatever happens, but for one that
    not even SIGKILL ends, which is waited for a few seconds only.
    """
    with tempfile.TemporaryDirectory(prefix="traceops-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        kept = logs or folder
        kept.mkdir(parents=True, exist_ok=True)
        workers = Workers(job, environ, folder, kept)
        try:
            ended = _watch(job, workers)
        finally:
            undead = workers.end()
        return trials_of(job, workers, ended, undead)


def _watch(job: Job, workers: Workers) -> list[Ended]:
    """Wait for stage after stage, until one is not done."""
    ended: list[Ended] = []
    for stage in (LAUNCH, *job.stages):
        began = time.monotonic()
        how = _wait_for(stage, workers, began + job.deadline_s(stage))
        ended.append(Ended(stage, how, time.monotonic() - began))
        if how != "done":
            return ended
    until = time.monotonic() + _LEAVE_S
    while any(child.exit is None for child in workers.children) and time.monotonic() < until:
        time.sleep(_POLL_S)
        workers.refresh()
    return ended


def _wait_for(stage: str, workers: Workers, until: float) -> How:
    """Until every rank has ended the stage, or it is clear that they will not.

    A rank that has failed keeps the others waiting. They get a moment all the same: what they say of it may tell
    more, and they may have all they need to end the stage.
    """
    failed_at: float | None = None
    while True:
        workers.refresh()
        if all(child.has(stage, "end") for child in workers.children):
            return "done"
        now = time.monotonic()
        failed = [child.failed for child in workers.children]
        if failed_at is None and any(failed):
            failed_at = now
        if failed_at is not None and (all(failed) or now > failed_at + _GRACE_S):
            return "failed"
        if now > until:
            return "failed" if failed_at is not None else "hung"
        time.sleep(_POLL_S)
