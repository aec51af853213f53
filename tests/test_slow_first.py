"""The order of tests among the workers of pytest-xdist."""

import pytest
from slow_first import SLOW, slow_first
from started import ROOT

QUICK = [f"tests/core/test_a.py::test_{number}" for number in range(81)]
NAMES = [*QUICK, *(f"{slow}::test_{letter}" for slow in sorted(SLOW) for letter in "zab")]


def test_each_worker_begins_with_slow_tests_and_ends_with_quick_ones():
    ordered = slow_first(NAMES, NAMES, 3)
    part = len(NAMES) // 3
    for worker in range(3):
        mine = ordered[worker * part : (worker + 1) * part]
        slow = [name for name in mine if name not in QUICK]
        assert mine[: len(slow)] == slow
        assert slow == [f"{one}::test_{letter}" for one in SLOW[worker::3] for letter in "zab"]


@pytest.mark.parametrize("workers", [1, 2, 3, 7, 40, 200])
@pytest.mark.parametrize("names", [[], NAMES[:1], NAMES, QUICK, NAMES[len(QUICK) :]])
def test_no_test_is_lost_or_run_twice(names, workers):
    ordered = slow_first(names, names, workers)
    assert sorted(ordered) == sorted(names)
    assert [name for name in ordered if name in QUICK] == [name for name in names if name in QUICK]


@pytest.mark.parametrize("slow", SLOW)
def test_what_is_named_exists(slow):
    assert (ROOT / slow).is_dir() if slow.endswith("/") else (ROOT / slow).is_file()
