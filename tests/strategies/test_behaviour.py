"""What tells the strategies apart: the order of collectives, and how much of the model a rank holds."""

from __future__ import annotations

import pytest
import torch
from strategy_cases import result_of

# What a rank holds of parameters, gradients and optimizer state (AdamW: two values a parameter).
HOLDS = {
    "simple_ddp": ("all", "all", "all"),
    "bucket_ddp_async": ("all", "all", "all"),
    "pytorch_ddp": ("all", "all", "all"),
    "zero1": ("all", "all", "shard"),
    "pytorch_zero1": ("all", "all", "shard"),
    "zero2": ("all", "shard", "shard"),
    "zero3": ("shard", "shard", "shard"),
    "pytorch_zero2": ("shard", "shard", "shard"),
    "pytorch_zero3": ("shard", "shard", "shard"),
}


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", HOLDS)
def test_a_rank_holds_its_share(name: str, world_size: int) -> None:
    ranks = result_of(world_size, ("held", name))
    whole = ranks[0]["whole"]
    for kind, share in zip(("parameters", "gradients", "state"), HOLDS[name], strict=True):
        held = [rank[kind] / (2 if kind == "state" else 1) for rank in ranks]
        if share == "all":
            assert min(held) >= whole
            assert max(held) <= 1.1 * whole
        else:
            # Shards are padded (by hand) or cut by rows of each parameter (FSDP2), so they are a bit uneven.
            assert max(held) <= 1.5 * whole / world_size
            assert sum(held) >= whole


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("name", ["bucket_ddp_async", "zero2"])
def test_buckets_start_in_one_order_on_every_rank(name: str, world_size: int) -> None:
    ranks = result_of(world_size, ("order", name))
    assert ranks[0]["ready"] != ranks[1]["ready"], "the test must make gradients ready in different orders"
    assert {tuple(rank["launched"]) for rank in ranks} == {(0, 1, 2)}
    for rank in ranks[1:]:
        for parameter, value in ranks[0]["parameters"].items():
            assert torch.equal(rank["parameters"][parameter], value)
