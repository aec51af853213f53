"""What was observed of the whole run beside its traces, read and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.machine_use import MachineUse, machine_use
from traceops.across.whole_run import WholeRun, whole_run
from traceops.core.rank_text import who
from traceops.measure.summary import RankSummary
from traceops.traces.discover import Discovery
from traceops.traces.observed import Observed, read_machines, read_observed

MOST_RANKS = 256  # whose steps are read: a thousand ranks tell no more of which steps are unlike the others


@dataclass(frozen=True)
class ObservedRun:
    """Nothing where the run was not observed. notes: what the reader should be told."""

    observed: tuple[Observed, ...] = ()
    whole: WholeRun | None = None
    machine: tuple[MachineUse, ...] = ()
    notes: tuple[str, ...] = ()


def observed_run(found: Discovery, ranks: Sequence[RankSummary]) -> ObservedRun:
    """What lies beside the traces of these ranks."""
    if not found.manifest:
        return ObservedRun()
    numbers = [summary.rank for summary in ranks]
    chosen = numbers[:: -(-len(numbers) // MOST_RANKS)]
    read = [read_observed(found.root, rank) for rank in chosen]
    observed = tuple(one for one, _ in read if one is not None)
    notes = [problem for _, problem in read if problem is not None]
    notes += _troubles(found)
    if observed and len(chosen) < len(numbers):
        notes.append(f"the figure of all steps is of {len(chosen)} of {len(numbers)} ranks")
    machine = machine_use(read_machines(found.root), observed, found.manifest) if observed else ()
    return ObservedRun(observed, whole_run(observed), machine, tuple(notes))


def _troubles(found: Discovery) -> list[str]:
    """Observing that ended early, by its reason."""
    by_reason: dict[str, list[int]] = {}
    for entry in found.manifest.get("ranks") or ():
        seen = entry.get("observed")
        trouble = seen.get("trouble") if isinstance(seen, dict) else None
        if isinstance(trouble, str) and isinstance(entry.get("rank"), int):
            by_reason.setdefault(trouble[:200], []).append(entry["rank"])
    return [f"{who(ranks)}: observing ended early ({reason})" for reason, ranks in by_reason.items()]
