"""Tests of communication in child processes, each with a deadline: a hang or a crash is a result."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

import traceops
from traceops.capture.guard import is_peer_failure
from traceops.core.as_module import command_of
from traceops.core.claims import reason
from traceops.core.errors import InputError
from traceops.core.rank_text import ranks_text, who
from traceops.doctor.isolate import pair_order
from traceops.doctor.job import LAUNCH, FailureCause, Job, Reports, WorkerTask, child_environment, foreign_cause
from traceops.doctor.model import Outcome, PairState, Trial
from traceops.doctor.runs import slowest_rows
from traceops.fabric.model import Measured
from traceops.fabric.nccl import Connection
from traceops.fabric.readers.nccl_log import read_nccl_log

_TAIL_BYTES = 64 << 10
_DEATH_S = 5.0  # for processes that were killed; inside a driver that hangs they do not die
_ROOM_BYTES = 1 << 20  # what ranks report and print unless something is very wrong
_LINES = 8
_LONG_LINE = 400
# Tells nothing of the failure: where in Python or in torch it came from, and warnings.
_NOISE = re.compile(
    r"^(\s|Traceback |frame #|Exception raised from|During handling of|The above exception|\S+Warning:)"
    r"|Warning: |^\[W\d|\]:\[W\d|<unknown function>|^<omitting python frames>"
)
_NCCL_WARN = re.compile(r"NCCL WARN\b.*")


class WorkerProcess(Struct):
    """One rank. exit: its return code once it has ended (negative: of a signal)."""

    rank: int
    process: subprocess.Popen[bytes]
    reports: Reports
    stderr: Path
    exit: int | None = None

    def refresh(self) -> None:
        """Learn whether it has ended, and what it has reported until then."""
        if (ended := self.process.poll()) is not None and self.exit is None:
            _kill(self.process.pid)  # what it started; at once, as its number may soon be somebody else's
        self.exit = ended
        self.reports.refresh()

    def has(self, stage: str, event: str) -> bool:
        return bool(self.reports.of(stage, event))

    @property
    def error(self) -> str | None:
        """The exception it ended with."""
        return next((found["text"] for found in self.reports.events if found["event"] == "error"), None)

    @property
    def cause(self) -> FailureCause | None:
        """Why it cannot test anything, where it found that itself."""
        return next((found["cause"] for found in self.reports.events if found.get("cause")), None)

    @property
    def failed(self) -> bool:
        """Whether it said why it cannot go on, or ended before it was done."""
        return self.error is not None or (self.exit is not None and not self.left)

    @property
    def left(self) -> bool:
        """Whether it was done with everything."""
        return any(found["event"] == "left" for found in self.reports.events)

    @property
    def at(self) -> str | None:
        """What it did last, as far as it said."""
        last = [found for found in self.reports.events if found["event"] in ("at", "begin")]
        return last[-1].get("what") if last else None

    def said(self) -> list[str]:
        """The last lines of its error output that mean something, and of its exception."""
        lines = [*tail(self.stderr), *(self.error or "").splitlines()]
        told = dict.fromkeys(line.strip()[:_LONG_LINE] for line in lines if line and not _NOISE.search(line))
        return list(told)[-_LINES:]


class Workers:
    """All ranks of a job on this machine. `end` must be called. Raises InputError where there is no room for what the
    ranks report."""

    def __init__(self, job: Job, environ: Mapping[str, str], folder: Path, logs: Path) -> None:
        self.children: list[WorkerProcess] = []
        self._logs = logs
        for where, which in ((folder, "TMPDIR"), (logs, "-o DIR")):
            if shutil.disk_usage(where).free < _ROOM_BYTES:
                raise InputError(f"no space is left for the tests' reports in {where}; make room, or see {which}")
        try:
            for number in range(len(job.devices)):
                task = WorkerTask(job, job.first_rank + number, str(folder), os.getpid())
                self.children.append(_start(task, environ, logs))
        except BaseException:
            self.end()
            raise

    def refresh(self) -> None:
        for child in self.children:
            child.refresh()

    def end(self) -> list[WorkerProcess]:
        """Kill every process that is left, and what it started. Returns those that do not die."""
        for child in self.children:
            if child.process.returncode is None:  # else its number may be somebody else's by now
                _kill(child.process.pid)
        until = time.monotonic() + _DEATH_S
        for child in self.children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout=max(0.0, until - time.monotonic()))
        return [child for child in self.children if child.process.poll() is None]

    def nccl_logs(self) -> list[Path]:
        return sorted(self._logs.glob("nccl.*.log"))

    def nccl_warnings(self) -> list[str]:
        """What NCCL warned of, each once, whoever said it."""
        texts = (found[0] for path in self.nccl_logs() for line in tail(path) if (found := _NCCL_WARN.search(line)))
        return list(dict.fromkeys(text[:_LONG_LINE] for text in texts))[-_LINES:]


def _start(task: WorkerTask, environ: Mapping[str, str], logs: Path) -> WorkerProcess:
    out, err = (logs / f"rank_{task.rank}.{name}.txt" for name in ("stdout", "stderr"))
    env = child_environment(task, environ, logs)
    # Last: found where traceops is not installed, and in front of nothing that would be found otherwise.
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), _HOME)))
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            command_of("traceops.doctor.worker"),
            env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    return WorkerProcess(task.rank, process, Reports(task.reports), err)


def _kill(session: int) -> None:
    """Every rank has a session of its own: end it, and what it started in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)


_HOME = str(Path(traceops.__file__).parent.parent)


def tail(path: Path) -> list[str]:
    """The last lines of a file that may be of any size and hold anything."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()


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


def _trial(
    job: Job, workers: Workers, ended: Ended, undead: Sequence[WorkerProcess], transports: tuple[str, ...]
) -> Trial:
    ranks, stage, said = workers.children, ended.stage, tuple[str, ...]()
    if ended.how != "done":
        outcome: Outcome = ended.how
        why = _hung if ended.how == "hung" else _failed
        dead = [reason("doctor", "undead", pid=one.process.pid, who=_who(job, [one.rank])) for one in undead]
        message = "; ".join([why(job, ranks, stage), *dead])
        said = (*_said(ranks, stage), *workers.nccl_warnings())
    elif wrong := [(child, found["text"]) for child in ranks for found in child.reports.of(stage, "wrong")]:
        on = _who(job, [child.rank for child, _ in wrong])
        outcome, message = "wrong", f"wrong values on {on}: {wrong[0][1]}"
        said = tuple(f"rank {child.rank}: {text}" for child, text in wrong[:_WRONG_SHOWN])
    else:
        skipped = [found["text"] for found in ranks[0].reports.of(stage, "skipped")]
        notes = [found["text"] for child in ranks for found in child.reports.of(stage, "note")]
        outcome, message = "not_evaluated" if skipped else "ok", "; ".join(dict.fromkeys(skipped + notes))
    return replace(
        _bare(job, stage, outcome, ended.seconds, message), said=said, measured=_measured(job, ranks, stage),
        transports=transports, pairs=_pairs(job, ranks, stage, ended.how) if stage == "pairs" else (),
        failed=tuple(_gpu(job, child.rank) for child in _causes(ranks)) if outcome == "failed" else (),
        cause=None if ended.how == "done" else _cause(ranks, ended.how, (message, *said)),
    )  # fmt: skip


def _cause(ranks: Sequence[WorkerProcess], how: How, texts: Sequence[str]) -> FailureCause | None:
    """Why it failed, where no setting can help: found by the ranks themselves, else named in what they printed."""
    if how == "hung" and not all(child.has(LAUNCH, "end") for child in ranks):
        return "torch_not_imported"
    return next((child.cause for child in ranks if child.cause), None) or foreign_cause(" ".join(texts))


def _bare(job: Job, stage: str, outcome: Outcome, seconds: float, message: str) -> Trial:
    deadline_s = job.deadline_s(stage) + (job.deadline_s(LAUNCH) if stage == job.stages[0] else 0.0)
    return Trial(stage, outcome, job.devices, seconds, deadline_s, message, set=job.set, unset=job.unset)


def _hung(job: Job, ranks: Sequence[WorkerProcess], stage: str) -> str:
    """Which ranks had not come to the stage, and where the others stood in it."""
    if out := [child.rank for child in ranks if not child.has(LAUNCH, "end")]:
        return reason("doctor", "not_imported", who=_who(job, out))
    parts = []
    if out := [child.rank for child in ranks if not child.has(stage, "begin")]:
        parts.append(reason("doctor", "never_came", who=_who(job, out)))
    places: dict[str, list[int]] = {}
    for child in ranks:
        if child.has(stage, "begin") and not child.has(stage, "end"):
            places.setdefault(child.at or reason("doctor", "beginning"), []).append(child.rank)
    parts += [reason("doctor", "stood", who=_who(job, at), place=place) for place, at in places.items()]
    if done := [child.rank for child in ranks if child.has(stage, "end")]:
        parts.append(reason("doctor", "done", who=_who(job, done)))
    return "; ".join(parts)


def _failed(job: Job, ranks: Sequence[WorkerProcess], stage: str) -> str:
    """Who died or raised what, who lost the connection to them, and who waited."""
    failed, causes = [child for child in ranks if child.failed], _causes(ranks)
    ends: dict[str, list[int]] = {}
    for child in causes:
        ends.setdefault(_how_it_ended(child), []).append(child.rank)
    parts = [f"{_who(job, at)} {how}" for how, at in ends.items()]
    if lost := [child.rank for child in failed if child not in causes]:
        parts.append(f"{_who(job, lost)} then lost a connection")
    if waited := [child.rank for child in ranks if not child.failed and not child.has(stage, "end")]:
        parts.append(f"{_who(job, waited)} waited")
    return "; ".join(parts)


def _causes(ranks: Sequence[WorkerProcess]) -> list[WorkerProcess]:
    """Those that failed of themselves; all that failed where each has lost another."""
    failed = [child for child in ranks if child.failed]
    return [child for child in failed if child.error is None or not is_peer_failure(child.error)] or failed


def _how_it_ended(child: WorkerProcess) -> str:
    if child.error is not None:  # its first line; what NCCL failed at stands below that
        first, last = child.error.splitlines()[0], _NCCL_LAST_ERROR.search(child.error)
        return reason("doctor", "said", error=(f"{first}: {last[1]}" if last else first)[:_LONG_MESSAGE])
    if child.exit is not None and child.exit < 0:
        name = next((known.name for known in signal.Signals if known == -child.exit), f"signal {-child.exit}")
        how = reason("doctor", "killed", signal=name)
    else:
        how = reason("doctor", "ended", code=str(child.exit))
    return f"{how} at: {child.at}" if child.at else how


def _said(ranks: Sequence[WorkerProcess], stage: str) -> list[str]:
    """What ranks said, those first that failed; equal lines once, with who said them first."""
    order = sorted((child for child in ranks if not child.has(stage, "end")), key=lambda child: not child.failed)
    lines: dict[str, str] = {}
    for child in order:
        for line in child.said():
            lines.setdefault(line, f"rank {child.rank}: {line}")
    return list(lines.values())[:_SAID_SHOWN]


def _way(connection: Connection) -> str:
    if connection.transport == "SHM":
        return "SHM"
    return f"{connection.transport}/{connection.detail}" + ("/GDRDMA" if connection.gdr else "")


def _measured(job: Job, ranks: Sequence[WorkerProcess], stage: str) -> tuple[Measured, ...]:
    host = None if job.rendezvous else platform.node()
    rows = [found["row"] for child in ranks for found in child.reports.of(stage, "measured")]
    return slowest_rows(
        Measured(
            row["op"], tuple(_gpu(job, rank) for rank in row["ranks"]), row["bytes"], row["time_us"],
            row["busbw_gbs"], host, job.backend,
        ) for row in rows
    )  # fmt: skip


def _pairs(job: Job, ranks: Sequence[WorkerProcess], stage: str, how: How) -> tuple[PairState, ...]:
    """Of every pair with a rank on this node."""
    states = []
    for pair in pair_order(job.world_size):
        here = [child.reports.of(stage, "pair") for child in ranks if child.rank in pair]
        own = [[found["state"] for found in reports if tuple(found["ranks"]) == pair] for reports in here]
        if here:
            outcome = _pair_outcome([state[-1] if state else None for state in own], how)
            states.append(PairState((_gpu(job, pair[0]), _gpu(job, pair[1])), outcome))
    return tuple(sorted(states, key=lambda state: state.gpus))


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

    logs: a folder for this job alone, made where it is not there: NCCL's own logs (``nccl.<host>.<pid>.log``) and the
    output of the ranks stay in it. A stage that is not done by its deadline, or in which a rank fails, ends the launch:
    the stages after it are ``not_evaluated``. No process is left behind, whatever happens, but for one that not even
    SIGKILL ends, which is waited for a few seconds only."""
    with tempfile.TemporaryDirectory(prefix="traceops-doctor-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        kept = logs or folder
        kept.mkdir(parents=True, exist_ok=True)
        workers = Workers(job, environ, folder, kept)
        try:
            ended = _watch(job, workers)
        finally:
            undead = workers.end()
        # One Trial per stage of the job.
        launch, *stages = ended
        # A launch is no stage of its own: its time counts to the first one.
        first = stages[0] if stages else Ended(job.stages[0], launch.how, 0.0)
        stages = [replace(first, seconds=launch.seconds + first.seconds), *stages[1:]]
        # The ways NCCL says it took, over all stages, the most used first.
        paths = [str(path) for path in workers.nccl_logs()]
        connections = (found for comm in read_nccl_log(paths).communicators for found in comm.connections)
        transports = tuple(way for way, _ in Counter(map(_way, connections)).most_common())
        trials = [_trial(job, workers, stage, undead, transports) for stage in stages]
        broken = stages[-1]
        for stage in job.stages[len(stages) :]:
            why = f"not started, because {broken.stage} {'hung' if broken.how == 'hung' else 'failed'}"
            trials.append(_bare(job, stage, "not_evaluated", 0.0, why))
        return tuple(trials)


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
    """Until every rank has ended the stage, or it is clear that they will not. A rank that has failed keeps the others
    waiting. They get a moment all the same: their errors may add to it, or they may end the stage too."""
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
