"""The model of torch's caching allocator: rounding, segments, splitting and joining."""

from __future__ import annotations

import pytest

from traceops.memory.allocator import CachingAllocator, expandable_segments, rounded

MIB = 1 << 20


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (0, 512), (MIB + 1, MIB + 512)])
def test_blocks_are_multiples_of_512_bytes(size: int, block: int) -> None:
    assert rounded(size) == block


@pytest.mark.parametrize(
    ("size", "reserved"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (10 * MIB, 10 * MIB), (11 * MIB, 12 * MIB)],
)
def test_segments_by_size(size: int, reserved: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size)
    assert allocator.peak_reserved == reserved


def test_a_segment_is_split_and_joined_again() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]  # of one segment of 20 MiB
    assert allocator.reserved == 20 * MIB
    for block in (blocks[1], blocks[3], blocks[2], blocks[0], blocks[4]):
        allocator.release(block)
    allocator.allocate(20 * MIB)
    assert (allocator.reserved, allocator.allocated) == (20 * MIB, 20 * MIB)


def test_what_is_left_between_blocks_is_of_no_use_to_a_larger_one() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    allocator.release(blocks[0])
    allocator.release(blocks[2])  # 10 MiB are free, in two pieces
    allocator.allocate(10 * MIB)
    assert (allocator.peak_allocated, allocator.reserved) == (20 * MIB, 30 * MIB)


def test_streams_do_not_share_what_is_free() -> None:
    allocator = CachingAllocator()
    allocator.release(allocator.allocate(30 * MIB, stream=1))
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 60 * MIB


def test_an_expandable_segment_grows_by_what_is_missing() -> None:
    """20 MiB at a time; what is free at its end is used first, and only where no other piece fits."""
    allocator = CachingAllocator(expandable=True)
    first, second, third = (allocator.allocate(size * MIB) for size in (3, 30, 5))
    assert allocator.reserved == 40 * MIB
    allocator.release(second)
    allocator.allocate(31 * MIB)  # does not fit between, and 2 MiB are free at the end
    assert allocator.reserved == 80 * MIB
    allocator.allocate(12 * MIB)  # between, although what is free at the end is smaller than that
    assert allocator.reserved == 80 * MIB
    allocator.allocate(9 * MIB)  # so also where 11 MiB are free at the end, and between 18
    allocator.allocate(9 * MIB)
    allocator.allocate(11 * MIB)
    assert (allocator.reserved, allocator.allocated) == (80 * MIB, 80 * MIB)
    for block in (first, third):
        allocator.release(block)
    allocator.allocate(1, stream=1)  # a pool of its own, of small blocks
    assert allocator.reserved == 82 * MIB


@pytest.mark.parametrize(
    ("name", "said", "expected"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:512, expandable_segments:True", True),
        ("PYTORCH_ALLOC_CONF", "expandable_segments:False", False),
        ("PYTORCH_CUDA_ALLOC_CONF", "", False),
    ],
)
def test_settings_of_the_environment(name: str, said: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv(name, said)
    assert expandable_segments() is expected
