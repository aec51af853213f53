"""Sets of ranks in words."""

from __future__ import annotations

from collections.abc import Sequence


def ranks_text(ranks: Sequence[int], most: int = 12) -> str:
    """'0–7, 12': runs of ranks joined, and how many more where that is long."""
    runs = _runs(ranks)
    shown = ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs[:most])
    return shown + (f" … ({len(set(ranks))} in all)" if len(runs) > most else "")


def is_cut(ranks: Sequence[int], most: int) -> bool:
    """Whether `ranks_text` leaves some out, and so says how many there are."""
    return len(_runs(ranks)) > most


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    """First and last of each run."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return runs


def who(ranks: Sequence[int], most: int = 8) -> str:
    """'rank 3' or 'ranks 0–2, 7'."""
    return f"rank{'' if len(set(ranks)) == 1 else 's'} {ranks_text(ranks, most)}"


def who_first(ranks: Sequence[int], most: int = 8) -> str:
    """The same where a sentence begins."""
    return who(ranks, most).capitalize()
