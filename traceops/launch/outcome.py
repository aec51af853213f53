"""Which rank failed first and with what, from torchrun's report and the manifests; run.json without a launcher."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from msgspec import Struct

from traceops.capture.environment import host
from traceops.capture.guard import is_peer_failure
from traceops.capture.manifest import RankManifest, RunManifest, merge, readable_ranks, write_json
from traceops.core.claims import Wording
from traceops.core.errors import ENDED_BY, KILLED_BY, shell_code, signal_name
from traceops.core.installation import PACKAGE
from traceops.launch.folder import collect_logs, remove_reserve

_text = Wording("launch", "end")


class Failure(Struct, frozen=True):
    """The rank that failed first; `exit_code` as a shell has it, 128 + n for signal n."""

    rank: int
    exit_code: int
    reason: str


def with_exit_codes(ranks: list[RankManifest], reported: dict[int, int], *, default: int | None) -> list[RankManifest]:
    """The manifests, completed for ranks that were gone before they could say how they ended. default: return code of
    those that torchrun does not report either; None if that cannot be known."""
    completed = []
    for rank in ranks:
        made, code = _completed(rank, reported.get(rank.rank, default)), reported.get(rank.rank, -1)
        # An uncaught Ctrl-C should end Python by SIGINT, which the rank wrote down. On a GPU it can end with 1 instead.
        interrupted = made.exit_code == 128 + signal.SIGINT and code >= 0
        completed.append(replace(made, exit_code=code) if interrupted else made)
    return completed


def _completed(rank: RankManifest, code: int | None) -> RankManifest:
    # One that said that it ended well may have been killed in what Python or a library does last.
    killed_at_its_end = rank.exit_code == 0 and code is not None and code < 0 and code != -signal.SIGTERM
    if code is None or (rank.exit_code is not None and not killed_at_its_end):
        return rank
    done = replace(rank, exit_code=shell_code(code))
    if rank.exit_code is None and rank.status != "running":
        return done
    if code in (0, -signal.SIGTERM):
        return replace(done, status="terminated" if code else "finished")
    return replace(done, status="failed", error=f"{KILLED_BY}{signal_name(-code)}" if code < 0 else None)


def gone_unseen(known: list[RankManifest], ranks: list[RankManifest], restarted: Collection[int]) -> list[RankManifest]:
    """`ranks`, of which those that said nothing at their end and were started again did not finish. known: the same
    before they were completed by how the whole command ended."""
    silent = {rank.rank for rank in known if rank.status == "running" and rank.exit_code is None}
    return [
        replace(rank, status="failed", exit_code=None, error=rank.error or _text("in_the_middle"))
        if rank.rank in silent and rank.rank in restarted
        else rank
        for rank in ranks
    ]


def first_failure(ranks: list[RankManifest], reported: dict[int, int]) -> Failure | None:
    """The first to fail, or None if nobody did. A rank that was killed comes before any that raised: it had no time to
    say so, and the others raise because it is gone. A rank that torchrun ended with SIGTERM is never the first, if
    another is known."""
    killed = [rank for rank, code in reported.items() if code < 0 and code != -signal.SIGTERM]
    if killed:
        rank = killed[-1]
        return Failure(rank, shell_code(reported[rank]), f"{KILLED_BY}{signal_name(-reported[rank])}")
    raised = [rank for rank in ranks if (rank.status == "failed" or rank.error) and rank.exit_code not in (None, 0)]
    root = next(reversed(reported), None)  # which torchrun saw end first
    if root is not None and reported[root] == -signal.SIGTERM:
        # All lost another, and torchrun had to end them, too; or a SIGTERM from elsewhere ended those that ended.
        only_ended = all(code in (0, -signal.SIGTERM) for code in reported.values())
        if _echoes_only(raised, root) if raised else only_ended:
            return Failure(root, shell_code(reported[root]), f"{ENDED_BY}{signal_name(signal.SIGTERM)}")
    if raised:
        return _first_raised(raised)
    others = ((rank, code) for rank, code in reversed(reported.items()) if code not in (0, -signal.SIGTERM))
    return next((Failure(rank, shell_code(code), f"exit code {code}") for rank, code in others), None)


def _first_raised(raised: Sequence[RankManifest]) -> Failure:
    """Of ranks that raised, the first that torchrun did not end."""
    by_itself = [rank for rank in raised if rank.exit_code != 128 + signal.SIGTERM]
    first = min(by_itself or raised, key=lambda rank: rank.ended_ns or 0)
    assert first.exit_code is not None
    return Failure(first.rank, first.exit_code, first.error or f"exit code {first.exit_code}")


def _echoes_only(raised: Sequence[RankManifest], root: int) -> bool:
    """Whether all lost another, and torchrun had to end them, too; root: whom torchrun saw end first."""
    return all(
        rank.rank != root and rank.exit_code == 128 + signal.SIGTERM and is_peer_failure(rank.error or "")
        for rank in raised
    )


def left_early(
    ranks: list[RankManifest], gone: Sequence[int], failure: Failure, reported: Mapping[int, int]
) -> Failure | None:
    """The rank that ended without a failure before `failure` was raised for want of it; None if that is not so.

    gone: ranks in the order in which we saw that their processes had ended; of two that we saw at once, neither is
    known to be the first. torchrun goes on when a rank ends with code 0, and its report has each rank of this host
    that ended with another.
    """
    if not is_peer_failure(failure.reason):
        return None
    known = {rank.rank: rank for rank in ranks}
    failed = known.get(failure.rank)
    unseen = [rank.rank for rank in ranks if reported and failed is not None and rank.host == failed.host]
    for rank in dict.fromkeys([*gone, *unseen]):
        if rank != failure.rank and rank not in reported and _may_be_first(known.get(rank), failed, rank in gone):
            return Failure(rank, 0, _text("still_needed"))
    return None


def _may_be_first(rank: RankManifest | None, failed: RankManifest | None, seen: bool) -> bool:
    """Whether this rank ended with code 0 before `failed` did; seen: while torchrun knew of no failure."""
    if rank is None:
        return seen
    if rank.exit_code not in (None, 0):
        return False
    if rank.ended_ns is None:  # in the middle of its training: os._exit says goodbye to nobody
        return seen or rank.status == "running"
    return seen if failed is None or failed.ended_ns is None else rank.ended_ns <= failed.ended_ns


CUT_SHORT = "cut_short"
_SETTLE = "import sys; sys.path.append({!r}); from traceops.launch.outcome import main; main(sys.argv[1:])"


def settle_command(out: Path, logs: Path | None) -> tuple[str, ...]:
    """What runs `settle` in a process of its own, in which nothing of the user's can be in its way."""
    code = _SETTLE.format(str(PACKAGE.parent))
    return (sys.executable, "-I", "-c", code, str(out), *([] if logs is None else [str(logs)]))


def main(argv: list[str]) -> None:
    """Settle the run in the folder that is named first; the second is that of torchrun's logs."""
    settle(Path(argv[0]), Path(argv[1]) if len(argv) > 1 else None)


def settle(out: Path, logs: Path | None) -> None:
    """Complete run.json from what the ranks wrote: the run was cut short when its launcher was killed."""
    remove_reserve(out)
    known = {field.name for field in fields(RunManifest)}
    begun = {key: value for key, value in json.loads((out / "run.json").read_text()).items() if key in known}
    if begun.get("status") != "running":  # the launcher had written it before
        return
    ranks = with_exit_codes(readable_ranks(out)[0], {}, default=-signal.SIGTERM)
    kept = ("name", "command", "argv", "environment", "git", "world_size", "nnodes", "started_ns")
    own: dict[str, Any] = {key: begun[key] for key in kept}
    own |= {key: begun.get(key) for key in ("settings", "fallback", "launcher")}
    merged = merge(
        ranks, **own, versions={key: begun[key] for key in ("traceops_version", "python_version", "torch_version")},
        ended_ns=time.time_ns(), status=CUT_SHORT, notes=[_text("launcher_killed")],
    )  # fmt: skip
    write_json(out / "run.json", asdict(merged))
    if logs is not None:
        collect_logs(out, logs, ranks, host())
