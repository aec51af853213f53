"""Every strategy trains what one process trains on the whole batch."""

from __future__ import annotations

import pytest
from strategy_cases import NAMES, Case, precision_cases, training_cases

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch
    global Tiny, make_model, one_process, result_of
    import torch
    from strategy_ranks import Tiny, make_model, one_process, result_of


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
