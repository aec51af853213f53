"""The collector is off while a process of ours loads, and afterwards as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from traceops.core.installation import uncollected


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    was_on = gc.isenabled()
    yield
    (gc.enable if was_on else gc.disable)()


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_off_and_then_as_it_was(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled() is on


def test_what_is_not_to_be_had_leaves_it_as_it_was() -> None:
    gc.enable()
    with pytest.raises(ModuleNotFoundError), uncollected():
        raise ModuleNotFoundError("torch")
    assert gc.isenabled()
    assert gc.get_freeze_count()
