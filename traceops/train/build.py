"""What the options make: the device, optimizer and strategy options, and the samples with their loader."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig
from traceops.train.model import load_tokens
from traceops.train.options import shard_group_size, stage_layers_of
from traceops.train.strategies.base import OptimizerSpec, StrategyOptions


def optimizer_spec(config: TrainConfig) -> OptimizerSpec:
    """The optimizer of ``--optimizer`` and ``--lr``. Raises UsageError where its library is missing."""
    if config.optimizer == "adamw8bit":
        try:
            low_bit = import_module("torchao.optim")
        except ImportError as error:
            raise UsageError(
                f"--optimizer adamw8bit: needs torchao: pip install torchao (traceops's extra [lowbit]): {error}"
            ) from error
        return OptimizerSpec(low_bit.AdamW8bit, {"lr": config.lr})
    if config.optimizer == "sgd":
        return OptimizerSpec(torch.optim.SGD, {"lr": config.lr, "momentum": 0.9})
    return OptimizerSpec(torch.optim.AdamW, {"lr": config.lr})


def strategy_options(config: TrainConfig, sizes: Sizes, world_size: int, local_world_size: int) -> StrategyOptions:
    """What `config` asks of its strategy, for `world_size` ranks with `local_world_size` on each host."""
    return StrategyOptions(
        precision=config.precision,
        bucket_cap_mb=sizes.bucket_mb,
        shard_group_size=shard_group_size(config, world_size, local_world_size),
        find_unused_parameters=config.find_unused_parameters,
        replicas=config.replicas,
        pp_schedule=config.pp_schedule,
        micro_batches=config.micro_batches,
        stage_layers=stage_layers_of(config),
        experts=config.experts,
        skew=config.skew,
        offload=config.offload,
    )


def pick_device(config: TrainConfig, local_rank: int) -> torch.device:
    """The device of ``--device``: on CUDA the one with the number `local_rank`. Raises UsageError where there is no
    CUDA, or fewer devices than ranks on this host."""
    if config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device; use --device cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UsageError(f"rank {local_rank} of this host has no GPU: there are {count}; start {count} processes")
    return torch.device("cuda", local_rank)


def pick_backend(config: TrainConfig, device: torch.device) -> str:
    """The backend of ``--backend``; UsageError if this torch was built without it."""
    if (backend := config.backend) == "auto":
        backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_backend_available(backend):
        raise UsageError(f"--backend {backend}: this torch was built without it; use another --backend")
    return backend


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
    """`samples` samples of ``--data`` with tokens below `vocab`. Raises UsageError for data that the datasets library
    cannot load."""
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
