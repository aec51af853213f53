"""The line of progress of `traceops run`."""

from __future__ import annotations

import pytest

from traceops.capture.progress import Progress
from traceops.launch.pace import StepRate


@pytest.mark.parametrize(
    ("phases", "alive", "told"),
    [
        (("active", "active"), 2, "2/2 ranks alive"),
        (("ended", "ended"), 2, "2/2 ranks alive"),
        (("ended", "ended"), 0, "2/2 ranks have ended"),
        (("ended", "active"), 1, "1/2 ranks alive"),
        (("active", "active"), 1, "1/2 ranks alive"),
    ],
)
def test_ranks_that_ended_are_not_told_as_dead(phases: tuple[str, ...], alive: int, told: str) -> None:
    records = [Progress(rank, 1, phase, 30, None, 0) for rank, phase in enumerate(phases)]
    assert StepRate(2).line(records, alive).endswith(f" · {told}")
