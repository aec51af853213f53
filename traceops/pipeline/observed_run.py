"""What was observed of the whole run beside its traces, read and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traceops.across.machine_use import MachineUse, machine_use
from traceops.across.memory_use import MemoryUse, memory_use
from traceops.across.whole_run import WholeRun, whole_run
from traceops.core.errors import InputError
from traceops.core.memory_files import SNAPSHOT
from traceops.core.rank_text import who
from traceops.measure.summary import RankSummary
from traceops.traces.discover import Discovery
from traceops.traces.memory_snapshot import read_snapshot
from traceops.traces.observed import Observed, read_machines, read_observed
from traceops.traces.run_manifest import manifest_ranks
from traceops.traces.source import is_remote

MOST_RANKS = 256  # whose steps are read: a thousand ranks tell no more of which steps are unlike the others


@dataclass(frozen=True)
class ObservedRun:
    """Nothing where the run was not observed. notes: what the reader should be told."""

    observed: tuple[Observed, ...] = ()
    whole: WholeRun | None = None
    machine: tuple[MachineUse, ...] = ()
    memory: tuple[MemoryUse, ...] = ()
    notes: tuple[str, ...] = ()


def observed_run(found: Discovery, ranks: Sequence[RankSummary]) -> ObservedRun:
    """What lies beside the traces of these ranks."""
    if not found.manifest:
        return ObservedRun(memory=memory_use((), (), ranks))
    numbers = [summary.rank for summary in ranks]
    chosen = numbers[:: -(-len(numbers) // MOST_RANKS)]
    read = [read_observed(found.root, rank) for rank in chosen]
    observed = tuple(one for one, _ in read if one is not None)
    notes = [problem for _, problem in read if problem is not None]
    notes += _troubles(found)
    if observed and len(chosen) < len(numbers):
        notes.append(f"the figure of all steps is of {len(chosen)} of {len(numbers)} ranks")
    machine = machine_use(read_machines(found.root), observed, found.manifest) if observed else ()
    uses = memory_use(manifest_ranks(found.manifest), observed, ranks)
    memory = with_lines_of_snapshots(found.root, uses)
    return ObservedRun(observed, whole_run(observed), machine, memory, tuple(notes))


def with_lines_of_snapshots(root: str, uses: Sequence[MemoryUse]) -> tuple[MemoryUse, ...]:
    """With what stays by the line that made it, of ranks whose memory grows and that kept a snapshot."""
    return tuple(_with_lines(root, use) for use in uses)


def _with_lines(root: str, use: MemoryUse) -> MemoryUse:
    path = Path(root, f"rank_{use.rank}", SNAPSHOT)
    if use.growth is None or is_remote(root) or not path.is_file():
        return use
    try:
        devices = read_snapshot(path)
    except InputError:
        return use
    return replace(use, stays=max((device.stays for device in devices), key=len, default=()))


def _troubles(found: Discovery) -> list[str]:
    """Observing that ended early, by its reason."""
    by_reason: dict[str, list[int]] = {}
    for entry in found.manifest.get("ranks") or ():
        seen = entry.get("observed")
        trouble = seen.get("trouble") if isinstance(seen, dict) else None
        if isinstance(trouble, str) and isinstance(entry.get("rank"), int):
            by_reason.setdefault(trouble[:200], []).append(entry["rank"])
    return [f"{who(ranks)}: observing ended early ({reason})" for reason, ranks in by_reason.items()]
