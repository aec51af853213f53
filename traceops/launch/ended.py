"""How a run ended: its exit code, which rank failed first, whose capture ended early, and run.json."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from traceops.capture.environment import environment_that_matters, git_state, software_versions
from traceops.capture.folder import Unrecorded, unrecorded
from traceops.capture.manifest import RankManifest, merge, readable_ranks, write_json
from traceops.capture.progress import Progress
from traceops.capture.schedule import Phase
from traceops.core.capture_failure import CaptureFailure, CaptureOperation
from traceops.core.claims import Wording
from traceops.core.errors import reported_codes, shell_code
from traceops.core.run_lock import Launcher
from traceops.launch.display import Screen
from traceops.launch.outcome import Failure, first_failure, gone_unseen, left_early, with_exit_codes
from traceops.launch.plan import Plan
from traceops.launch.process import TorchrunResult

_text = Wording("launch", "end")


class EndedRun(Struct, frozen=True):
    """How a run ended, as far as that could be read. ended: what torchrun did. early: captures that ended early. code:
    the run's exit code. ranks: manifests as they are to be kept. failure: the rank that failed first."""

    ended: TorchrunResult
    early: Sequence[CaptureFailure]
    code: int
    ranks: Sequence[RankManifest] = ()
    failure: Failure | None = None

    @property
    def status(self) -> str:
        """As run.json has it."""
        if self.ended.hung:
            return "hung"
        if self.ended.signal:
            return "interrupted"
        return "failed" if self.code else "finished"


def write_run(plan: Plan, env: Mapping[str, str], started: int, run: EndedRun | None = None) -> None:
    """Write it, as far as is known: without `run`, that it has begun. started: Unix time, ns."""
    ranks = [] if run is None else list(run.ranks)
    document = merge(
        ranks, name=plan.name, command=["traceops", *sys.argv[1:]],
        argv=plan.trains if plan.checkout is None else plan.checkout.argv, environment=environment_that_matters(env),
        versions=software_versions(), git=git_state(Path.cwd()) if plan.checkout is None else plan.checkout.git,
        world_size=plan.cluster.world_size, nnodes=plan.cluster.nnodes, started_ns=started,
        ended_ns=None if run is None else time.time_ns(), status="running" if run is None else run.status,
        exit_code=None if run is None else run.code,
        failed_rank=None if run is None or run.failure is None else run.failure.rank,
        failures=() if run is None else run.early,
        settings=None if plan.settings is None else msgspec.to_builtins(plan.settings),
        fallback=None if plan.fallback is None else msgspec.to_builtins(plan.fallback),
        signal=None if run is None or run.ended.signal is None else signal.Signals(run.ended.signal).name,
        launcher=msgspec.to_builtins(Launcher.this()),
        not_recorded=[asdict(one) for one in unrecorded_here(plan, ranks)],
    )  # fmt: skip
    write_json(plan.out / "run.json", asdict(document))


def unrecorded_here(plan: Plan, ranks: Sequence[RankManifest]) -> list[Unrecorded]:
    """Processes that trained and were not recorded."""
    return list(unrecorded(plan.out, [rank.rank for rank in ranks]))


HUNG = 124  # as timeout(1) has it


def how_it_ended(
    plan: Plan, ended: TorchrunResult, early: Sequence[CaptureFailure], last: list[Progress], screen: Screen
) -> EndedRun:
    """`last`: what the ranks' records said when torchrun had ended."""
    reported = {} if ended.hung else reported_codes(ended.torchrun_log)
    by_us = bool(ended.signal) or ended.hung or ended.completed
    silent = 0 if ended.returncode == 0 else -signal.SIGTERM if by_us else None
    readable, unreadable = readable_ranks(plan.out)
    for problem in unreadable:
        screen.say(problem)
    known = with_last_steps(with_failures(readable, early), last)
    ranks = with_exit_codes(known, reported, default=silent)
    ranks = gone_unseen(known, ranks, {one.rank for one in unrecorded_here(plan, known) if one.restarted})
    own_end = ended.returncode != 0 and not by_us
    failure = first_failure(ranks, reported) if own_end else None
    code = exit_code(ended, failure)
    if ended.signal is not None and not ended.hung:
        if plan.launcher == "none":
            code = ended.returncode
        elif plan.cluster.world_size == len(known) == 1 and (own := known[0].exit_code) is not None:
            code = own  # the only rank may have saved its work and ended by itself
    if failure is not None and (leaver := left_early(ranks, ended.gone, failure, reported)) is not None:
        failure, echo = leaver, failure
        screen.say(_text("failed_after", rank=echo.rank, code=code, gone=leaver.rank))
        ranks = with_exit_codes(ranks, {leaver.rank: 0}, default=None)
    return EndedRun(ended, early, code, ranks, failure)


def exit_code(ended: TorchrunResult, failure: Failure | None) -> int:
    """Of the run: the training's, 128 plus a signal's number, or 124 after a hang."""
    if ended.hung:
        return HUNG
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.completed:
        return 0
    if ended.returncode and failure is not None:
        return failure.exit_code
    return shell_code(ended.returncode)


_COMPLETE = (Phase.DONE.value, "ended")


def cut_short(
    records: Sequence[Progress], ranks: Sequence[RankManifest], ended: TorchrunResult, by_torchrun: bool
) -> list[CaptureFailure]:
    """Ranks that ended themselves in the middle of their capture: os._exit says goodbye to nobody. records: where the
    ranks of this machine were last. Those that a signal ended are left out: they did not do it. by_torchrun: it tells
    of each rank that ended with another code than 0; a command of the user's does not."""
    if ended.signal is not None or ended.hung or ended.completed:
        return []
    reported = reported_codes(ended.torchrun_log)
    running = {rank.rank for rank in ranks if rank.status == "running" and rank.failure is None}
    zero = ended.returncode == 0 or bool(reported)  # the report has each rank of ours that ended with another
    found = []
    for record in records:
        gone = record.rank in ended.gone
        code = reported.get(record.rank, 0 if zero or (gone and by_torchrun) else None)
        own_end = code >= 0 if code is not None else gone
        if record.rank in running and record.phase not in _COMPLETE and own_end:
            found.append(CaptureFailure(record.rank, CaptureOperation.EXIT.value, record.step, exit_code=code))
    return found


def with_last_steps(ranks: Sequence[RankManifest], records: Sequence[Progress]) -> list[RankManifest]:
    """The manifests, with the steps that ranks ended after they last wrote theirs: Ray kills its workers at the end."""
    last = {(record.rank, record.pid): record.step for record in records}  # not of an attempt before this one
    return [
        replace(rank, steps=max(rank.steps, last.get((rank.rank, rank.pid), 0))) if rank.ended_ns is None else rank
        for rank in ranks
    ]


def with_failures(ranks: Sequence[RankManifest], early: Sequence[CaptureFailure]) -> list[RankManifest]:
    """The manifests, with what the ranks could not write there themselves."""
    known = {failure.rank: failure for failure in early}
    return [replace(rank, failure=rank.failure or known.get(rank.rank)) for rank in ranks]


def early_ends(ranks: Sequence[RankManifest], early: Sequence[CaptureFailure]) -> list[CaptureFailure]:
    """One for each rank whose capture ended early; what its manifest says comes first."""
    known = {failure.rank: failure for failure in early}
    return list((known | {rank.rank: rank.failure for rank in ranks if rank.failure is not None}).values())
