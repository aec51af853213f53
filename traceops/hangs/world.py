"""How many ranks the job has, as far as the evidence bears it out, and which numbers of ranks in logs are believed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from traceops.hangs.evidence import LogEvent, is_borne_out
from traceops.traces.run_manifest import MOST_RANKS

_SHOWN = 4


def world_of(told: Iterable[int], own: Collection[int], named: Collection[int]) -> int | None:
    """The number of ranks; None where nothing tells it.

    told: sizes that a manifest or the members of a group give. own: ranks that left files; named: those in logs.
    Without a size that is told, the highest rank tells it only where enough of those below are known too.
    """
    sizes = [size for size in told if 0 < size <= MOST_RANKS]
    own, named = ({rank for rank in ranks if 0 <= rank < MOST_RANKS} for ranks in (own, named))
    ranks = sorted(own | named)
    dense = 0
    for count, rank in enumerate(ranks, 1):
        if not is_borne_out(rank + 1, count):
            break
        dense = rank + 1
    if sizes:
        world = max(*sizes, dense)
        return None if any(rank >= world for rank in own) else world
    return dense if ranks and dense == ranks[-1] + 1 else None


def within_world(events: Sequence[LogEvent], world: int) -> tuple[tuple[LogEvent, ...], list[tuple[str, str]]]:
    """The events without ranks that the job does not have, and (file, what was left out of it)."""
    kept: list[LogEvent] = []
    strange: dict[str, tuple[int, set[int]]] = {}
    for event in events:
        outside = {rank for rank in (*event.accused, event.rank) if rank is not None and rank >= world}
        if outside:
            strange.setdefault(event.path, (event.line, set()))[1].update(outside)
            own = None if event.rank in outside else event.rank
            accused = tuple(rank for rank in event.accused if rank not in outside)
            event = replace(event, rank=own, accused=accused)
        kept.append(event)
    problems = [(path, _left_out(line, sorted(ranks), world)) for path, (line, ranks) in strange.items()]
    return tuple(kept), problems


def _left_out(line: int, ranks: Sequence[int], world: int) -> str:
    listed = ", ".join(map(str, ranks[:_SHOWN])) + (f" … ({len(ranks)} in all)" if len(ranks) > _SHOWN else "")
    which = f"rank {listed}, which is not one" if len(ranks) == 1 else f"ranks {listed}, which are not"
    return f"it names {which} of the job's {world} ranks (from line {line}); that is left out"
