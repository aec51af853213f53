"""What may go wrong in a run, as data; a fault without `steps` is there in all of them, warm-up included."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SlowCompute:
    """Kernels of one rank take `factor` times as long, and the first of each step `extra_us` µs more.

    `at` picks the kernels: the beginning of their name or label.
    """

    rank: int
    factor: float = 1.0
    extra_us: float = 0.0
    steps: tuple[int, ...] | None = None
    at: str = ""


@dataclass(frozen=True)
class SlowHost:
    """One rank's host does something else for `extra_us` µs, once a step, before the first launch that `at` picks."""

    rank: int
    extra_us: float
    at: str = ""
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SlowInput:
    """Each data loading of one rank takes `extra_us` µs more."""

    rank: int
    extra_us: float
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SlowCopy:
    """Each copy to the device of one rank takes `extra_us` µs more."""

    rank: int
    extra_us: float
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SlowLink:
    """Transfers of the groups under this key take `factor` times as long; `ranks` picks the groups that hold them."""

    group: str
    factor: float
    ranks: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ClockShift:
    """The clock of a rank, or of all ranks of a host, is ahead by `offset_us` and gains `drift_ppm` µs a second."""

    rank: int | None = None
    offset_us: float = 0.0
    drift_ppm: float = 0.0
    host: int | None = None


@dataclass(frozen=True)
class LateWindow:
    """The profiler of one rank misses the first `launches` launches of its window.

    Their kernels, if they still run when the window opens, have neither launch record nor collective arguments.
    """

    rank: int
    launches: int


@dataclass(frozen=True)
class ShortWindow:
    """The profiler of one rank stops before the last `launches` launches of the run.

    A step annotation it stops in ends there; where the first launch of a step is lost, so is the step.
    """

    rank: int
    launches: int


Fault = SlowCompute | SlowHost | SlowInput | SlowCopy | SlowLink | ClockShift | LateWindow | ShortWindow


def in_step(fault: SlowCompute | SlowHost | SlowInput | SlowCopy | SlowLink, step: int) -> bool:
    """Whether the fault is there in this step."""
    return fault.steps is None or step in fault.steps


class StepFaults:
    """The faults of one rank in one step; what happens once a step is spent by its first use."""

    def __init__(self, faults: tuple[Fault, ...], rank: int, step: int) -> None:
        own = [f for f in faults if getattr(f, "rank", None) == rank]
        self._compute = [f for f in own if isinstance(f, SlowCompute) and in_step(f, step)]
        self._extra = [f for f in self._compute if f.extra_us]
        self._host = [f for f in own if isinstance(f, SlowHost) and in_step(f, step)]
        self.input_us = sum(f.extra_us for f in own if isinstance(f, SlowInput) and in_step(f, step))
        self.copy_us = sum(f.extra_us for f in own if isinstance(f, SlowCopy) and in_step(f, step))

    def compute_us(self, name: str, label: str, us: float) -> float:
        """How long a kernel of `us` µs takes here."""
        if not self._compute:
            return us
        extra = 0.0
        for fault in self._compute:
            if name.startswith(fault.at) or label.startswith(fault.at):
                us *= fault.factor
                if fault in self._extra:
                    extra += fault.extra_us
                    self._extra.remove(fault)
        return us + extra

    def host_ns(self, name: str, label: str) -> int:
        """ns the host loses before it launches this."""
        if not self._host:
            return 0
        hit = [f for f in self._host if name.startswith(f.at) or label.startswith(f.at)]
        self._host = [f for f in self._host if f not in hit]
        return sum(round(f.extra_us * 1000) for f in hit)


def link_factor(faults: tuple[Fault, ...], group: str, members: tuple[int, ...], step: int) -> float:
    """How much longer the transfer of one collective takes."""
    factor = 1.0
    for fault in faults:
        if isinstance(fault, SlowLink) and fault.group == group and in_step(fault, step):
            factor *= fault.factor if fault.ranks is None or set(fault.ranks) & set(members) else 1.0
    return factor
