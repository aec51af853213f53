"""Sets of ranks in words, and as runs: (first, last) of each stretch without a gap, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from traceops.core.findings import MOST_STEPS

Runs = Sequence[tuple[int, int]]


def runs_of(ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The runs of some ranks."""
    runs: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    return tuple(runs)


def runs_without(world: int, present: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The runs of the ranks from 0 to `world` - 1 that are not present; the work is that of those present."""
    edges = [(-1, -1), *runs_of(rank for rank in present if 0 <= rank < world), (world, world)]
    gaps = ((before[1] + 1, after[0] - 1) for before, after in pairwise(edges))
    return tuple((first, last) for first, last in gaps if first <= last)


def ranks_in(runs: Runs) -> int:
    """How many ranks the runs hold."""
    return sum(last - first + 1 for first, last in runs)


def first_ranks(runs: Runs, most: int) -> tuple[int, ...]:
    """The ranks of the runs one by one, the first `most`."""
    ranks: list[int] = []
    for first, last in runs:
        ranks += range(first, min(last + 1, first + most - len(ranks)))
    return tuple(ranks)


def runs_text(runs: Runs, most: int = 12, *, counted: bool = True) -> str:
    """'0–7, 12', and, if `counted`, how many ranks they are where there are more than `most` runs."""
    shown = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs[:most])
    if len(runs) <= most:
        return shown
    return f"{shown} … ({ranks_in(runs)} in all)" if counted else f"{shown} …"


def ranks_text(ranks: Collection[int], most: int = 12, *, counted: bool = True) -> str:
    """'0–7, 12': runs of ranks joined, and, if `counted`, how many there are where that is long."""
    return runs_text(runs_of(ranks), most, counted=counted)


def is_cut(ranks: Collection[int], most: int) -> bool:
    """Whether `ranks_text` leaves some out, and so says how many there are."""
    return len(runs_of(ranks)) > most


def who(ranks: Collection[int], most: int = 8) -> str:
    """'rank 3' or 'ranks 0–2, 7'."""
    return who_runs(runs_of(ranks), most)


def who_runs(runs: Runs, most: int = 8) -> str:
    """The same of runs."""
    return f"rank{'' if ranks_in(runs) == 1 else 's'} {runs_text(runs, most)}"


def who_first(ranks: Collection[int], most: int = 8) -> str:
    """The same where a sentence begins."""
    return who(ranks, most).capitalize()


def first_steps_text(steps: Collection[int], most: int = 12) -> str:
    """Steps of a finding, as `ranks_text` has ranks: where there may be more than it names, nobody counts them."""
    return ranks_text(steps, most, counted=len(steps) < MOST_STEPS)


_MOST_SHOWN = 4


def unrecorded_sentences(entries: Iterable[Any]) -> list[str]:
    """One about ranks that were started again, one about processes that trained beside a recorded one."""
    known = [
        one
        for one in entries
        if isinstance(one, Mapping) and isinstance(one.get("rank"), int) and isinstance(one.get("pid"), int)
    ]
    again = sorted({one["rank"] for one in known if one.get("restarted")})
    beside = [one for one in known if not one.get("restarted")]
    said = []
    if again:
        were = "was" if len(again) == 1 else "were"
        said.append(
            f"{who(again)} {were} started again after the recorded process had ended: no step since then is recorded"
        )
    if beside:
        ranks = sorted({one["rank"] for one in beside})
        pids = ", ".join(str(one["pid"]) for one in beside[:_MOST_SHOWN])
        more = "" if len(beside) <= _MOST_SHOWN else f" and {len(beside) - _MOST_SHOWN} more"
        other = "another process" if len(beside) == 1 else f"{len(beside)} other processes"
        is_not = "is not" if len(beside) == 1 else "are not"
        said.append(f"{other} (pid {pids}{more}) trained as {who(ranks)} too and {is_not} recorded")
    return said
