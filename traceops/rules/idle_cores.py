"""Whether a rank that waits for its next batch waits for its loader's workers, or for a core of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traceops.across.core_waits import recorded_waits
from traceops.across.loader_pace import has_workers
from traceops.core.findings import SEVERITIES, Evidence, Finding, severity_of
from traceops.core.units import ms_text, percent_text, stored
from traceops.measure.loader_work import BUSY_PCT, LoaderWork, loader_work
from traceops.rules.idle_time import Idle
from traceops.rules.inputs import Inputs
from traceops.rules.recorded_cores import WAITS_PCT


@dataclass(frozen=True)
class NextBatch:
    """What is known of a rank that waits for the next batch of a loader with workers.

    core_ms: what it waits for a core in each recorded step, 0 where that is not known. work: what the workers do, None
    where they were looked at too seldom. waits_ms: for its next batch.
    """

    rank: int
    waits_ms: float
    core_ms: float
    work: LoaderWork | None

    @property
    def idle_workers(self) -> bool:
        """Whether each of its workers is seen to have nothing to do most of the time."""
        return self.work is not None and self.work.busiest_pct < BUSY_PCT

    @property
    def wants_a_core(self) -> bool:
        """Whether it waits for a core as long as for its next batch, so that one may be all of the other."""
        return self.core_ms >= self.waits_ms

    @property
    def not_loading(self) -> bool:
        """Whether its loader is in time, and the rank itself gets no core to take the batch."""
        return self.idle_workers and self.wants_a_core

    @property
    def unsure(self) -> bool:
        """Whether nothing tells if its workers are late, or it gets no core."""
        return self.work is None and self.wants_a_core


def next_batch(inputs: Inputs, one: Idle) -> NextBatch | None:
    """Of a rank whose loader has workers; None where it loads by itself, or waits for something else."""
    if not has_workers(one.times.summary):
        return None
    rank = one.times.summary.rank
    observed = next((own for own in inputs.observed if own.rank == rank), None)
    if observed is None:
        return NextBatch(rank, one.recorded_ms, 0.0, None)
    wait = recorded_waits([observed]).get(rank)
    work = loader_work(observed) if inputs.whole is None else inputs.whole.loaders.get(rank)
    return NextBatch(rank, one.recorded_ms, 0.0 if wait is None else wait.ms, work)


def loading_ranks(inputs: Inputs, idle: Sequence[Idle], least_pct: float) -> tuple[list[Idle], str]:
    """The ranks that may wait for their loaders, and why the worst of the others that wait so long does not, or ''."""
    kept, spared = list[Idle](), list[NextBatch]()
    for one in idle:
        batch = next_batch(inputs, one) if one.pct >= least_pct else None
        if batch is not None and batch.not_loading:
            spared.append(batch)
        else:
            kept.append(one)
    return kept, _spared_text(spared)


def _spared_text(spared: Sequence[NextBatch]) -> str:
    worst = max(spared, key=lambda one: one.waits_ms, default=None)
    if worst is None or worst.work is None:
        return ""
    return (
        f"rank {worst.rank} waits {ms_text(worst.waits_ms)} ms for its next batch, but its loader's workers have "
        f"nothing to do for {100 - worst.work.busy_pct:.0f} % of the time, and it waits {ms_text(worst.core_ms)} ms of "
        "each recorded step for a core"
    )


def not_by_workers(batch: NextBatch | None) -> tuple[str, tuple[Evidence, ...]]:
    """A sentence where more workers are not known to help, and its numbers; nothing where they may."""
    if batch is None:
        return "", ()
    core = Evidence("waits for a core", stored(batch.core_ms), "ms/recorded step", rank=batch.rank)
    if batch.idle_workers and batch.work is not None:
        busy = Evidence("loader workers busy", round(batch.work.busy_pct, 1), "%", rank=batch.rank)
        return (
            f" The workers of rank {batch.rank}'s loader have nothing to do for {100 - batch.work.busy_pct:.0f} % of "
            "the time: more of them would not help.",
            (busy,),
        )
    if batch.work is not None and batch.work.one_busy:
        busiest = Evidence("busiest loader worker", round(batch.work.busiest_pct, 1), "%", rank=batch.rank)
        return (
            f" One of the {batch.work.processes} workers of rank {batch.rank} that were looked at is busy for "
            f"{batch.work.busiest_pct:.0f} % of the time, all together for {batch.work.busy_pct:.0f} %. The others are "
            "of another loader, or wait for the slow one, as batches come in order: nothing tells whether more of them "
            "would help.",
            (busiest,),
        )
    if batch.unsure:
        return (
            f" Rank {batch.rank} waits {ms_text(batch.core_ms)} ms of each recorded step for a core: nothing tells "
            "whether its loader is late too.",
            (core,),
        )
    return "", ()


def without_waiting(
    found: Finding, inputs: Inputs, idle: Sequence[Idle], worst: Idle, bounds: Sequence[float]
) -> Finding:
    """The finding of ranks that load by themselves, as severe as the most that waiting for a core leaves of any."""
    waits = {one.times.summary.rank: _waited_pct(inputs, one) for one in idle}
    rank = worst.times.summary.rank
    left = severity_of(max(one.pct - waits[one.times.summary.rank] for one in idle), *bounds) or "info"
    if not waits[rank] or SEVERITIES.index(left) >= SEVERITIES.index(found.severity):
        return found
    return replace(
        found,
        severity=left,
        message=f"{found.message} Rank {rank} waits {percent_text(waits[rank])} of these steps for a core: nothing "
        "tells how much of its loading is that.",
        evidence=(*found.evidence, Evidence("waits for a core", round(waits[rank], 1), "%", WAITS_PCT, rank)),
    )


def _waited_pct(inputs: Inputs, one: Idle) -> float:
    """What a rank without workers wants for a core in its recorded steps; 0 where that is little."""
    rank = one.times.summary.rank
    wait = recorded_waits([own for own in inputs.observed if own.rank == rank]).get(rank)
    if wait is None or wait.beside_pct < WAITS_PCT or has_workers(one.times.summary):
        return 0.0
    return wait.beside_pct


def unsure_of_all(inputs: Inputs, idle: Sequence[Idle], least_pct: float) -> bool:
    """Whether nothing tells of any rank that waits so long if its workers are late, or it gets no core."""
    batches = [next_batch(inputs, one) for one in idle if one.pct >= least_pct]
    return bool(batches) and all(batch is not None and batch.unsure for batch in batches)
