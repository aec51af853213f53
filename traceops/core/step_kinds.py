"""Which of what ran within steps makes them of two kinds."""

from __future__ import annotations

from collections.abc import Mapping

_SELDOM = 0.75  # of the steps: what is within fewer makes them of two kinds
_LEAST = 2  # of them: what came once tells of no second kind


def seldom(steps: int, within: Mapping[str, int]) -> list[str]:
    """What is within some of so many steps only, by how often it came."""
    return [name for name, count in within.items() if _LEAST <= count <= _SELDOM * steps]
