"""Token samples to train on, the same for every run with a seed, and the loader that shares them out."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig
from traceops.train.hf import load_tokens

Sample = tuple[Tensor, Tensor]


class RandomTokens(Dataset[Sample]):
    """Samples of uniformly random tokens; sample i is the same whoever asks for it."""

    def __init__(self, samples: int, seq_len: int, vocab: int, seed: int) -> None:
        self.samples, self.seq_len, self.vocab, self.seed = samples, seq_len, vocab, seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        """Tokens and, one further, targets: two int64 tensors of shape (seq_len,)."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        tokens = torch.randint(self.vocab, (self.seq_len + 1,), generator=generator)
        return tokens[:-1], tokens[1:]


class TokenStream(Dataset[Sample]):
    """Consecutive pieces of one long text, from its start again when it is shorter than `samples` pieces."""

    def __init__(self, tokens: Tensor, samples: int, seq_len: int) -> None:
        self.tokens, self.samples, self.seq_len = tokens, samples, seq_len
        self.pieces = (len(tokens) - 1) // seq_len
        if self.pieces < 1:
            raise UsageError(f"--data has {len(tokens)} tokens, less than one sample; lower --seq-len {seq_len}")

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        """Tokens and, one further, targets: two int64 tensors of shape (seq_len,)."""
        start = index % self.pieces * self.seq_len
        piece = self.tokens[start : start + self.seq_len + 1]
        return piece[:-1], piece[1:]


def make_dataset(config: TrainConfig, sizes: Sizes, vocab: int, samples: int) -> Dataset[Sample]:
    """`samples` samples of ``--data`` with tokens below `vocab`.

    Raises UsageError for data that the datasets library cannot load.
    """
    if config.data == "random":
        return RandomTokens(samples, sizes.seq_len, vocab, config.seed)
    tokenizer = None if config.model == "gpt" else config.model.removeprefix("hf:")
    tokens = load_tokens(config.data.removeprefix("hf:"), tokenizer, samples * sizes.seq_len + 1)
    return TokenStream(tokens, samples, sizes.seq_len)


def make_loader(
    dataset: Dataset[Sample],
    *,
    rank: int,
    world_size: int,
    batch_size: int,
    workers: int,
    seed: int,
    pin_memory: bool,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
) -> DataLoader[Sample]:
    """Batches of this rank's share of `dataset`: two int64 tensors of shape (batch_size, seq_len)."""
    sampler: DistributedSampler[Sample] = DistributedSampler(
        dataset, world_size, rank, shuffle=True, seed=seed, drop_last=True
    )
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        pin_memory=pin_memory,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        drop_last=True,
    )


def batches_of(loader: DataLoader[Sample], epochs: int) -> Iterator[list[Tensor]]:
    """The batches of `epochs` epochs, each in an order of its own."""
    for epoch in range(epochs):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader
