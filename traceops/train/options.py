"""The training options of `traceops run` and `runners/train.py`, and which fit together, without importing torch."""

from __future__ import annotations

import argparse
from dataclasses import asdict, fields, replace
from typing import Any

from traceops.core.errors import UsageError
from traceops.train.config import CPU_SIZES, CUDA_SIZES, PP_SCHEDULES, STAGES_PER_RANK, Sizes, TrainConfig, sizes_for
from traceops.train.strategies import FSDP2, MESHES, NAMES, SHARDED
from traceops.words.catalogue import fill, texts

_OF = {
    "replicas": tuple(sorted(MESHES)),
    "pp_schedule": ("pytorch_pp",),
    "micro_batches": ("pytorch_pp",),
    "stage_layers": ("pytorch_pp",),
    "experts": ("expert_parallel",),
    "skew": ("expert_parallel",),
}


def flag_of(name: str) -> str:
    """How the command line calls an option."""
    return "--" + name.replace("_", "-")


def stage_layers_of(config: TrainConfig) -> tuple[int, ...]:
    """The blocks of each stage, () where they are not given. Raises UsageError."""
    if config.stage_layers is None:
        return ()
    try:
        found = tuple(int(part) for part in config.stage_layers.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise UsageError(f"--stage-layers {config.stage_layers}: give the blocks of each stage, for instance 6,2")
    return found


def check_mesh(config: TrainConfig, world_size: int | None, sizes: Sizes | None) -> None:
    """Raise UsageError for a mesh that cannot be; what depends on None is skipped."""
    default = TrainConfig()
    for name, strategies in _OF.items():
        if getattr(config, name) != getattr(default, name) and config.strategy not in strategies:
            raise UsageError(f"{flag_of(name)} is for {', '.join(strategies)}; {config.strategy} does not use it")
    if config.strategy not in MESHES:
        return
    if config.model != "gpt":
        raise UsageError(f"--model {config.model}: {config.strategy} can cut only the built-in gpt")
    if config.precision == "fp16":
        raise UsageError(f"--precision fp16: {config.strategy} does not scale losses; use bf16")
    stage_layers = stage_layers_of(config)
    if config.skew is not None and not 0 < config.skew < 1:
        raise UsageError(f"--skew {config.skew}: a share of the tokens, between 0 and 1")
    if world_size is not None:
        if world_size % config.replicas:
            raise UsageError(f"--replicas {config.replicas} does not divide the {world_size} ranks")
        _check_axis(config, world_size // config.replicas, sizes, stage_layers)


def _check_axis(config: TrainConfig, ranks: int, sizes: Sizes | None, stage_layers: tuple[int, ...]) -> None:
    """Whether the model and the batch can be cut between the `ranks` that share a copy."""
    if config.strategy == "expert_parallel" and (config.experts or ranks) % ranks:
        raise UsageError(f"--experts {config.experts}: does not divide evenly over {ranks} ranks; use a multiple")
    if config.strategy == "pytorch_pp":
        _check_stages(config, ranks, sizes, stage_layers)
    elif config.strategy == "pytorch_tp" and sizes is not None and sizes.heads % ranks:
        raise UsageError(f"--heads {sizes.heads}: does not divide evenly over {ranks} ranks; use a multiple")
    elif config.strategy == "pytorch_cp" and sizes is not None and sizes.seq_len % (2 * ranks):
        raise UsageError(f"--seq-len {sizes.seq_len}: two pieces per rank, {2 * ranks} in all; make it a multiple")


def _check_stages(config: TrainConfig, ranks: int, sizes: Sizes | None, stage_layers: tuple[int, ...]) -> None:
    """Whether the model can be cut into the stages of a pipeline."""
    stages = ranks * STAGES_PER_RANK[config.pp_schedule]
    if stage_layers and len(stage_layers) != stages:
        raise UsageError(f"--stage-layers {config.stage_layers}: there are {stages} stages; give one number for each")
    if config.pp_schedule == "interleaved" and (ranks < 2 or config.micro_batches % ranks):
        how = {"micro_batches": config.micro_batches, "ranks": ranks}
        raise UsageError(fill("train", "interleaved", "refused", **how))
    if sizes is None:
        return
    if sizes.batch_size % config.micro_batches:
        how = {"batch_size": sizes.batch_size, "micro_batches": config.micro_batches}
        raise UsageError(fill("train", "micro_batches", "refused", **how))
    if stage_layers and sum(stage_layers) != sizes.layers:
        raise UsageError(f"--stage-layers {config.stage_layers}: the model has {sizes.layers} blocks (--layers)")
    if sizes.layers < stages:
        raise UsageError(f"--layers {sizes.layers}: {stages} stages need a block each")


def check_loader(config: TrainConfig, device: str) -> None:
    """Raise UsageError for what the DataLoader would refuse, or what would do nothing. device: "auto" if not known."""
    if config.workers is not None and config.workers < 0:
        raise UsageError(f"--workers {config.workers}: must be 0 (load in the training process) or more")
    for name in ("prefetch_factor", "epoch_steps"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise UsageError(f"{flag_of(name)} {value}: must be 1 or more")
    default = min(CPU_SIZES.workers, CUDA_SIZES.workers)
    if (config.workers if config.workers is not None else default) == 0:
        given = [name for name in ("prefetch_factor", "persistent_workers") if getattr(config, name)]
        if given:
            raise UsageError(fill("train", "no_workers", "refused", flag=flag_of(given[0])))
    if config.pin_memory and device == "cpu":
        raise UsageError("--pin-memory is for copies to a GPU; leave it out with --device cpu")
    if config.persistent_workers and config.epoch_steps is None:
        raise UsageError(fill("train", "one_epoch", "refused"))


CHOICES = {
    "strategy": NAMES,
    "precision": ("fp32", "bf16", "bf16-params", "fp16", "fp64"),
    "optimizer": ("sgd", "adamw", "adamw8bit"),
    "offload": ("none", "cpu"),
    "device": ("auto", "cuda", "cpu"),
    "backend": ("auto", "nccl", "gloo"),
    "step_unit": ("optimizer", "batch"),
    "pp_schedule": PP_SCHEDULES,
}
_METAVARS = {
    "model": "gpt|hf:NAME", "data": "random|hf:NAME", "precision": "TYPE", "bucket_mb": "MB", "stage_layers": "N,N,…",
    "skew": "SHARE", "lr": "LR",
}  # fmt: skip
_BY_DEVICE = tuple(field.name for field in fields(Sizes))


def describe(config: TrainConfig, device: str) -> dict[str, Any]:
    """Every option with its decided value, as run.json stores it."""
    return {**asdict(config), **asdict(sizes_for(config, device))}


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag a field of `TrainConfig` to `parser`."""
    add = parser.add_argument_group("training").add_argument
    words = texts("options", "training")
    for field in fields(TrainConfig):
        name, kind = field.name, str(field.type).partition(" ")[0]
        flag, usual = flag_of(name), field.default
        if name == "pin_memory":
            add(flag, action=argparse.BooleanOptionalAction, help=words[name])
        elif kind == "bool":  # a default of None stands for a run.json that was written before there was the option
            add(flag, action="store_true", default=usual, help=words[name])
        elif name in CHOICES:
            add(flag, choices=CHOICES[name], default=usual, metavar=_METAVARS.get(name), help=words[name])
        else:
            help = words[name]
            if name in _BY_DEVICE:
                help = words["by_device"].format(
                    what=help, cpu=getattr(CPU_SIZES, name), cuda=getattr(CUDA_SIZES, name)
                )
            number = {"int": int, "float": float}.get(kind, str)
            add(flag, type=number, default=usual, metavar=_METAVARS.get(name, "N"), help=help)


def config_from(args: argparse.Namespace) -> TrainConfig:
    """The `TrainConfig` of parsed arguments; other attributes of `args` are left alone."""
    return TrainConfig(**{field.name: getattr(args, field.name) for field in fields(TrainConfig)})


def refuse_training_options(config: TrainConfig) -> None:
    """A script takes its own options; only --device, which says what the ranks run on, concerns it too."""
    default = TrainConfig()
    for field in fields(TrainConfig):
        if field.name != "device" and getattr(config, field.name) != getattr(default, field.name):
            value = getattr(config, field.name)
            raise UsageError(fill("train", "of_built_in", "refused", flag=flag_of(field.name), value=value))


def with_global_batch(config: TrainConfig, samples: int, world_size: int) -> TrainConfig:
    """`config` with the batch of a rank such that all ranks train `samples` an optimizer step. Raises UsageError where
    they do not divide, and where a rank's batch was given too."""
    if config.batch_size is not None:
        raise UsageError("--batch-size is for one rank, --global-batch-size for all; give one of them")
    shares = config.replicas if config.strategy in MESHES and config.strategy != "expert_parallel" else world_size
    pieces = shares * config.grad_accum
    if samples % pieces:
        how = {"shares": shares, "grad_accum": config.grad_accum, "pieces": pieces}
        raise UsageError(fill("train", "global_batch", "refused", samples=samples, **how))
    return replace(config, batch_size=samples // pieces)


def to_argv(config: TrainConfig) -> list[str]:
    """Arguments that `add_training_arguments` parses back into `config`; defaults are left out."""
    argv: list[str] = []
    for field in fields(TrainConfig):
        if (value := getattr(config, field.name)) == field.default:
            continue
        argv.append(flag_of(field.name if value is not False else f"no_{field.name}"))
        if not isinstance(value, bool):
            argv.append(str(value))
    return argv


def shard_group_size(config: TrainConfig, world_size: int, local_world_size: int | None = None) -> int:
    """Ranks in a shard group of pytorch_hsdp: as asked, else a node, else half of a single node."""
    if config.shard_group_size is not None:
        return config.shard_group_size
    if local_world_size is not None and local_world_size < world_size:
        return local_world_size
    return world_size // 2 if world_size > 2 and world_size % 2 == 0 else world_size


def check(config: TrainConfig, world_size: int | None, device: str, backend: str) -> None:
    """Raise UsageError for what cannot work, with the reason and what to do instead. `world_size` None and `device` or
    `backend` "auto" mean not known yet; what depends on them is skipped."""
    _check_values(config)
    _check_model(config, device)
    check_loader(config, device)
    if backend == "nccl" and device == "cpu":
        raise UsageError("--backend nccl moves CUDA tensors only; use --backend gloo with --device cpu")
    if backend == "gloo" and device == "cuda" and config.strategy in SHARDED:
        raise UsageError(fill("train", "gloo_shards", "refused", strategy=config.strategy))
    if config.strategy == "pytorch_cp" and device == "cpu":
        raise UsageError("pytorch_cp: torch passes attention around a ring on GPUs only; use --strategy pytorch_tp")
    if config.offload != "none" and config.strategy not in FSDP2:
        raise UsageError(f"--offload {config.offload} is for {', '.join(sorted(FSDP2))}, not {config.strategy}")
    if config.strategy == "pytorch_hsdp":
        if world_size is not None:
            size = shard_group_size(config, world_size)
            if size > world_size or world_size % size:
                sizes = ", ".join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)
                raise UsageError(fill("train", "shard_groups", "refused", size=size, ranks=world_size, sizes=sizes))
    elif config.shard_group_size is not None:
        raise UsageError(f"--shard-group-size is for pytorch_hsdp; {config.strategy} has no shard groups")
    check_mesh(config, world_size, None if device == "auto" else sizes_for(config, device))


def _check_values(config: TrainConfig) -> None:
    for name, allowed in CHOICES.items():
        if getattr(config, name) not in allowed:
            raise UsageError(f"{flag_of(name)} {getattr(config, name)}: use one of {', '.join(allowed)}")
    positive = ("layers", "dim", "heads", "vocab", "seq_len", "batch_size", "grad_accum", "bucket_mb",
                "shard_group_size", "replicas", "micro_batches", "experts", "lr", "steps")  # fmt: skip
    for name in positive:
        if (value := getattr(config, name)) is not None and value <= 0:
            raise UsageError(f"{flag_of(name)} {value}: must be above 0")


def _check_model(config: TrainConfig, device: str) -> None:
    for name, built_in in (("model", "gpt"), ("data", "random")):
        value: str = getattr(config, name)
        if value != built_in and not (value.startswith("hf:") and len(value) > 3):
            raise UsageError(f"--{name} {value}: use {built_in}, or hf:NAME with a name or a local path")
    if config.model != "gpt":
        given = [name for name in ("layers", "dim", "heads", "vocab") if getattr(config, name) is not None]
        if given:
            raise UsageError(f"--{given[0]} sizes the built-in gpt; {config.model} has its own: leave the flag out")
        return
    if device == "auto" and (config.dim is None or config.heads is None):
        return
    sizes = sizes_for(config, device)
    if sizes.dim % sizes.heads:
        raise UsageError(f"--dim {sizes.dim} does not divide into --heads {sizes.heads}; make it a multiple")
    if config.data != "random" and sizes.vocab < 256:
        raise UsageError(f"--vocab {sizes.vocab}: the built-in gpt reads text as UTF-8 bytes; use at least 256")
