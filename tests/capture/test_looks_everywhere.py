"""Wherever a look falls, the program does the same: its results, its exceptions, what it is told."""

import threading

import pytest
from everywhere import PLACES, PLACES_OF_TORCH

from traceops.capture.observing.stacks import Stacks
from traceops.capture.short_way.ways import LongWay

native = pytest.importorskip("traceops.capture.observing._looks")

MOST_ROUNDS, LOOKS = 10_000, 30


def looked_at(place, true):
    made, stacks = native.Looks(LongWay()), Stacks(threading.get_ident())

    def look():
        while not made.wait(0.0001, True):
            stacks.sample(0, 1, made.take())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(MOST_ROUNDS):
            assert place() == true
            if stacks.count >= LOOKS:
                break
    finally:
        made.end()
        thread.join()
    assert stacks.count  # on a busy machine 10,000 rounds had 26


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_it_does_the_same(place):
    looked_at(place, place())


@pytest.mark.torch
@pytest.mark.parametrize("place", PLACES_OF_TORCH, ids=lambda place: place.__name__)
def test_it_does_the_same_in_numpy_and_torch(place):
    looked_at(place, place())
