"""The line of progress of `traceops run`."""

from __future__ import annotations

import pytest

from traceops.capture.progress import Progress
from traceops.launch import display
from traceops.launch.display import Screen
from traceops.launch.process import StepRate


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


def test_of_several_nodes_the_line_says_whose_ranks_it_counts() -> None:
    records = [Progress(rank, 1, "active", 30, None, 0) for rank in range(2)]
    assert StepRate(2, "gpu-12").line(records, 2).endswith("2/2 ranks alive on gpu-12")
    assert StepRate(2, "gpu-12").line([], 0) == "before the first step · 0/2 ranks alive on gpu-12"


class Clock:
    """Seconds since the start, as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def told_in_a_log(screen: Screen, clock: Clock, seconds: range, line: str, capfd: pytest.CaptureFixture[str]) -> int:
    for second in seconds:
        clock.now = float(second)
        screen.progress(line.format(second))
    return capfd.readouterr().err.count("traceops: ")


def test_a_log_of_a_day_has_one_line_of_progress_a_minute(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It had 17,280, from each node, and 'before the first step' every five seconds."""
    clock = Clock()
    monkeypatch.setattr(display, "time", clock)
    screen = Screen()
    assert told_in_a_log(screen, clock, range(100), "step {}", capfd) == 19, "soon, whether it goes on"
    assert told_in_a_log(screen, clock, range(3_600, 7_200), "step {}", capfd) == 60
    assert told_in_a_log(Screen(), clock, range(7_200, 7_320), "before the first step", capfd) == 2, "5 s, 65 s"
    assert told_in_a_log(Screen(tells_progress=False), clock, range(100), "step {}", capfd) == 0
