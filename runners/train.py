"""Train a language model with one of traceops' strategies, and profile it.

    traceops run --strategy bucket_ddp_async --nproc 2

which is this, with the settings of the profiler in the environment:

    torchrun --nproc-per-node 2 runners/train.py --strategy bucket_ddp_async

Several nodes: torchrun's --nnodes, --node-rank and --rdzv-endpoint. Copy this file and make it yours.
"""

from __future__ import annotations

import argparse
import os
import sys
from itertools import islice

import torch
import torch.distributed as dist

import traceops
from traceops.core.errors import TraceopsError, UsageError
from traceops.train.build import (
    batches_of,
    make_dataset,
    make_loader,
    optimizer_spec,
    pick_backend,
    pick_device,
    strategy_options,
)
from traceops.train.config import TrainConfig, sizes_for
from traceops.train.model import make_model
from traceops.train.options import add_training_arguments, check, config_from, describe
from traceops.train.strategies import strategy_class


def train(config: TrainConfig) -> None:
    # Who am I: torchrun says so in the environment.
    if "RANK" not in os.environ:
        raise UsageError("start this script with torchrun, or with traceops run --strategy …")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size, local_world_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])

    # Device and process group. device_id ties NCCL to this rank's GPU, so it connects at once.
    device = pick_device(config, local_rank)
    backend = pick_backend(config, device)
    check(config, world_size, device.type, backend)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device if backend == "nccl" else None)

    # Model, optimizer, strategy. The seed is the same on all ranks; rank 0's weights are what counts.
    sizes = sizes_for(config, device.type)
    torch.manual_seed(config.seed)
    model = make_model(config, sizes)
    parameters = sum(p.numel() for p in model.parameters())
    # Of experts only some compute a token, so the dense model's operations are not theirs.
    flops_per_token = None if config.strategy == "expert_parallel" else model.flops_per_token(sizes.seq_len)
    optimizer = optimizer_spec(config)
    options = strategy_options(config, sizes, world_size, local_world_size)
    strategy = strategy_class(config.strategy)(model, optimizer, device, options)
    torch.manual_seed(config.seed + rank)  # dropout differs between ranks

    # A profiler step is an optimizer step, or with --step-unit batch a micro-batch.
    micro_batches = config.grad_accum if config.step_unit == "optimizer" else 1
    samples_per_step = micro_batches * sizes.batch_size * strategy.data_size
    manifest = {
        "strategy": config.strategy,
        "config": describe(config, device.type),
        "syncs_in_backward": strategy.syncs_in_backward,
        "parameters": parameters + strategy.added_parameters,
        "samples_per_step": samples_per_step,  # of all ranks together
        "tokens_per_step": samples_per_step * sizes.seq_len,
        "flops_per_step": flops_per_token and flops_per_token * samples_per_step * sizes.seq_len,
        "device": device.type,
        "backend": backend,
    }
    with traceops.capture(manifest=manifest, total_steps=config.steps) as profile:
        steps = config.steps or profile.total_steps
        epoch = min(config.epoch_steps or steps, steps)
        loader = make_loader(
            make_dataset(config, sizes, model.vocab, samples=epoch * samples_per_step),
            rank=strategy.data_rank,  # ranks that share a copy of the model share a batch, but for experts
            world_size=strategy.data_size,
            batch_size=sizes.batch_size,
            workers=sizes.workers,
            seed=config.seed,
            pin_memory=device.type == "cuda" if config.pin_memory is None else config.pin_memory,
            prefetch_factor=config.prefetch_factor,
            persistent_workers=bool(config.persistent_workers),
        )
        batches = islice(batches_of(loader, -(-steps // epoch)), steps * micro_batches)
        for number, (tokens, targets) in enumerate(batches, start=1):
            tokens, targets = tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True)
            last = number % config.grad_accum == 0
            with strategy.micro_step(last):
                loss = strategy.forward_backward(tokens, targets, config.grad_accum)
            if last:
                strategy.optimizer_step()
                strategy.zero_grad()
            if last or config.step_unit == "batch":
                profile.step(samples=micro_batches * sizes.batch_size)  # of this rank

    if strategy.tells and loss is not None:
        print(f"trained {steps} steps of {samples_per_step} samples; loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a language model with a strategy and profile it.")
    add_training_arguments(parser)
    try:
        train(config_from(parser.parse_args()))
    except TraceopsError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
