"""What ends steps, and which of what ran within them makes them of two kinds."""

from __future__ import annotations

from collections.abc import Mapping

_SELDOM = 0.75  # of the steps: what is within fewer makes them of two kinds
_LEAST = 2  # of them: what came once tells of no second kind


def seldom(steps: int, within: Mapping[str, int]) -> list[str]:
    """What is within some of so many steps only, by how often it came."""
    return [name for name, count in within.items() if _LEAST <= count <= _SELDOM * steps]


def rounds(steps: int, count: int) -> range:
    """Of how many steps a round may be in which something is within one: it came `count` times in so many steps.

    A program ends anywhere in a round, so it may be one time more or less. Empty where it comes in no rhythm.
    """
    return range(-(-steps // (count + 1)), steps // max(count - 1, 1) + 1)


def round_steps(steps: int, count: int) -> float:
    """How many steps a round has: the mean where several numbers may be, or none."""
    own = rounds(steps, count)
    return float(own[0]) if len(own) == 1 else steps / count


def usual_ends(ends: Mapping[str, int], within: Mapping[str, int]) -> list[str]:
    """What ends steps, but for what did so once and else is within them: it stood for its first round."""
    usual = [name for name, count in ends.items() if count >= _LEAST or within.get(name, 0) < _LEAST]
    return usual or list(ends)
