"""What tells the strategies apart: the order of collectives, and how much of the model a rank holds."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
from ports import free_port
from strategy_cases import FSDP2, FSDP2_ON_CPU, NAMES, Case, MeshCase, mesh_cases, precision_cases, training_cases

from traceops.core.errors import UsageError
from traceops.train.strategies import NAMES as ALL_NAMES
from traceops.train.strategies import strategy_class

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch, dist, Strategy, StrategyOptions, blocks_of, shared_between_blocks, blocks_of_stages, gpt
    global CPU, OPTIMIZERS, SharedBlocks, Tiny, make_model, one_process, one_process_of_mesh, result_of
    import torch
    import torch.distributed as dist
    from strategy_ranks import (
        CPU,
        OPTIMIZERS,
        SharedBlocks,
        Tiny,
        gpt,
        make_model,
        one_process,
        one_process_of_mesh,
        result_of,
    )  # fmt: skip

    from traceops.train.config import blocks_of_stages
    from traceops.train.strategies.base import Strategy, StrategyOptions, blocks_of, shared_between_blocks


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
@pytest.mark.parametrize("name", [name for name in HOLDS if name in NAMES])
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


def test_what_belongs_to_several_blocks_is_found() -> None:
    model = SharedBlocks()
    assert blocks_of(model) == list(model.blocks)
    assert shared_between_blocks(model) == {model.blocks[0].weight}
    assert not shared_between_blocks(Tiny()), "tied weights outside the blocks are no trouble"


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", FSDP2)
def test_fsdp2_refuses_what_it_cannot_shard(name: str, alone: None) -> None:
    with pytest.raises(UsageError, match="several blocks share" if FSDP2_ON_CPU else "cannot train on the CPU"):
        strategy_class(name)(SharedBlocks(), OPTIMIZERS["sgd"], CPU, StrategyOptions())


def test_hsdp_refuses_groups_that_do_not_fit(alone: None) -> None:
    with pytest.raises(UsageError, match=r"--shard-group-size 2|cannot train on the CPU"):
        strategy_class("pytorch_hsdp")(Tiny(), OPTIMIZERS["sgd"], CPU, StrategyOptions(shard_group_size=2))


def test_zero3_trains_blocks_that_share_a_weight(alone: None) -> None:
    torch.manual_seed(0)
    plain = SharedBlocks().double()
    optimizer = OPTIMIZERS["sgd"](plain.parameters())
    strategy = strategy_class("zero3")(deepcopy(plain), OPTIMIZERS["sgd"], CPU, StrategyOptions("fp64"))
    for _ in range(3):
        optimizer.zero_grad()
        plain(torch.ones(3, 2).double()).backward()
        optimizer.step()
        strategy.zero_grad()
        strategy.backward(strategy.model(torch.ones(3, 2).double()))
        strategy.optimizer_step()
    trained = strategy.full_parameters()
    assert set(trained) == {"blocks.0.weight", "blocks.0.bias", "blocks.1.bias"}
    for name, p in plain.named_parameters():
        torch.testing.assert_close(trained[name], p.detach(), rtol=1e-12, atol=0)


def test_an_unknown_strategy_is_refused_with_the_list() -> None:
    with pytest.raises(UsageError, match="pytorch_hsdp"):
        strategy_class("zero4")


def test_every_name_is_a_strategy() -> None:
    for name in ALL_NAMES:
        assert issubclass(strategy_class(name), Strategy)
        assert isinstance(strategy_class(name).syncs_in_backward, bool)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("case", training_cases(), ids=str)
def test_parameters_are_those_of_one_process(case: Case, world_size: int) -> None:
    expected = one_process(case, world_size)
    for rank, parameters in enumerate(result_of(world_size, case)):
        assert parameters.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                parameters[name], value, rtol=1e-10, atol=1e-12, msg=lambda m, n=name, r=rank: f"{n}, rank {r}: {m}"
            )


def test_the_reference_trains() -> None:
    """Equal parameters prove nothing unless steps move each of them, and unused ones only by their rule."""
    start = {name: p.detach() for name, p in make_model(Case("zero1"), seed=0).named_parameters()}
    for strategy in ("zero1", "pytorch_ddp"):
        end = one_process(Case(strategy, "adamw", 1, "by_step"), 2)
        still = {name for name in start if torch.equal(start[name], end[name])}
        assert still == {"frozen"}
    zero, none = (one_process(Case(s, "adamw", 1, "by_step"), 2) for s in ("zero1", "pytorch_ddp"))
    assert not torch.allclose(zero["optional.weight"], none["optional.weight"], rtol=1e-6)


@pytest.mark.parametrize("case", precision_cases(), ids=str)
def test_mixed_precision_stays_near_full_precision(case: Case) -> None:
    first, second = result_of(2, case)
    full = one_process(Case(case.strategy, case.optimizer, case.grad_accum), 2)
    start = make_model(Case(case.strategy), seed=0)
    for name, value in start.named_parameters():
        assert torch.equal(first[name], second[name]), f"ranks differ in {name}"
        if name != "frozen":
            assert first[name].dtype == torch.float32
            assert torch.isfinite(first[name]).all()
            assert not torch.equal(first[name].double(), value.double())
    if case.precision == "bf16":  # fp16 skips steps until its scale fits, so it may be steps behind
        for name, value in full.items():
            torch.testing.assert_close(first[name].double(), value, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_skip_the_step_when_one_rank_overflows(name: str) -> None:
    for got in result_of(2, ("overflow", name)):
        scale, scale_after = got["scales"]
        assert scale_after == scale / 2
        for parameter, before in got["before"].items():
            assert torch.equal(got["after"][parameter], before)
        moved = [p for p in got["before"] if not torch.equal(got["later"][p], got["before"][p])]
        assert "embed.weight" in moved


def test_the_model_has_what_makes_sharding_hard() -> None:
    model = Tiny()
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained % 2 and model.head.weight is model.embed.weight


@pytest.fixture(scope="module")
def alone_on_a_mesh() -> Iterator[dist.ProcessGroup]:
    """A process group of one."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("world_size", "case"), [(n, case) for n in (2, 4) for case in mesh_cases(n)], ids=lambda value: str(value)
)
def test_parameters_on_a_mesh_are_those_of_one_process(
    world_size: int, case: MeshCase, alone_on_a_mesh: dist.ProcessGroup
) -> None:
    results = result_of(world_size, case)
    shares = results[0][0]
    assert shares == (world_size if case.strategy == "expert_parallel" else dict(case.options).get("replicas", 1))
    expected = one_process_of_mesh(case, shares, alone_on_a_mesh)
    start = dict(gpt().named_parameters())
    for rank, (_, parameters, loss) in enumerate(results):
        assert parameters.keys() == expected.keys()
        assert loss is not None or case.strategy == "pytorch_pp"
        for name, value in expected.items():
            assert name not in start or not torch.equal(start[name], value), "the reference does not train"
            torch.testing.assert_close(
                parameters[name], value, rtol=1e-9, atol=1e-11, msg=lambda m, n=name, r=rank: f"{n}, rank {r}: {m}"
            )
    assert any(loss is not None for _, _, loss in results)


def test_stages_hold_every_block_once() -> None:
    assert blocks_of_stages(5, 2) == [range(3), range(3, 5)]
    assert blocks_of_stages(5, 2, (1, 4)) == [range(1), range(1, 5)]
