"""One run from plan to run.json: starts the ranks, and says what became of them."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from traceops.capture.environment import (
    environment_that_matters,
    git_state,
    host,
    software_versions,
)
from traceops.capture.manifest import RankManifest, merge, read_ranks, write_json, write_rank
from traceops.launch.display import Screen
from traceops.launch.folder import collect_logs
from traceops.launch.outcome import Failure, first_failure, reported_codes, shell_code, with_exit_codes
from traceops.launch.plan import Plan
from traceops.launch.process import Ended, run

_TAIL_LINES = 20


def launch(plan: Plan) -> int:
    """Run `plan`; returns the exit code of the training: of the rank that failed first, if one did.

    After Ctrl-C or SIGTERM it is 128 plus the signal's number, 130 for Ctrl-C.
    """
    screen = Screen()
    started = time.time_ns()
    plan.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="traceops-") as progress:
        # One node: we have looked at the folder and merge the manifests; several: each rank claims its own.
        assignments = plan.assignments(os.environ, progress=progress, launched=plan.cluster.nnodes == 1)
        env = {**os.environ, **assignments}
        _write_run(plan, [], env, started, status="running")
        screen.say(
            f"{plan.cluster.nproc} rank{'s' if plan.cluster.nproc > 1 else ''}, run folder {_short(plan.out)}"
        )
        ended = run(
            plan.command, env, progress=Path(progress), ranks=plan.cluster.nproc,
            prefixed=plan.log_files, screen=screen,
        )  # fmt: skip
    reported = reported_codes(ended.torchrun_log)
    silent = 0 if ended.returncode == 0 else -signal.SIGTERM if ended.signal else None
    ranks = with_exit_codes(read_ranks(plan.out), reported, default=silent)
    here = [rank for rank in ranks if rank.host == host()]
    for rank in here:
        write_rank(plan.out, rank)
    _keep_logs(plan, ended, here)
    failure = None if ended.returncode == 0 or ended.signal else first_failure(ranks, reported)
    code = _exit_code(ended, failure)
    status = "interrupted" if ended.signal else "failed" if code else "finished"
    _write_run(plan, ranks, env, started, status=status, exit_code=code, failure=failure)
    _tell(screen, plan, ranks, ended, failure, code)
    return code


def _exit_code(ended: Ended, failure: Failure | None) -> int:
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.returncode and failure is not None:
        return failure.exit_code
    return shell_code(ended.returncode)


def _keep_logs(plan: Plan, ended: Ended, here: list[RankManifest]) -> None:
    if not plan.log_files:
        return
    logs = plan.out / "logs"
    logs.mkdir(exist_ok=True)
    if ended.torchrun_log.strip():
        (logs / f"torchrun.{host()}.log").write_text(ended.torchrun_log)
    collect_logs(plan.out, here, host())


def _write_run(
    plan: Plan,
    ranks: list[RankManifest],
    env: dict[str, str],
    started: int,
    *,
    status: str,
    exit_code: int | None = None,
    failure: Failure | None = None,
) -> None:
    document = merge(
        ranks,
        name=plan.name,
        command=["traceops", *sys.argv[1:]],
        argv=plan.trains,
        environment=environment_that_matters(env),
        versions=software_versions(),
        git=git_state(Path.cwd()),
        world_size=plan.cluster.world_size,
        nnodes=plan.cluster.nnodes,
        started_ns=started,
        ended_ns=None if status == "running" else time.time_ns(),
        status=status,
        exit_code=exit_code,
        failed_rank=None if failure is None else failure.rank,
    )
    write_json(plan.out / "run.json", asdict(document))


def _tell(
    screen: Screen, plan: Plan, ranks: list[RankManifest], ended: Ended, failure: Failure | None, code: int
) -> None:
    if failure is not None:
        where = next((f" on {rank.host}" for rank in ranks if rank.rank == failure.rank), "")
        screen.say(
            f"rank {failure.rank}{where} failed first, exit code {failure.exit_code}: {failure.reason}"
        )
        log = plan.out / "logs" / f"rank_{failure.rank}.stderr.log"
        if log.exists():
            screen.say(f"its output is in {_short(log)}")
    elif code and not ended.signal:
        screen.say(f"torchrun ended with {ended.returncode} and named no rank; its last words:")
        tail = ended.torchrun_log.splitlines(keepends=True)[-_TAIL_LINES:]
        screen.output("".join(tail).encode(), error=True)
    for note in sorted({rank.note for rank in ranks if rank.note}):
        screen.say(note)
    traced = sum(bool(rank.traces) for rank in ranks)
    screen.say(f"{traced} of {plan.cluster.world_size} ranks traced in {_short(plan.out)}")
    if traced:
        screen.say(f"next: traceops analyze {_short(plan.out)}")


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
