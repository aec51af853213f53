"""What the ranks do, as data: operations of each step, process groups, the machine's costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from changed import replace

Device = Literal["cuda", "cpu"]
DTYPE_BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Long": 8}
_SHARDED = {"_allgather_base": "in", "allgather": "in", "_reduce_scatter_base": "out"}


@dataclass(frozen=True)
class Compute:
    """A kernel of `us` µs; `name` is the kernel's, `label` the place in the program, `op` the operator around it."""

    name: str
    us: float
    label: str = ""
    op: str = "aten::mm"
    stream: str = "compute"


@dataclass(frozen=True)
class Memcpy:
    """A copy on `stream`, as long as its bytes take; `kind` is kineto's: HtoD, DtoH or DtoD."""

    bytes: int
    kind: str = "HtoD"
    label: str = "copy"
    stream: str = "compute"


@dataclass(frozen=True)
class Collective:
    """A collective of the rank's group under this key.

    `op` is as torch names it ("allreduce", "_allgather_base", "_reduce_scatter_base", "broadcast");
    `elements` counts the larger of input and output. The kernel starts after everything launched before it
    on the streams in `waits`, or after the operations with these labels. A "send" or "recv" has its other end `to`
    places on in the group; `inside` is an operator around the call.
    """

    op: str
    group: str
    elements: int
    label: str
    stream: str = "comm"
    dtype: str = "Float"
    waits: tuple[str, ...] = ("compute",)
    to: int = 0
    inside: str = ""

    def messages(self, members: int) -> tuple[int, int]:
        """Elements in and out of one rank."""
        whole, part = self.elements, self.elements // members
        side = _SHARDED.get(self.op)
        return (part, whole) if side == "in" else (whole, part) if side == "out" else (whole, whole)

    @property
    def bytes(self) -> int:
        """Size as nccl-tests counts it."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Join:
    """What is launched later on `stream` starts after the operation with this label; without a GPU the host waits."""

    label: str
    stream: str = "compute"


@dataclass(frozen=True)
class HostWait:
    """The host blocks until the operation with this label is done (gloo, or NCCL's blocking wait)."""

    label: str


@dataclass(frozen=True)
class HostWork:
    """`us` µs of work on the host inside a record_function region."""

    name: str
    us: float


@dataclass(frozen=True)
class LoadInput:
    """`us` µs in the data loader."""

    us: float


@dataclass(frozen=True)
class HostSync:
    """The host blocks until the device (or one stream) is done."""

    stream: str | None = None


Op = Compute | Memcpy | Collective | Join | HostWait | HostWork | LoadInput | HostSync


@dataclass(frozen=True)
class Groups:
    """Process groups that partition the world: `size` ranks each, `stride` apart; size None takes all there are.

    With a stride of 4, rank 1 of 8 is in the group 1, 5. Bandwidth is the bus bandwidth in GB/s (10⁹ bytes).
    """

    key: str
    description: str
    size: int | None = None
    stride: int = 1
    bandwidth_gbs: float = 100.0
    latency_us: float = 12.0

    def members(self, rank: int, world: int) -> tuple[int, ...]:
        """Global ranks of the group this rank is in. Raises ValueError where they do not divide the world."""
        size = world // self.stride if self.size is None else self.size
        block = size * self.stride
        if not size or world % block:
            raise ValueError(f"{world} ranks do not divide into groups {self.key!r} of {size} × {self.stride}")
        first = rank - rank % block + rank % self.stride
        return tuple(range(first, first + block, self.stride))

    def transfer_us(self, op: Collective, members: int) -> float:
        """Time the bytes take once all members are there, µs [nccl-tests, PERFORMANCE.md]."""
        passes = 2 if op.op == "allreduce" else 1
        factor = 1.0 if op.op in ("broadcast", "send", "recv") else passes * (members - 1) / members
        return self.latency_us + op.bytes * factor / self.bandwidth_gbs / 1e3


@dataclass(frozen=True)
class Program:
    """What every rank runs. The first `warmup` steps come before the profiler's window.

    Every launch costs the host `launch_us`; a kernel starts `latency_us` after its launch at the earliest, and
    the host may be `queue` launches ahead of the device. `jitter` is relative (kernels, transfers, host),
    `end_jitter_us` the most by which the ends of a collective differ between its members. `through_host`: on GPUs,
    but gloo exchanges the data, so that no collective runs on the device and a host waits where it joins one.
    """

    name: str
    groups: tuple[Groups, ...]
    steps: tuple[tuple[Op, ...], ...]
    stages: tuple[tuple[Op, ...], ...] = ()  # of each step, by place in the groups under `staged`
    staged: str = ""
    warmup: int = 1
    first_step: int = 3
    device: Device = "cuda"
    through_host: bool = False
    launch_us: float = 8.0
    latency_us: float = 4.0
    copy_gbs: float = 20.0
    queue: int = 1024
    jitter: float = 0.02
    end_jitter_us: float = 2.0

    def ops(self, step: int, stage: int) -> tuple[Op, ...]:
        """What a rank at this place in its `staged` group runs in the step at this position."""
        return self.stages[stage] if self.stages else self.steps[step]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the steps, of the warm-up too."""
        return tuple(range(self.first_step - self.warmup, self.first_step - self.warmup + len(self.steps)))

    @property
    def streams(self) -> dict[str, int]:
        """Number of each stream, in the order of their first use; the compute stream is 7 as in torch."""
        names = dict.fromkeys(
            op.stream
            for ops in (*self.steps, *self.stages)
            for op in ops
            if isinstance(op, Compute | Memcpy | Collective)
        )
        others = (name for name in names if name != "compute")
        return {"compute": 7} | {name: 17 + 4 * number for number, name in enumerate(others)}

    def description(self, group: str) -> str:
        """What torch calls the groups under this key."""
        return next(groups.description for groups in self.groups if groups.key == group)

    def without_jitter(self) -> Program:
        """The same program on a machine where everything always takes as long."""
        return replace(self, jitter=0.0, end_jitter_us=0.0)
