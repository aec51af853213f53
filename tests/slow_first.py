"""The order in which the workers of pytest-xdist run the tests: those that start processes and wait come first.

And which tests `make check` leaves out, by what they took before.

Each worker begins with a share of them. At the end of a run only quick tests are left, which workers take from each
other. Otherwise all workers but one would wait for the last trainings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

# Dealt to the workers in turn. A folder stays with one worker: what its tests share, two workers would wait for.
SLOW = (
    "tests/train/",
    "tests/launch/",
    "tests/doctor/",
    "tests/capture/",
    "tests/cli/test_doctor_command.py",
    "tests/pipeline/test_executors.py",
    "tests/integrations/",
    "tests/memory/",
    "tests/examples/test_action.py",
    "tests/traces/test_native_memory.py",
    "tests/timeline/test_view_command.py",
    "tests/test_packaging.py",
)

T = TypeVar("T")


def slow_first(items: Sequence[T], names: Sequence[str], workers: int) -> list[T]:
    """The same items, with a share of the slow ones where each worker begins: worker i has the i-th of equal parts.

    `names` are their node ids. Items of one module keep their order.
    """
    shares: list[list[tuple[int, T]]] = [[] for _ in range(workers)]
    rest = []
    for item, name in zip(items, names, strict=True):
        place = next((place for place, slow in enumerate(SLOW) if name.startswith(slow)), None)
        if place is None:
            rest.append(item)
        else:
            shares[place % workers].append((place, item))
    ordered: list[T] = []
    for number, share in enumerate(shares):
        part = (len(items) - len(ordered)) // (workers - number)
        ordered += [item for _, item in sorted(share, key=lambda one: one[0])]
        quick = max(0, part - len(share))
        ordered += rest[:quick]
        del rest[:quick]
    return ordered + rest


UNKNOWN_S = 0.08  # what a test takes that was never run here: most take less


def quickest(names: Sequence[str], seconds: Mapping[str, float], most_s: float) -> set[str]:
    """The node ids of as many tests as take `most_s` together; what each took is in `seconds`."""
    chosen, left_s = set(), most_s
    for name in sorted(names, key=lambda name: (seconds.get(name, UNKNOWN_S), name)):
        left_s -= seconds.get(name, UNKNOWN_S)
        if left_s < 0:
            break
        chosen.add(name)
    return chosen
