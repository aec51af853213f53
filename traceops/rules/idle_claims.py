"""What is claimed of an idle device: typed facts, whose sentences lie in words/idle.ini. Times are ms of one step."""

from __future__ import annotations

import msgspec

from traceops.core.claims import Claim


class WorkersNeeded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many DataLoader workers per rank load in time: `count`, or that to `most`; else so many times as many.

    rest: the step without waiting for them. load: what one process loads the batches of a step in, where another
    process does. recording: what of the rest may be the profiler's. cores: of a rank, where they are too few.
    """

    rest: float
    load: float | None = None
    recording: float | None = None
    count: int | None = None
    most: int | None = None
    now: int | None = None
    times: float | None = None
    most_times: float | None = None
    cores: float | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A long operator or call of the host; `what` is unknown where the trace does not show it.

    count: times a step, where it is more than once. steps: of `of` steps, where it is not in all.
    """

    ms: float
    what: str | None = None
    count: float | None = None
    steps: int | None = None
    of: int | None = None


class Turns(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two ranks whose hosts are the latest: in these steps, or in the light window and the traces."""

    rank: int
    other: int
    steps: tuple[int, int] | None = None
    other_steps: tuple[int, int] | None = None


class Idles(Claim, frozen=True, kw_only=True):
    """Ranks that idle for one cause, `all_ranks` or several or one; `rank` is the worst of them.

    profiler: what of it is the profiler's, or how that is known. recorded: what the traces show. plain: the step
    without the profiler that all of it is a part of.
    """

    family = "idle"
    ranks: tuple[int, ...]
    all_ranks: bool = False
    several: bool = False
    rank: int
    ms: float
    step: float
    pct: float
    plain: float | None = None
    profiler: str = ""
    recorded: float | None = None
    recorded_step: float | None = None


class OutsideTorch(Claim, frozen=True, kw_only=True):
    """A training on the CPU: the main thread of its rank is outside torch's operators."""

    family = "idle"
    kind = "outside_torch"
    rank: int
    ms: float
    step: float
    pct: float


class HostBound(Idles, frozen=True, kw_only=True):
    """The host launches late. own: what of it the profiler cannot explain, which costs the host `cost` at most.

    held: the whole of its long operators and calls, of which `first` and `second` take longest.
    """

    own: float | None = None
    cost: float | None = None
    slowdown: float | None = None
    turns: Turns | None = None
    optimizer: str = ""
    optimizer_ms: float | None = None
    optimizer_recorded: bool = False
    held: float | None = None
    first: Held | None = None
    second: Held | None = None
    computes: float | None = None
    computes_in: str = ""


class InputBound(Idles, frozen=True, kw_only=True):
    """Ranks wait for their input. workers: what those of the worst rank's loader do, where more may not help.

    slow_rank: another rank whose loader takes as long, `slow_ms`. core_pct: of the worst rank's steps for a core.
    """

    in_time: float | None = None
    need: WorkersNeeded | None = None
    workers: str = ""
    workers_idle_pct: float | None = None
    workers_busy_pct: float | None = None
    busiest_pct: float | None = None
    seen_workers: int | None = None
    core_ms: float | None = None
    core_pct: float | None = None
    slow_rank: int | None = None
    slow_ms: float | None = None


class BlockedOnDevice(Idles, frozen=True, kw_only=True):
    """The host blocks on the device. copies_pct: after copies. reads: for NaN, by autograd. few: of `of` steps."""

    copies_pct: float | None = None
    reads: float | None = None
    reads_ms: float | None = None
    few: int | None = None
    of: int | None = None


class HiddenLoading(Claim, frozen=True, kw_only=True):
    """Loading that costs time only once the late ranks are fixed. loading: what workers need for a step's batches."""

    family = "idle"
    kind = "hidden_loading"
    ranks: tuple[int, ...]
    late: tuple[int, ...]
    ms: float
    step: float
    pct: float
    rank: int
    loading: float | None = None
    rest: float | None = None
    need: WorkersNeeded | None = None
