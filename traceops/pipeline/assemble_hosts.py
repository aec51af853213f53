"""The hosts of a run as rows of its report: what their ranks do, and what goes on inside and between hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from traceops.across.cross_rank import CrossRank
from traceops.across.links import overall_busbw
from traceops.across.match import Collective
from traceops.core.units import stored
from traceops.measure.ledger import BUCKETS
from traceops.report.rows import HostSummary, RankRow


def host_rows(run: CrossRank, ranks: Sequence[RankRow]) -> tuple[HostSummary, ...]:
    """A row a host, by its first rank; none where all ranks are on one host, or hosts are not named."""
    of_host: dict[str, list[RankRow]] = defaultdict(list)
    for row in ranks:
        if row.host is None:
            return ()
        of_host[row.host].append(row)
    if len(of_host) < 2:
        return ()
    parts = _parts(run, {row.rank: host for host, rows in of_host.items() for row in rows})
    return tuple(_row(host, rows, run, parts[host]) for host, rows in of_host.items())


class _HostCollectives:
    """Collectives that a host takes part in, inside it or not: ns of its ranks together, and all of them."""

    def __init__(self) -> None:
        self.wait_ns = self.transfer_ns = 0
        self.collectives: dict[int, Collective] = {}


def _parts(run: CrossRank, host_of: dict[int, str]) -> dict[str, tuple[_HostCollectives, _HostCollectives]]:
    """Of each host what lies inside, and what reaches another one; of recorded steps."""
    edges = {times.summary.rank: times.summary.step_edges for times in run.ranks}
    comm = {times.summary.rank: times.summary.comm for times in run.ranks}
    parts: dict[str, tuple[_HostCollectives, _HostCollectives]] = defaultdict(
        lambda: (_HostCollectives(), _HostCollectives())
    )
    for number, collective in enumerate(run.matching.collectives):
        away = len({host_of.get(rank) for rank in collective.group}) > 1
        for (rank, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            start, end = (int(times[position]) for times in (comm[rank].start, comm[rank].end))
            if not edges[rank][0] <= start < edges[rank][-1]:
                continue
            part = parts[host_of[rank]][away]
            part.wait_ns += wait
            part.transfer_ns += end - start - wait
            part.collectives[number] = collective
    return parts


def _row(
    host: str, rows: Sequence[RankRow], run: CrossRank, parts: tuple[_HostCollectives, _HostCollectives]
) -> HostSummary:
    steps = sum(row.steps for row in rows)  # of all its ranks: ns over it is the average rank's, a step
    per = {
        f"{name}_{kind}_ms": stored(getattr(part, f"{kind}_ns") / steps / 1e6) if run.split and steps else None
        for name, part in zip(("inside", "between"), parts, strict=True)
        for kind in ("wait", "transfer")
    }
    inside, between = (overall_busbw(list(part.collectives.values())) for part in parts)
    return HostSummary(
        host=host,
        ranks=tuple(row.rank for row in rows),
        step_ms=_mean([row.typical_step_ms for row in rows]),
        **{f"{bucket}_ms": _mean([row.bucket_ms(bucket) for row in rows]) for bucket in BUCKETS},
        **per,
        inside_busbw_gbs=inside,
        between_busbw_gbs=between,
        caused_wait_ms=_sum([row.caused_wait_ms for row in rows]),
        late_share=_sum([row.late_share for row in rows]),
        peak_memory_bytes=max((row.peak_memory_bytes for row in rows if row.peak_memory_bytes), default=None),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stored(fmean(known)) if known and len(known) == len(values) else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stored(sum(known)) if known and len(known) == len(values) else None
