"""The GPT predicts from the past only, checkpointing changes nothing, and ranks share the samples out."""

from __future__ import annotations

import sys

import pytest

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True, scope="module")
def _torch() -> None:
    """Loaded only where a test runs: every worker of pytest collects all of them."""
    global torch, optimizer_spec, RandomTokens, TokenStream, batches_of, make_dataset, make_loader, GPT, make_model
    import torch

    from traceops.train.build import RandomTokens, TokenStream, batches_of, make_dataset, make_loader, optimizer_spec
    from traceops.train.model import GPT, make_model


SIZES = Sizes(layers=2, dim=16, heads=2, vocab=50, seq_len=8, batch_size=2, workers=0, bucket_mb=1.0)


def gpt(activation_checkpointing: bool = False) -> GPT:
    torch.manual_seed(0)
    return GPT(SIZES, activation_checkpointing).double()


def test_logits_do_not_see_later_tokens() -> None:
    model = gpt()
    tokens = torch.randint(50, (2, 8))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 50
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 8, 50)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_checkpointing_gives_the_same_gradients() -> None:
    tokens, targets = torch.randint(50, (2, 2, 8))
    plain, checkpointed = gpt(), gpt(activation_checkpointing=True)
    for model in (plain, checkpointed):
        model(tokens, targets).backward()
    for (name, p), (_, q) in zip(plain.named_parameters(), checkpointed.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)


def test_precision_decides_the_type_of_the_weights() -> None:
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.float32), ("fp64", torch.float64)):
        model = make_model(TrainConfig(precision=precision), SIZES)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert model.vocab == 50


def batches(rank: int, workers: int, seed: int = 0) -> list[torch.Tensor]:
    loader = make_loader(
        RandomTokens(12, 8, 50, seed),
        rank=rank, world_size=2, batch_size=2, workers=workers, seed=seed, pin_memory=False,
    )  # fmt: skip
    return [tokens for tokens, _ in loader]


def test_ranks_share_all_samples_and_workers_change_nothing() -> None:
    dataset = RandomTokens(12, 8, 50, seed=0)
    everything = {tuple(dataset[i][0].tolist()) for i in range(12)}
    seen = [tuple(row.tolist()) for rank in (0, 1) for batch in batches(rank, workers=0) for row in batch]
    assert len(seen) == 12
    assert set(seen) == everything
    for one, other in zip(batches(1, workers=0), batches(1, workers=2), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(batches(0, workers=0)[0], batches(0, workers=0, seed=1)[0])


def test_an_epoch_begins_the_data_anew_in_another_order() -> None:
    loader = make_loader(
        RandomTokens(12, 8, 50, 0), rank=0, world_size=2, batch_size=2, workers=0, seed=0, pin_memory=False
    )
    seen = [tokens for tokens, _ in batches_of(loader, 2)]
    assert len(seen) == 6 and all(torch.equal(one, other) for one, other in zip(seen[:3], batches(0, 0), strict=True))
    assert not all(torch.equal(one, other) for one, other in zip(seen[:3], seen[3:], strict=True))


def test_targets_are_the_next_tokens() -> None:
    dataset = make_dataset(TrainConfig(), SIZES, vocab=50, samples=4)
    tokens, targets = dataset[3]
    assert torch.equal(tokens[1:], targets[:-1])
    assert tokens.dtype == torch.int64


def test_a_short_text_starts_again_and_a_tiny_one_is_refused() -> None:
    stream = TokenStream(torch.arange(17), samples=5, seq_len=8)
    assert stream.pieces == 2
    assert torch.equal(stream[4][0], stream[0][0])
    assert torch.equal(stream[1][1], torch.arange(9, 17))
    with pytest.raises(UsageError, match="--seq-len 8"):
        TokenStream(torch.arange(8), samples=5, seq_len=8)


def test_weights_of_bf16_params() -> None:
    config = TrainConfig(precision="bf16-params")
    model = make_model(config, Sizes(1, 8, 2, 16, 8, 1, 0, 1.0))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    loss = model(torch.zeros((1, 8), dtype=torch.int64), torch.zeros((1, 8), dtype=torch.int64))
    assert loss.dtype is torch.float32  # a sum over the vocabulary needs the digits


def test_a_missing_torchao_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(UsageError, match=r"pip install torchao \(traceops's extra \[lowbit\]\)"):
        optimizer_spec(TrainConfig(optimizer="adamw8bit"))
