"""How far hosts are ahead in each step, and whether they use that up."""

from types import SimpleNamespace

import numpy as np
import pytest

from traceops.across.replay.graph import hosts_unknown, is_unseen, lead, leads, uses_up_lead
from traceops.measure.program import NEVER

STEP = 100


def nodes(*ahead, waits_at=(), launched_before=0):
    """A node in the middle of each step whose launch was so far ahead, None: without a known launch.

    waits_at: when its host waited for its device. launched_before: how many later nodes were launched before each wait.
    """
    moments = [STEP * step + STEP // 2 for step in range(len(ahead))]
    edges = [STEP * step for step in range(len(ahead) + 1)]
    hosts = [NEVER if own is None else at - own for at, own in zip(moments, ahead, strict=True)]
    stands_at = np.array([*moments, *edges], dtype=np.int64)
    host = np.array([*hosts, *[NEVER] * len(edges)], dtype=np.int64)
    waits = np.array(waits_at, dtype=np.int64)
    before = np.searchsorted(waits, stands_at) - launched_before
    return SimpleNamespace(
        stands_at=stands_at, standing=stands_at, host=host, first_edge=len(moments),
        waits=SimpleNamespace(stands_at=waits), waits_before=before,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ahead", "used"),
    [
        ((50, 40, 30, 20), True),
        ((50, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), True),
        ((50, 50, 40, 30, 20), True),
        ((50, 50, 50, 50, 10), False),  # the last one alone, a checkpoint's step: it was called slower than the steps
        ((10, 60, 50, 40, 30, 20, 10), True),  # the first one alone: what the others use up was hidden
        ((50, 0, 50, 50), False),
        ((50, 50, 50), False),
        ((50, 49, 48), False),
        ((0, 0, 0), False),
        ((50,), False),
        ((50, None, 30, None, 10), True),
    ],
)
def test_every_step_tells_whether_a_host_uses_up_its_lead(ahead, used):
    assert leads(nodes(*ahead)) == list(ahead)
    assert uses_up_lead(nodes(*ahead)) is used
    assert lead(nodes(*ahead)) == (0 if used else ahead[0])


def test_a_first_step_without_launches_does_not_say_that_the_host_was_not_ahead():
    """It was taken for 0, as if the host were just in time: most likely it is further ahead than the window."""
    unseen = nodes(None, 50, 50)
    assert is_unseen(unseen) and lead(unseen) == 0
    assert hosts_unknown(SimpleNamespace(ranks={0: nodes(50, 50, 50), 1: unseen})) == (1,)


def test_hosts_without_any_known_launch_are_not_replayed_and_so_not_unknown():
    never = nodes(None, None)
    assert not is_unseen(never) and lead(never) == 0
    assert hosts_unknown(SimpleNamespace(ranks={0: never})) == ()


def test_a_host_that_waits_in_every_step_for_all_that_it_launched_gets_ahead_anew():
    """Its lead was taken from it, and it seemed to be late in the first step under any change."""
    assert lead(nodes(50, 50, 50, waits_at=(20, 120, 220))) == 0
    assert lead(nodes(50, 50, 50, waits_at=(20, 220))) == 50
    assert lead(nodes(50, 50, 50, waits_at=(20, 110, 120))) == 50


def test_a_host_that_waits_for_the_step_before_keeps_its_lead():
    """A late loader's cure was 22.1 ms, 23.0 true: the others' hosts were ahead when the window began."""
    assert lead(nodes(50, 50, 50, waits_at=(20, 120, 220), launched_before=1)) == 50
