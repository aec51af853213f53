"""Tests of communication in child processes, each with a deadline: a hang or a crash is a result."""

from __future__ import annotations

import platform
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.capture.guard import is_peer_failure
from traceops.core.rank_text import ranks_text, who
from traceops.doctor.failure_cause import FailureCause, foreign_cause
from traceops.doctor.isolate import Pair, pair_order
from traceops.doctor.job import LAUNCH, Job
from traceops.doctor.model import Outcome, PairState, Trial
from traceops.doctor.workers import WorkerProcess, Workers
from traceops.fabric.model import Measured
from traceops.fabric.nccl import Connection
from traceops.fabric.readers.nccl_log import read_nccl_log

# Makes a Trial of each stage of a job, from what the ranks reported and how they ended.


How = Literal["done", "hung", "failed"]
_WRONG_SHOWN = 12
_SAID_SHOWN = 16
_LONG_MESSAGE = 400
_NCCL_LAST_ERROR = re.compile(r"Last error:\s*(\S[^\n]*)")


class Ended(Struct, frozen=True):
    """How a stage, or ``launch``, ended, and after how many seconds."""

    stage: str
    how: How
    seconds: float


def trials_of(job: Job, workers: Workers, ended: Sequence[Ended], undead: Sequence[WorkerProcess]) -> tuple[Trial, ...]:
    """One Trial a stage of the job. undead: processes that were killed and did not die."""
    launch, *stages = ended
    # A launch is no stage of its own: it is told of as part of the first one.
    first = stages[0] if stages else Ended(job.stages[0], launch.how, 0.0)
    stages = [replace(first, seconds=launch.seconds + first.seconds), *stages[1:]]
    transports = _transports(workers)
    trials = [replace(_trial(job, workers, stage, undead), transports=transports) for stage in stages]
    broken = stages[-1]
    for stage in job.stages[len(stages) :]:
        why = f"not started, because {broken.stage} {'hung' if broken.how == 'hung' else 'failed'}"
        trials.append(_bare(job, stage, "not_evaluated", 0.0, why))
    return tuple(trials)


def _trial(job: Job, workers: Workers, ended: Ended, undead: Sequence[WorkerProcess]) -> Trial:
    ranks, stage = workers.children, ended.stage
    said: tuple[str, ...] = ()
    if ended.how != "done":
        outcome: Outcome = ended.how
        tell = _hung if ended.how == "hung" else _failed
        message = "; ".join([tell(job, ranks, stage), *(_undead(job, child) for child in undead)])
        said = (*_said(ranks, stage), *workers.nccl_warnings())
    elif wrong := [(child, found["text"]) for child in ranks for found in child.reports.of(stage, "wrong")]:
        on = _who(job, [child.rank for child, _ in wrong])
        outcome, message = "wrong", f"wrong values on {on}: {wrong[0][1]}"
        said = tuple(f"rank {child.rank}: {text}" for child, text in wrong[:_WRONG_SHOWN])
    else:
        skipped = [found["text"] for found in ranks[0].reports.of(stage, "skipped")]
        notes = [found["text"] for child in ranks for found in child.reports.of(stage, "note")]
        outcome, message = "not_evaluated" if skipped else "ok", "; ".join(dict.fromkeys(skipped + notes))
    trial = _bare(job, stage, outcome, ended.seconds, message)
    pairs = _pairs(job, ranks, stage, ended.how) if stage == "pairs" else ()
    failed = [_gpu(job, child.rank) for child in _causes(ranks)] if outcome == "failed" else []
    measured = _measured(job, ranks, stage)
    cause = _cause(ranks, ended.how, (message, *said)) if ended.how != "done" else None
    return replace(trial, said=said, measured=measured, pairs=pairs, failed=tuple(failed), cause=cause)


def _cause(ranks: Sequence[WorkerProcess], how: How, texts: Sequence[str]) -> FailureCause | None:
    """Why it failed, where no setting can help: found by the ranks themselves, else named in what they said."""
    if how == "hung" and any(not child.has(LAUNCH, "end") for child in ranks):
        return "torch_not_imported"
    own = next((child.cause for child in ranks if child.cause), None)
    return own or foreign_cause(" ".join(texts))


def _bare(job: Job, stage: str, outcome: Outcome, seconds: float, message: str) -> Trial:
    deadline_s = job.deadline_s(stage) + (job.deadline_s(LAUNCH) if stage == job.stages[0] else 0.0)
    return Trial(stage, outcome, job.devices, seconds, deadline_s, message, set=job.set, unset=job.unset)


def _hung(job: Job, ranks: Sequence[WorkerProcess], stage: str) -> str:
    """Which ranks had not come to the stage, and where the others stood in it."""
    if out := [child.rank for child in ranks if not child.has(LAUNCH, "end")]:
        return f"{_who(job, out)} had not imported torch"
    parts = []
    if out := [child.rank for child in ranks if not child.has(stage, "begin")]:
        parts.append(f"{_who(job, out)} never came to it")
    places: dict[str, list[int]] = {}
    for child in ranks:
        if child.has(stage, "begin") and not child.has(stage, "end"):
            places.setdefault(child.at or "its beginning", []).append(child.rank)
    parts += [f"{_who(job, at)} stood at: {place}" for place, at in places.items()]
    if done := [child.rank for child in ranks if child.has(stage, "end")]:
        parts.append(f"{_who(job, done)} had done it")
    return "; ".join(parts)


def _failed(job: Job, ranks: Sequence[WorkerProcess], stage: str) -> str:
    """Who died or raised what, who lost the connection to them, and who waited."""
    failed, causes = [child for child in ranks if child.failed], _causes(ranks)
    reasons: dict[str, list[int]] = {}
    for child in causes:
        reasons.setdefault(_reason(child), []).append(child.rank)
    parts = [f"{_who(job, at)} {reason}" for reason, at in reasons.items()]
    if lost := [child.rank for child in failed if child not in causes]:
        parts.append(f"{_who(job, lost)} then lost a connection")
    if waited := [child.rank for child in ranks if not child.failed and not child.has(stage, "end")]:
        parts.append(f"{_who(job, waited)} waited")
    return "; ".join(parts)


def _causes(ranks: Sequence[WorkerProcess]) -> list[WorkerProcess]:
    """Those that failed of themselves; all that failed where each has lost another."""
    failed = [child for child in ranks if child.failed]
    return [child for child in failed if child.error is None or not is_peer_failure(child.error)] or failed


def _reason(child: WorkerProcess) -> str:
    place = f" at: {child.at}" if child.at else ""
    if child.error is not None:
        return f"said {_essence(child.error)[:_LONG_MESSAGE]}"
    if child.exit is not None and child.exit < 0:
        name = next((known.name for known in signal.Signals if known == -child.exit), f"signal {-child.exit}")
        return f"was killed by {name}{place}"
    return f"ended with exit code {child.exit}{place}"


def _essence(error: str) -> str:
    """Its first line; what NCCL failed at stands below that, and says more."""
    last = _NCCL_LAST_ERROR.search(error)
    return f"{error.splitlines()[0]}: {last[1]}" if last else error.splitlines()[0]


def _undead(job: Job, child: WorkerProcess) -> str:
    return (
        f"process {child.process.pid} of {_who(job, [child.rank])} did not die when it was killed: it is inside a "
        "call of the kernel's or the driver's"
    )


def _said(ranks: Sequence[WorkerProcess], stage: str) -> list[str]:
    """What ranks said, those first that failed; equal lines once, with who said them first."""
    order = sorted((child for child in ranks if not child.has(stage, "end")), key=lambda child: not child.failed)
    lines: dict[str, str] = {}
    for child in order:
        for line in child.said():
            lines.setdefault(line, f"rank {child.rank}: {line}")
    return list(lines.values())[:_SAID_SHOWN]


def _transports(workers: Workers) -> tuple[str, ...]:
    """The ways NCCL says it took, over all stages, the most used first."""
    paths = [str(path) for path in workers.nccl_logs()]
    connections = (found for comm in read_nccl_log(paths).communicators for found in comm.connections)
    return tuple(way for way, _ in Counter(map(_way, connections)).most_common())


def _way(connection: Connection) -> str:
    if connection.transport == "SHM":
        return "SHM"
    return f"{connection.transport}/{connection.detail}" + ("/GDRDMA" if connection.gdr else "")


def _measured(job: Job, ranks: Sequence[WorkerProcess], stage: str) -> tuple[Measured, ...]:
    """All ranks of a collective report the same; of a pair the slower one counts."""
    slowest: dict[tuple[str, tuple[int, ...], int], Measured] = {}
    host = None if job.rendezvous else platform.node()
    for child in ranks:
        for row in (found["row"] for found in child.reports.of(stage, "measured")):
            gpus = tuple(_gpu(job, rank) for rank in row["ranks"])
            found = Measured(row["op"], gpus, row["bytes"], row["time_us"], row["busbw_gbs"], host, job.backend)
            key = (found.op, gpus, found.bytes)
            if key not in slowest or slowest[key].time_us < found.time_us:
                slowest[key] = found
    return tuple(slowest.values())


def _pairs(job: Job, ranks: Sequence[WorkerProcess], stage: str, how: How) -> tuple[PairState, ...]:
    """Of every pair with a rank on this node."""
    states = []
    for pair in pair_order(job.world_size):
        if here := [child for child in ranks if child.rank in pair]:
            outcome = _pair_outcome([_last(child, stage, pair) for child in here], how)
            states.append(PairState((_gpu(job, pair[0]), _gpu(job, pair[1])), outcome))
    return tuple(sorted(states, key=lambda state: state.gpus))


def _last(child: WorkerProcess, stage: str, pair: Pair) -> str | None:
    states = [found["state"] for found in child.reports.of(stage, "pair") if tuple(found["ranks"]) == pair]
    return states[-1] if states else None


def _pair_outcome(states: Sequence[str | None], how: How) -> Outcome:
    """states: what those of the two that are on this node said last of it."""
    if "wrong" in states:
        return "wrong"
    if all(state == "ok" for state in states):
        return "ok"
    if None in states or how == "done":
        return "not_evaluated"  # one of them never came to it, and the other waited
    return how


def _gpu(job: Job, rank: int) -> int:
    """A device as the job names it; of a job on several nodes the rank."""
    return rank if job.rendezvous else job.devices[rank]


def _who(job: Job, ranks: Sequence[int]) -> str:
    """'rank 1 (GPU 3)', 'ranks 0–2'."""
    names = [(job.names or job.devices)[rank - job.first_rank] for rank in ranks]
    if job.backend != "nccl":
        return who(ranks if job.rendezvous else names)
    return f"{who(ranks)} (GPU{'' if len(set(ranks)) == 1 else 's'} {ranks_text(names)})"


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
