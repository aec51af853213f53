"""Strategies that share a copy of the model between ranks train what one process trains."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ports import free_port
from strategy_cases import MeshCase, mesh_cases

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch, dist, blocks_of_stages
    global gpt, one_process_of_mesh, result_of
    import torch
    import torch.distributed as dist
    from strategy_ranks import gpt, one_process_of_mesh, result_of

    from traceops.train.config import blocks_of_stages


@pytest.fixture(scope="module")
def alone() -> Iterator[dist.ProcessGroup]:
    """A process group of one."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}", rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("world_size", "case"), [(n, case) for n in (2, 4) for case in mesh_cases(n)], ids=lambda value: str(value)
)
def test_parameters_are_those_of_one_process(world_size: int, case: MeshCase, alone: dist.ProcessGroup) -> None:
    results = result_of(world_size, case)
    shares = results[0][0]
    assert shares == (world_size if case.strategy == "expert_parallel" else dict(case.options).get("replicas", 1))
    expected = one_process_of_mesh(case, shares, alone)
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
