"""What to train, as data: every option of the built-in training, and the sizes that depend on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True)
class TrainConfig:
    """What to train and how; None means "by device", see `Sizes`, or by schedule for `steps`."""

    strategy: str = "pytorch_ddp"
    model: str = "gpt"
    data: str = "random"
    layers: int | None = None
    dim: int | None = None
    heads: int | None = None
    vocab: int | None = None
    seq_len: int | None = None
    batch_size: int | None = None
    precision: str = "fp32"
    grad_accum: int = 1
    activation_checkpointing: bool = False
    workers: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    epoch_steps: int | None = None
    bucket_mb: float | None = None
    shard_group_size: int | None = None
    replicas: int = 1
    pp_schedule: str = "1f1b"
    micro_batches: int = 4
    stage_layers: str | None = None
    experts: int | None = None
    skew: float | None = None
    find_unused_parameters: bool = False
    lr: float = 3e-4
    optimizer: str = "adamw"
    offload: str = "none"
    seed: int = 0
    device: str = "auto"
    backend: str = "auto"
    step_unit: str = "optimizer"
    steps: int | None = None


@dataclass(frozen=True)
class Sizes:
    """The options whose default depends on the device, decided."""

    layers: int
    dim: int
    heads: int
    vocab: int
    seq_len: int
    batch_size: int
    workers: int
    bucket_mb: float


# CPU: two ranks on two cores finish a step in a fraction of a second, with several buckets to look at.
# GPU: large enough that kernels, not launches, fill the step.
CPU_SIZES = Sizes(layers=4, dim=128, heads=4, vocab=1024, seq_len=64, batch_size=4, workers=1, bucket_mb=0.5)
CUDA_SIZES = Sizes(layers=8, dim=1024, heads=16, vocab=32768, seq_len=512, batch_size=8, workers=2, bucket_mb=25.0)


def sizes_for(config: TrainConfig, device: str) -> Sizes:
    """The sizes of `config` with the defaults of `device` ("cpu" or "cuda") where none was given."""
    defaults = asdict(CUDA_SIZES if device == "cuda" else CPU_SIZES)
    given = {name: getattr(config, name) for name in defaults if getattr(config, name) is not None}
    return Sizes(**{**defaults, **given})


STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "interleaved": 2}
PP_SCHEDULES = tuple(STAGES_PER_RANK)


def blocks_of_stages(blocks: int, stages: int, sizes: Sequence[int] = ()) -> list[range]:
    """The blocks of each stage, by number: `sizes` of them, or as many each (the first ones take what is left over)."""
    own = list(sizes) or [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
    return [range(*edges) for edges in pairwise([0, *accumulate(own)])]
