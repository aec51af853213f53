"""The training options of `traceops run` and `runners/train.py`, and which fit together, without importing torch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

from traceops.core.errors import UsageError
from traceops.train.config import CPU_SIZES, CUDA_SIZES, PP_SCHEDULES, STAGES_PER_RANK, Sizes, TrainConfig, sizes_for
from traceops.train.strategies import FSDP2, MESHES, NAMES, SHARDED

_OF = {
    "replicas": tuple(sorted(MESHES)),
    "pp_schedule": ("pytorch_pp",),
    "micro_batches": ("pytorch_pp",),
    "stage_layers": ("pytorch_pp",),
    "experts": ("expert_parallel",),
    "skew": ("expert_parallel",),
}


def add_mesh_arguments(add: Callable[..., Any]) -> None:
    """Add a flag for each of these options with `add`, the add_argument of a parser."""
    default = TrainConfig()
    add(
        "--replicas", type=int, default=default.replicas, metavar="N",
        help="pytorch_tp, pytorch_pp, pytorch_cp, expert_parallel: copies of the model that share the batch; the "
        "ranks of a copy have consecutive numbers (%(default)s)",
    )  # fmt: skip
    add(
        "--pp-schedule", choices=PP_SCHEDULES, default=default.pp_schedule,
        help="pytorch_pp: order of micro-batches; interleaved has two stages a rank (%(default)s)",
    )  # fmt: skip
    add(
        "--micro-batches", type=int, default=default.micro_batches, metavar="N",
        help="pytorch_pp: micro-batches of a batch (%(default)s)",
    )  # fmt: skip
    add("--stage-layers", metavar="N,N,…", help="pytorch_pp: blocks of each stage (the same number each)")
    add("--experts", type=int, metavar="N", help="expert_parallel: experts of a block (one for each rank of a copy)")
    add(
        "--skew", type=float, metavar="SHARE",
        help="expert_parallel: send this share of the tokens to the last expert, such as 0.75 (the router decides)",
    )  # fmt: skip


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
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is for {', '.join(strategies)}; {config.strategy} does not use it")
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
        raise UsageError(
            f"--micro-batches {config.micro_batches}: the interleaved schedule wants two ranks or more, and a multiple "
            f"of their number, {ranks}"
        )
    if sizes is None:
        return
    if sizes.batch_size % config.micro_batches:
        raise UsageError(
            f"--batch-size {sizes.batch_size} cannot be cut into {config.micro_batches} --micro-batches; "
            "make it a multiple"
        )
    if stage_layers and sum(stage_layers) != sizes.layers:
        raise UsageError(f"--stage-layers {config.stage_layers}: the model has {sizes.layers} blocks (--layers)")
    if sizes.layers < stages:
        raise UsageError(f"--layers {sizes.layers}: {stages} stages need a block each")


def add_loader_arguments(add: Any) -> None:
    """Add the flags to a group whose ``add_argument`` is `add`; but for ``--workers``, which has sizes by device."""
    add("--prefetch-factor", type=int, metavar="N", help="batches that each DataLoader worker loads ahead (2)")
    add(
        "--pin-memory", action=argparse.BooleanOptionalAction,
        help="put batches in page-locked memory, which copies to a GPU while it computes (on cuda)",
    )  # fmt: skip
    add(
        "--persistent-workers",
        action="store_true",
        default=None,  # as in a run.json that was written before there was this option
        help="keep the DataLoader's workers from epoch to epoch; see --epoch-steps",
    )
    add(
        "--epoch-steps", type=int, metavar="N",
        help="profiler steps in an epoch; then the data and the DataLoader start over (all steps are one epoch)",
    )  # fmt: skip


def check_loader(config: TrainConfig, device: str) -> None:
    """Raise UsageError for what the DataLoader would refuse, or what would do nothing. device: "auto" if not known."""
    if config.workers is not None and config.workers < 0:
        raise UsageError(f"--workers {config.workers}: must be 0 (load in the training process) or more")
    for name in ("prefetch_factor", "epoch_steps"):
        if (value := getattr(config, name)) is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be 1 or more")
    default = min(CPU_SIZES.workers, CUDA_SIZES.workers)
    if (config.workers if config.workers is not None else default) == 0:
        given = [name for name in ("prefetch_factor", "persistent_workers") if getattr(config, name)]
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is for loader workers, and --workers 0 has none; use "
                "--workers 1 or more"
            )
    if config.pin_memory and device == "cpu":
        raise UsageError("--pin-memory is for copies to a GPU; leave it out with --device cpu")
    if config.persistent_workers and config.epoch_steps is None:
        raise UsageError(
            "--persistent-workers changes nothing within one epoch; add --epoch-steps N, after which the data starts "
            "anew"
        )


PRECISIONS = ("fp32", "bf16", "bf16-params", "fp16", "fp64")
OPTIMIZERS = ("sgd", "adamw", "adamw8bit")
OFFLOADS = ("none", "cpu")
DEVICES = ("auto", "cuda", "cpu")
BACKENDS = ("auto", "nccl", "gloo")
STEP_UNITS = ("optimizer", "batch")


def describe(config: TrainConfig, device: str) -> dict[str, Any]:
    """Every option with its decided value, as run.json stores it."""
    return {**asdict(config), **asdict(sizes_for(config, device))}


def add_training_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag a field of `TrainConfig` to `parser`."""
    default = TrainConfig()
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--strategy", choices=NAMES, default=default.strategy, help="how ranks share the work (%(default)s)")
    add(
        "--model", default=default.model, metavar="gpt|hf:NAME",
        help="built-in GPT, or a causal LM by name or local folder through transformers (%(default)s)",
    )  # fmt: skip
    add(
        "--data", default=default.data, metavar="random|hf:NAME",
        help="random tokens, or text by dataset name or local file through datasets (%(default)s)",
    )  # fmt: skip
    add("--layers", type=int, metavar="N", help=_by_device("blocks of the GPT", "layers"))
    add("--dim", type=int, metavar="N", help=_by_device("width of the GPT", "dim"))
    add("--heads", type=int, metavar="N", help=_by_device("attention heads", "heads"))
    add("--vocab", type=int, metavar="N", help=_by_device("vocabulary", "vocab"))
    add("--seq-len", type=int, metavar="N", help=_by_device("tokens a sample", "seq_len"))
    add("--batch-size", type=int, metavar="N", help=_by_device("samples per rank and batch", "batch_size"))
    add(
        "--precision", choices=PRECISIONS, default=default.precision, metavar="TYPE",
        help=f"{', '.join(PRECISIONS)}: bf16 and fp16 keep fp32 weights, bf16-params has them in bf16 too; fp16 scales "
        "the loss (%(default)s)",
    )  # fmt: skip
    add(
        "--grad-accum", type=int, default=default.grad_accum, metavar="N",
        help="micro-batches an optimizer step (%(default)s)",
    )  # fmt: skip
    add("--activation-checkpointing", action="store_true", help="recompute each block in backward")
    add("--workers", type=int, metavar="N", help=_by_device("DataLoader worker processes", "workers"))
    add_loader_arguments(add)
    add("--bucket-mb", type=float, metavar="MB", help=_by_device("gradient bucket, MiB", "bucket_mb"))
    add(
        "--shard-group-size", type=int, metavar="N",
        help="pytorch_hsdp: ranks that share one copy of the model (a node, or half of a single node)",
    )  # fmt: skip
    add_mesh_arguments(add)
    add(
        "--find-unused-parameters", action="store_true",
        help="pytorch_ddp, pytorch_zero1: the model leaves parameters out of some steps",
    )  # fmt: skip
    add("--lr", type=float, default=default.lr, help="learning rate (%(default)s)")
    add(
        "--optimizer", choices=OPTIMIZERS, default=default.optimizer,
        help="sgd has momentum 0.9; adamw8bit keeps its state in 8 bits (torchao, the extra lowbit) (%(default)s)",
    )  # fmt: skip
    add(
        "--offload", choices=OFFLOADS, default=default.offload,
        help="cpu: FSDP2 keeps parameters, gradients and optimizer state in the host's memory (%(default)s)",
    )  # fmt: skip
    add("--seed", type=int, default=default.seed, help="of weights and data (%(default)s)")
    add("--device", choices=DEVICES, default=default.device, help="auto: cuda where there is one (%(default)s)")
    add("--backend", choices=BACKENDS, default=default.backend, help="auto: nccl on cuda, gloo on cpu (%(default)s)")
    add(
        "--step-unit", choices=STEP_UNITS, default=default.step_unit,
        help="one profiler step is an optimizer step or a micro-batch (%(default)s)",
    )  # fmt: skip
    add("--steps", type=int, metavar="N", help="profiler steps to train (as many as the capture schedule needs)")


def _by_device(what: str, field: str) -> str:
    return f"{what} ({getattr(CPU_SIZES, field)} on cpu, {getattr(CUDA_SIZES, field)} on cuda)"


def config_from(args: argparse.Namespace) -> TrainConfig:
    """The `TrainConfig` of parsed arguments; other attributes of `args` are left alone."""
    return TrainConfig(**{field.name: getattr(args, field.name) for field in fields(TrainConfig)})


def refuse_training_options(config: TrainConfig) -> None:
    """A script takes its own options; only --device, which says what the ranks run on, concerns it too."""
    default = TrainConfig()
    for field in fields(TrainConfig):
        if field.name != "device" and getattr(config, field.name) != getattr(default, field.name):
            flag = "--" + field.name.replace("_", "-")
            raise UsageError(
                f"{flag} is for built-in strategies; a script's own options come after its name: "
                f"traceops run -- train.py {flag} {getattr(config, field.name)}"
            )


def with_global_batch(config: TrainConfig, samples: int, world_size: int) -> TrainConfig:
    """`config` with the batch of a rank such that all ranks train `samples` an optimizer step.

    Raises UsageError where they do not divide, and where a rank's batch was given too.
    """
    if config.batch_size is not None:
        raise UsageError("--batch-size is for one rank, --global-batch-size for all; give one of them")
    shares = config.replicas if config.strategy in MESHES and config.strategy != "expert_parallel" else world_size
    pieces = shares * config.grad_accum
    if samples % pieces:
        raise UsageError(
            f"--global-batch-size {samples} does not divide into {shares} shares of a batch with {config.grad_accum} "
            f"micro-batches each; use a multiple of {pieces}"
        )
    return replace(config, batch_size=samples // pieces)


def to_argv(config: TrainConfig) -> list[str]:
    """Arguments that `add_training_arguments` parses back into `config`; defaults are left out."""
    argv: list[str] = []
    for field in fields(TrainConfig):
        if (value := getattr(config, field.name)) == field.default:
            continue
        argv.append(("--no-" if value is False else "--") + field.name.replace("_", "-"))
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
    """Raise UsageError for what cannot work, with the reason and what to do instead.

    `world_size` None and `device` or `backend` "auto" mean not known yet; what depends on them is skipped.
    """
    _check_values(config)
    _check_model(config, device)
    check_loader(config, device)
    if backend == "nccl" and device == "cpu":
        raise UsageError("--backend nccl moves CUDA tensors only; use --backend gloo with --device cpu")
    if backend == "gloo" and device == "cuda" and config.strategy in SHARDED:
        raise UsageError(
            f"--backend gloo cannot reduce-scatter or all-gather CUDA tensors and {config.strategy} must; "
            "use --backend nccl, or --device cpu"
        )
    if config.strategy == "pytorch_cp" and device == "cpu":
        raise UsageError("pytorch_cp: torch passes attention around a ring on GPUs only; use --strategy pytorch_tp")
    if config.offload != "none" and config.strategy not in FSDP2:
        raise UsageError(f"--offload {config.offload} is for {', '.join(sorted(FSDP2))}, not {config.strategy}")
    if config.strategy == "pytorch_hsdp":
        if world_size is not None:
            size = shard_group_size(config, world_size)
            if size > world_size or world_size % size:
                raise UsageError(
                    f"--shard-group-size {size} does not divide the {world_size} ranks into equal groups; "
                    f"use one of {', '.join(str(n) for n in range(1, world_size + 1) if world_size % n == 0)}"
                )
    elif config.shard_group_size is not None:
        raise UsageError(f"--shard-group-size is for pytorch_hsdp; {config.strategy} has no shard groups")
    check_mesh(config, world_size, None if device == "auto" else sizes_for(config, device))


def _check_values(config: TrainConfig) -> None:
    for name, allowed in (
        ("strategy", NAMES), ("precision", PRECISIONS), ("optimizer", OPTIMIZERS), ("offload", OFFLOADS),
        ("device", DEVICES), ("backend", BACKENDS), ("step_unit", STEP_UNITS),
    ):  # fmt: skip
        if getattr(config, name) not in allowed:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {getattr(config, name)}: use one of {', '.join(allowed)}")
    positive = ("layers", "dim", "heads", "vocab", "seq_len", "batch_size", "grad_accum", "bucket_mb",
                "shard_group_size", "replicas", "micro_batches", "experts", "lr", "steps")  # fmt: skip
    for name in positive:
        if (value := getattr(config, name)) is not None and value <= 0:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be above 0")


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
