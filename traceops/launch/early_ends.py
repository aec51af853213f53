"""Ranks whose capture ended before it was complete, as the launcher can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from traceops.capture.manifest import RankManifest
from traceops.capture.progress import Progress
from traceops.capture.schedule import Phase
from traceops.core.capture_failure import CaptureFailure, CaptureOperation
from traceops.core.errors import reported_codes
from traceops.launch.process import TorchrunResult

_COMPLETE = (Phase.DONE.value, "ended")


def cut_short(
    records: Sequence[Progress], ranks: Sequence[RankManifest], ended: TorchrunResult, by_torchrun: bool
) -> list[CaptureFailure]:
    """Ranks that ended themselves in the middle of their capture: os._exit says goodbye to nobody.

    records: where the ranks of this machine were last. Those that a signal ended are left out: they did not do it.
    by_torchrun: it tells of each rank that ended with another code than 0; a command of the user's does not.
    """
    if ended.signal is not None or ended.hung:
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


def with_failures(ranks: Sequence[RankManifest], told: Sequence[CaptureFailure]) -> list[RankManifest]:
    """The manifests, with what the ranks could not write there themselves."""
    known = {failure.rank: failure for failure in told}
    return [replace(rank, failure=rank.failure or known.get(rank.rank)) for rank in ranks]


def early_ends(ranks: Sequence[RankManifest], told: Sequence[CaptureFailure]) -> list[CaptureFailure]:
    """One for each rank whose capture ended early; what its manifest says comes first."""
    known = {failure.rank: failure for failure in told}
    return list((known | {rank.rank: rank.failure for rank in ranks if rank.failure is not None}).values())
