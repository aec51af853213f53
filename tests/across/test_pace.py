"""How efficiently shared work may run, by what the same kernels take at other sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from traceops.across.stragglers import best_pace


def rank(*kernels: tuple[str, int, float], steps: int = 2) -> Any:
    """A rank whose kernels (name, blocks a launch, µs) run once a step."""
    rows = [
        SimpleNamespace(name=name, kind="compute", count=steps, blocks=blocks * steps, total_us=us * steps)
        for name, blocks, us in kernels
    ]
    return SimpleNamespace(kernels=rows, step_numbers=range(steps))


def test_all_work_goes_at_the_pace_of_the_rank_whose_sizes_suit_best() -> None:
    # Shares 0.5 and 1.5 of the work: 120 µs for half a share, 300 for one and a half.
    light = rank(("gelu", 100, 20.0), ("small_matrices", 132, 100.0))
    heavy = rank(("gelu", 300, 60.0), ("large_matrices", 132, 240.0))
    assert best_pace([light, heavy], [0.0, 0.0]) == pytest.approx(200.0 / 210.0)
    assert best_pace([heavy, heavy], [0.0, 0.0]) == 1.0


def test_what_is_not_shared_is_left_out_and_much_of_it_tells_nothing() -> None:
    optimizer, attention = ("adam", 50, 10.0), ("attention", 500, 200.0)
    light, heavy = (("gelu", 100, 20.0), ("m", 132, 100.0)), (("gelu", 300, 60.0), ("n", 132, 240.0))
    assert best_pace([rank(*light, optimizer), rank(*heavy, optimizer)], [0.0, 0.0]) == pytest.approx(210.0 / 220.0)
    assert best_pace([rank(*light, attention), rank(*heavy, attention)], [0.0, 0.0]) == 1.0


def test_kernels_that_disagree_on_the_share_tell_nothing() -> None:
    light = rank(("gelu", 100, 20.0), ("norm", 100, 20.0))
    heavy = rank(("gelu", 300, 60.0), ("norm", 120, 24.0))
    assert best_pace([light, heavy], [0.0, 0.0]) == 1.0
