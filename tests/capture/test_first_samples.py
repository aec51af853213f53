"""Ranks that train on the same samples: what is read of the first batches, and what it is compared with."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from traceops.capture.observing.loader_workers import FirstSamples, _each_rank_has_the_model
from traceops.launch.conclusion import same_samples


def modules(groups: list[int], world: int = 4, *loaded: str) -> dict[str, Any]:
    ranks = {number: dict.fromkeys(range(size)) for number, size in enumerate(groups)}
    distributed = SimpleNamespace(
        is_initialized=lambda: True,
        get_world_size=lambda: world,
        distributed_c10d=SimpleNamespace(_world=SimpleNamespace(pg_group_ranks=ranks)),
    )
    return {"torch.distributed": distributed, **dict.fromkeys(loaded)}


@pytest.mark.parametrize(
    ("there", "whole"),
    [
        (modules([4]), True),
        (modules([4, 1]), True),
        (modules([1], world=1), False),
        (modules([4, 2]), False),  # tensor parallel in pairs
        (modules([4], 4, "torch.distributed.pipelining"), False),
        (modules([4], 4, "torch.distributed.tensor.parallel"), False),
        (modules([4], 4, "torch.distributed.tensor.parallel", "torch.distributed.fsdp"), True),
        ({}, False),
    ],
)
def test_ranks_that_share_a_model_are_not_compared(there: dict[str, Any], whole: bool) -> None:
    assert _each_rank_has_the_model(there) is whole


@pytest.mark.torch
def test_the_first_batches_are_read_and_the_loader_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    monkeypatch.setattr("traceops.capture.observing.loader_workers._each_rank_has_the_model", lambda: True)
    original = _BaseDataLoaderIter.__next__

    def seen(offset: int) -> list[Any] | None:
        samples = FirstSamples()
        data = {"x": torch.arange(64.0).reshape(16, 4) + offset, "y": torch.arange(16)}
        line = None
        loader = DataLoader(TensorDataset(*data.values()), batch_size=2)
        for batch in loader:
            assert batch[0].shape == (2, 4)
            line = line or samples.step_ended()
        assert _BaseDataLoaderIter.__next__ is original
        return line

    first = seen(0)
    assert first is not None and first == seen(0) != seen(1)
    assert len(set(first[1])) == 3


@pytest.mark.torch
def test_a_training_without_a_loader_tells_nothing() -> None:
    samples = FirstSamples()
    assert [samples.step_ended() for _ in range(6)] == [None] * 6


@pytest.mark.parametrize(
    ("lines", "same"),
    [
        ([["d", [1, 2, 3]], ["d", [1, 2, 3]]], True),
        ([["d", [1, 2, 3]], ["d", [1, 2, 4]]], False),
        ([["d", [1, 1, 1]], ["d", [1, 1, 1]]], False),  # made-up data that never changes
        ([["d", [1, 2, 3]], ["e", "x"]], False),
        ([["d", "x"], ["d", "x"]], False),
        ([["d"], ["d"]], False),
    ],
)
def test_ranks_are_compared_by_what_they_wrote(tmp_path: Path, lines: list[Any], same: bool) -> None:
    files = [tmp_path / str(rank) for rank in range(len(lines))]
    for file, line in zip(files, lines, strict=True):
        file.write_text('["f","a"]\n' + json.dumps(line, separators=(",", ":")) + "\n")
    assert same_samples(files) is same
    assert not same_samples([*files, tmp_path / "gone"])
