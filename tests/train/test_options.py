"""The options survive the way through argv, need no torch, and refuse what cannot work."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
from changed import replace

from traceops.core.errors import UsageError
from traceops.train.config import TrainConfig, sizes_for
from traceops.train.options import (
    add_training_arguments,
    check,
    config_from,
    describe,
    shard_group_size,
    to_argv,
    with_global_batch,
)

OTHER = TrainConfig(
    strategy="pytorch_hsdp", model="hf:a/b", data="hf:c.jsonl", layers=2, dim=64, heads=2, vocab=300,
    seq_len=16, batch_size=3, precision="bf16", grad_accum=4, activation_checkpointing=True, workers=3,
    prefetch_factor=4, pin_memory=False, persistent_workers=True, epoch_steps=5,
    bucket_mb=1.5, shard_group_size=2, replicas=2, pp_schedule="gpipe", micro_batches=8, stage_layers="1,1",
    experts=8, skew=0.5,
    find_unused_parameters=True, lr=0.1, optimizer="sgd", offload="cpu", seed=7,
    device="cpu", backend="gloo", step_unit="batch", steps=9,
)  # fmt: skip


def parse(argv: list[str]) -> TrainConfig:
    parser = argparse.ArgumentParser()
    add_training_arguments(parser)
    return config_from(parser.parse_args(argv))


def test_argv_gives_the_config_back() -> None:
    assert parse([]) == TrainConfig()
    assert to_argv(TrainConfig()) == []
    unchanged = [f.name for f in fields(TrainConfig) if getattr(OTHER, f.name) == f.default]
    assert not unchanged, "the test should give every option another value"
    assert parse(to_argv(OTHER)) == OTHER


def test_options_load_without_torch() -> None:
    code = "import sys, traceops.train.options as o; o.check(o.TrainConfig(), 2, 'cpu', 'gloo');"
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


def test_sizes_follow_the_device_unless_given() -> None:
    config = TrainConfig(layers=3, workers=0)
    assert sizes_for(config, "cpu").layers == sizes_for(config, "cuda").layers == 3
    assert sizes_for(config, "cpu").workers == 0
    assert sizes_for(config, "cpu").dim < sizes_for(config, "cuda").dim
    assert describe(config, "cuda")["dim"] == sizes_for(config, "cuda").dim


@pytest.mark.parametrize(
    ("world_size", "local", "expected"), [(8, 8, 4), (2, 2, 2), (3, 3, 3), (16, 8, 8), (8, None, 4)]
)
def test_shard_group_is_a_node_or_half_of_one(world_size: int, local: int | None, expected: int) -> None:
    config = TrainConfig(strategy="pytorch_hsdp")
    assert shard_group_size(config, world_size, local) == expected
    assert shard_group_size(replace(config, shard_group_size=1), world_size, local) == 1


@pytest.mark.parametrize(
    ("config", "device", "backend", "reason"),
    [
        (TrainConfig(), "cpu", "nccl", "use --backend gloo"),
        (TrainConfig(strategy="zero2"), "cuda", "gloo", "cannot reduce-scatter"),
        (TrainConfig(strategy="pytorch_hsdp", shard_group_size=3), "cpu", "gloo", "one of 1, 2, 4"),
        (TrainConfig(strategy="pytorch_hsdp", shard_group_size=8), "cpu", "gloo", "one of 1, 2, 4"),
        (TrainConfig(strategy="zero3", shard_group_size=2), "cpu", "gloo", "no shard groups"),
        (TrainConfig(strategy="zero3", replicas=2), "cpu", "gloo", "--replicas is for expert_parallel, pytorch_cp"),
        (TrainConfig(strategy="pytorch_tp", replicas=3), "cpu", "gloo", "--replicas 3 does not divide the 4 ranks"),
        (TrainConfig(strategy="pytorch_tp", heads=2), "cpu", "gloo", "--heads 2: does not divide evenly over 4 ranks"),
        (TrainConfig(strategy="pytorch_tp", model="hf:x"), "cpu", "gloo", "only the built-in gpt"),
        (TrainConfig(strategy="pytorch_tp", precision="fp16"), "cpu", "gloo", "use bf16"),
        (TrainConfig(strategy="pytorch_cp"), "cpu", "gloo", "on GPUs only"),
        (TrainConfig(strategy="pytorch_cp", seq_len=12), "cuda", "nccl", "--seq-len 12: two pieces per rank, 8"),
        (TrainConfig(strategy="pytorch_pp", micro_batches=3), "cpu", "gloo", "cannot be cut into 3"),
        (TrainConfig(strategy="pytorch_pp", layers=3), "cpu", "gloo", "4 stages need a block each"),
        (TrainConfig(strategy="pytorch_pp", stage_layers="1,3"), "cpu", "gloo", "there are 4 stages"),
        (TrainConfig(strategy="pytorch_pp", stage_layers="1,2,1,1"), "cpu", "gloo", "the model has 4 blocks"),
        (TrainConfig(strategy="pytorch_pp", stage_layers="1,0"), "cpu", "gloo", "give the blocks of each stage"),
        (TrainConfig(strategy="pytorch_pp", pp_schedule="interleaved", micro_batches=2), "cpu", "gloo", "multiple"),
        (
            TrainConfig(strategy="expert_parallel", experts=6),
            "cpu",
            "gloo",
            "--experts 6: does not divide evenly over 4 ranks",
        ),
        (TrainConfig(strategy="expert_parallel", skew=1.5), "cpu", "gloo", "between 0 and 1"),
        (TrainConfig(strategy="zero4"), "cpu", "gloo", "use one of simple_ddp"),
        (TrainConfig(precision="fp8"), "cpu", "gloo", "--precision fp8"),
        (TrainConfig(dim=100, heads=3), "auto", "auto", "--heads 3"),
        (TrainConfig(heads=3), "cpu", "gloo", "--heads 3"),
        (TrainConfig(grad_accum=0), "cpu", "gloo", "--grad-accum 0"),
        (TrainConfig(bucket_mb=-1.0), "cpu", "gloo", "--bucket-mb -1.0"),
        (TrainConfig(workers=-1), "cpu", "gloo", "--workers -1"),
        (TrainConfig(prefetch_factor=0), "cpu", "gloo", "--prefetch-factor 0"),
        (TrainConfig(prefetch_factor=4, workers=0), "cpu", "gloo", "--workers 0 has none"),
        (TrainConfig(persistent_workers=True, workers=0), "cpu", "gloo", "--workers 0 has none"),
        (TrainConfig(persistent_workers=True), "cpu", "gloo", "within one epoch"),
        (TrainConfig(pin_memory=True), "cpu", "gloo", "copies to a GPU"),
        (TrainConfig(epoch_steps=0), "cpu", "gloo", "--epoch-steps 0"),
        (TrainConfig(steps=0), "cpu", "gloo", "--steps 0"),
        (TrainConfig(model="llama"), "cpu", "gloo", "hf:NAME"),
        (TrainConfig(data="hf:"), "cpu", "gloo", "hf:NAME"),
        (TrainConfig(model="hf:x", layers=2), "cpu", "gloo", "leave the flag out"),
        (TrainConfig(data="hf:x", vocab=100), "cpu", "gloo", "at least 256"),
    ],
)
def test_what_cannot_work_is_refused(config: TrainConfig, device: str, backend: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        check(config, 4, device, backend)


def test_what_is_not_known_yet_is_not_judged() -> None:
    check(TrainConfig(strategy="pytorch_hsdp", shard_group_size=3), None, "auto", "auto")
    check(TrainConfig(heads=3), 2, "auto", "auto")
    check(TrainConfig(strategy="simple_ddp"), 2, "cuda", "gloo")
    check(TrainConfig(strategy="pytorch_pp", layers=3), None, "auto", "auto")
    check(TrainConfig(strategy="pytorch_tp", heads=2), 4, "auto", "auto")
    check(TrainConfig(strategy="pytorch_pp", replicas=2, stage_layers="3,1"), 4, "cpu", "gloo")


@pytest.mark.parametrize(
    ("settings", "world_size", "batch_size"),
    [
        ({}, 4, 8),
        ({"grad_accum": 2}, 4, 4),
        ({"strategy": "pytorch_tp", "replicas": 2}, 4, 16),
        ({"strategy": "expert_parallel"}, 4, 8),
    ],
)
def test_the_batch_of_a_rank_follows_from_that_of_all(
    settings: dict[str, Any], world_size: int, batch_size: int
) -> None:
    assert with_global_batch(TrainConfig(**settings), 32, world_size).batch_size == batch_size


@pytest.mark.parametrize(
    ("settings", "reason"), [({"batch_size": 4}, "give one"), ({"grad_accum": 3}, "use a multiple of 12")]
)
def test_a_global_batch_that_does_not_divide_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        with_global_batch(TrainConfig(**settings), 32, 4)


def test_offload_is_for_fsdp2() -> None:
    check(TrainConfig(strategy="pytorch_zero3", offload="cpu"), 2, "cuda", "nccl")
    with pytest.raises(UsageError, match="--offload cpu is for pytorch_hsdp, pytorch_zero2, pytorch_zero3"):
        check(TrainConfig(strategy="pytorch_ddp", offload="cpu"), 2, "cuda", "nccl")
