"""How a run ended: its exit code, its ranks, and which of them failed first."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from traceops.capture.manifest import readable_ranks
from traceops.capture.progress import Progress
from traceops.core.capture_failure import CaptureFailure
from traceops.core.errors import reported_codes, shell_code
from traceops.launch.display import Screen
from traceops.launch.early_ends import with_failures, with_last_steps
from traceops.launch.ended_run import EndedRun
from traceops.launch.outcome import Failure, first_failure, gone_unseen, left_early, with_exit_codes
from traceops.launch.plan import Plan
from traceops.launch.process import TorchrunResult
from traceops.launch.run_document import unrecorded_here

HUNG = 124  # as timeout(1) has it


def how_it_ended(
    plan: Plan, ended: TorchrunResult, told: Sequence[CaptureFailure], last: list[Progress], screen: Screen
) -> EndedRun:
    """`last`: what the ranks' records said when torchrun had ended."""
    reported = {} if ended.hung else reported_codes(ended.torchrun_log)
    silent = 0 if ended.returncode == 0 else -signal.SIGTERM if ended.signal or ended.hung else None
    readable, unreadable = readable_ranks(plan.out)
    for problem in unreadable:
        screen.say(problem)
    known = with_last_steps(with_failures(readable, told), last)
    ranks = with_exit_codes(known, reported, default=silent)
    ranks = gone_unseen(known, ranks, {one.rank for one in unrecorded_here(plan, known) if one.restarted})
    own_end = ended.returncode != 0 and not ended.signal and not ended.hung
    failure = first_failure(ranks, reported) if own_end else None
    code = exit_code(ended, failure)
    if failure is not None and (leaver := left_early(ranks, ended.gone, failure, reported)) is not None:
        failure, echo = leaver, failure
        screen.say(f"rank {echo.rank} failed with exit code {code}, because rank {leaver.rank} was gone")
        ranks = with_exit_codes(ranks, {leaver.rank: 0}, default=None)
    return EndedRun(ended, told, code, ranks, failure)


def exit_code(ended: TorchrunResult, failure: Failure | None) -> int:
    """Of the run: the training's, 128 plus a signal's number, or 124 after a hang."""
    if ended.hung:
        return HUNG
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.returncode and failure is not None:
        return failure.exit_code
    return shell_code(ended.returncode)
