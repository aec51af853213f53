"""The options of strategies on a mesh, and which of them fit the ranks and the model. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traceops.core.errors import UsageError
from traceops.train.config import Sizes, TrainConfig
from traceops.train.strategies import MESHES
from traceops.train.strategies.stages import PP_SCHEDULES, STAGES_PER_RANK

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
        "--replicas",
        type=int,
        default=default.replicas,
        metavar="N",
        help="pytorch_tp, pytorch_pp, pytorch_cp, expert_parallel: copies of the model that share the batch; the "
        "ranks of a copy have consecutive numbers (%(default)s)",
    )
    add(
        "--pp-schedule",
        choices=PP_SCHEDULES,
        default=default.pp_schedule,
        help="pytorch_pp: order of micro-batches; interleaved has two stages a rank (%(default)s)",
    )
    add(
        "--micro-batches",
        type=int,
        default=default.micro_batches,
        metavar="N",
        help="pytorch_pp: micro-batches of a batch (%(default)s)",
    )
    add("--stage-layers", metavar="N,N,…", help="pytorch_pp: blocks of each stage (the same number each)")
    add("--experts", type=int, metavar="N", help="expert_parallel: experts of a block (one for each rank of a copy)")
    add(
        "--skew",
        type=float,
        metavar="SHARE",
        help="expert_parallel: send this share of the tokens to the last expert, such as 0.75 (the router decides)",
    )


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
    stages = ranks * STAGES_PER_RANK[config.pp_schedule]
    pipeline = config.strategy == "pytorch_pp"
    if pipeline and stage_layers and len(stage_layers) != stages:
        raise UsageError(f"--stage-layers {config.stage_layers}: there are {stages} stages; give one number for each")
    if pipeline and config.pp_schedule == "interleaved" and (ranks < 2 or config.micro_batches % ranks):
        raise UsageError(
            f"--micro-batches {config.micro_batches}: the interleaved schedule wants two ranks or more, and a multiple "
            f"of their number, {ranks}"
        )
    if sizes is None:
        return
    if config.strategy == "pytorch_tp" and sizes.heads % ranks:
        raise UsageError(f"--heads {sizes.heads}: does not divide evenly over {ranks} ranks; use a multiple")
    if config.strategy == "pytorch_cp" and sizes.seq_len % (2 * ranks):
        raise UsageError(f"--seq-len {sizes.seq_len}: two pieces a rank, {2 * ranks} in all; make it a multiple")
    if not pipeline:
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
