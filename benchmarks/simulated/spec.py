"""What a simulated run is: a training, its machine, and what is wrong with it; all of it data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["ddp", "fsdp2", "tp", "pp", "ep"]
KINDS: tuple[Kind, ...] = ("ddp", "fsdp2", "tp", "pp", "ep")

TroubleKind = Literal[
    "late_host",  # a function of the program's own on one rank, each step
    "late_loader",  # one rank's batches come late
    "slow_gpu",  # the kernels of one rank take longer
    "extra_kernel",  # one rank launches kernels that its peers do not
    "uneven_batch",  # one rank has more samples
    "slow_copy",  # one rank copies its batch slowly
    "evaluation",  # rank 0 evaluates in one step
    "gc",  # one rank's host pauses in a step or two
    "throttled",  # the kernels of one rank take longer in some steps
    "checkpoint",  # rank 0 saves behind one step
    "slow_node",  # the kernels of all ranks of one host take longer
    "gc_by_turns",  # every rank's host pauses, each in steps of its own
    "slow_loader",  # the batches of all ranks come late
    "tiny_buckets",
    "one_bucket",
    "slow_link",  # of the groups that reach another host, or of one pair of stages
    "item_sync",  # .item() in the forward pass of all ranks
    "exposed_copy",  # large copies from pageable memory on all ranks
    "slow_stage",
    "hot_expert",
]
OF_A_RANK: tuple[TroubleKind, ...] = (
    "late_host", "late_loader", "slow_gpu", "extra_kernel", "uneven_batch", "slow_copy", "evaluation", "gc",
    "throttled", "checkpoint", "hot_expert",
)  # fmt: skip
OF_ALL: dict[TroubleKind, tuple[Kind, ...]] = {
    "slow_loader": KINDS, "gc_by_turns": KINDS, "slow_node": ("ddp", "fsdp2"), "tiny_buckets": ("ddp",),
    "one_bucket": ("ddp",), "slow_link": ("tp", "pp", "ddp"), "item_sync": ("ddp", "fsdp2", "tp", "ep"),
    "exposed_copy": ("ddp", "fsdp2", "tp", "ep"), "slow_stage": ("pp",), "hot_expert": ("ep",),
}  # fmt: skip


@dataclass(frozen=True)
class Trouble:
    """`size` is in ms a step, or a factor (slow_gpu, uneven_batch, slow_link, slow_stage, hot_expert), or a count."""

    kind: TroubleKind
    size: float
    rank: int = 0  # of a slow stage: the stage
    steps: tuple[int, ...] = ()  # positions among the recorded steps; empty: all
    variant: int = 0  # where in the step, and by which kernel

    def in_step(self, step: int) -> bool:
        """Whether it is there in this step; warm-up steps have those that are in all."""
        return not self.steps or step in self.steps


@dataclass(frozen=True)
class Kernel:
    """One operation of a layer: its kernel, operators and blocks; a persistent kernel has as many whatever it does."""

    name: str
    us: float
    forward: str
    backward: str
    blocks: int
    persistent: bool = False


@dataclass(frozen=True)
class Spec:
    """A training of `world` ranks. Factors are of each rank's host and device, as machines of one kind differ."""

    seed: int
    kind: Kind
    world: int
    per_host: int
    layers: int  # of a stage
    kernels: tuple[Kernel, ...]  # of a layer
    steps: int
    elements: int  # parameters of a layer
    launch_us: float
    input_us: float
    input_bytes: int
    bandwidth_gbs: float
    far_gbs: float
    latency_us: float
    jitter: float
    sync: bool  # the loss is read each step
    buckets: int
    degree: int  # tensor parallel ranks, or stages
    micro_batches: int
    hosts: tuple[float, ...]
    devices: tuple[float, ...]
    clocks: tuple[tuple[float, float], ...]  # offset in µs and drift in ppm of each rank
    hiccups: float  # the chance that a host pauses before a layer, for a reason of its own
    uneven: float  # how far samples and tokens differ between ranks and steps
    net: tuple[float, ...]  # of each step, warm-up too: how much longer its transfers take
    accumulate: int  # backward passes of DDP before gradients are exchanged
    metric: bool  # the loss is reduced over all ranks and read each step
    loader: str  # how the trace notes that data is loaded, if it does
    marked: bool  # the steps are noted
    seq: bool
    stacks: bool
    noted: bool  # the program notes its functions (record_function)
    troubles: tuple[Trouble, ...] = ()
    # what a cure that is in no trouble's hands changes
    no_transfer: bool = False
    no_host: bool = False
    no_input: bool = False
    no_sync: bool = False
    no_copy: bool = False
    steady: tuple[int, ...] = ()  # ranks as their median peer: neither pauses nor longer samples by chance
    shared: bool = False  # uneven batches and experts are shared evenly

    def without(self, *troubles: Trouble) -> Spec:
        """The same run without these."""
        return replace(self, troubles=tuple(one for one in self.troubles if one not in troubles))

    def of(self, kind: TroubleKind, rank: int | None = None) -> list[Trouble]:
        """The troubles of this kind, on this rank."""
        return [one for one in self.troubles if one.kind == kind and (rank is None or one.rank == rank)]

    @property
    def stages(self) -> int:
        """Of the pipeline."""
        return self.degree if self.kind == "pp" else 1

    def stage(self, rank: int) -> int:
        """Of this rank."""
        return rank // (self.world // self.stages)
