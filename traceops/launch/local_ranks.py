"""Which rank has a local rank of this machine."""

from __future__ import annotations

from pathlib import Path

from traceops.capture.progress import read_progress
from traceops.launch.forward import RankOf
from traceops.launch.plan import Cluster


def rank_of(cluster: Cluster, progress: Path) -> RankOf:
    """On several machines, once all ranks of this one have told who they are: torchrun numbers them in one piece.

    progress: folder of their records.
    """

    def of(local: int) -> int | None:
        if cluster.nnodes == 1:
            return local
        told = [record.rank for record in read_progress(progress)]
        return min(told) + local if len(told) == cluster.nproc else None

    return of
