"""What is claimed of the whole run and its machine, with the bounds; the sentences are in words/whole_run.ini."""

from __future__ import annotations

from msgspec import Struct

from traceops.core.claims import Claim
from traceops.core.rule import Bounds


class WholeRunBounds(Bounds, frozen=True):
    """Percent of the run, of a rank's time or of the step, as words/whole_run.ini says."""

    words = "whole_run"

    phases_pct: tuple[float, float] = (10.0, 50.0)
    unlike_pct: tuple[float, float] = (1.0, 10.0)
    waste_pct: float = 30.0
    spread_pct: float = 3.0
    longer_pct: tuple[float, float, float] = (5.0, 10.0, 30.0)
    core_pct: float = 25.0
    taken_pct: float = 10.0
    clock: float = 0.93
    stranger_pct: float = 10.0


BOUNDS = WholeRunBounds()


class RunClaim(Claim, frozen=True):
    family = "whole_run"


class PartOfRun(RunClaim, frozen=True, kw_only=True):
    """What steps unlike the others do, percent of the run. ranks: where not all do. placed: how much is in `place`.
    more, typical: ms, beyond the typical step and of it. compiled: the function, and `why` torch compiled it again."""

    cause: str
    pct: float
    ranks: tuple[int, ...] = ()
    place: str | None = None
    placed: str | None = None
    times: int
    steps: int
    more: float
    typical: float
    compiled: str | None = None
    why: str | None = None


class PartOfRank(RunClaim, frozen=True, kw_only=True):
    """What takes a part of one rank's time, in `count` of `steps` steps; `spent` ms in all where torch measured it."""

    cause: str
    pct: float
    rank: int
    count: int
    steps: int
    spent: float | None = None
    last: int | None = None
    compiled: str | None = None
    why: str | None = None


class Waiting(Struct, frozen=True, kw_only=True):
    """Other ranks wait for this one, which wants a core. Times in ms, of a recorded step; saved: at most."""

    rank: int
    step: float
    saved: float


class OtherProcess(RunClaim, frozen=True, kw_only=True):
    """Another process on a rank's GPU. memory: bytes. busy: percent of the time. queued: of `step` ms in which kernels
    of the rank wait and nothing of it runs."""

    rank: int
    pid: int
    memory: int | None = None
    busy: float | None = None
    queued: float | None = None
    step: float | None = None


class SlowClock(RunClaim, frozen=True, kw_only=True):
    """A GPU whose clock is lower than the others', MHz. reason: power_cap or too_hot, where that is known."""

    kind = "gpu_clock"
    rank: int
    mhz: float
    most: float | None = None
    others: float
    reason: str | None = None


class WaitsForCore(RunClaim, frozen=True, kw_only=True):
    """A rank's main thread waits for a core, percent of the time. crowded: of that in which it wants one."""

    rank: int
    pct: float
    every: bool = False
    crowded: float | None = None
    others: float | None = None
    processes: tuple[str, ...] = ()
    late: Waiting | None = None


class CoresTaken(RunClaim, frozen=True, kw_only=True):
    """A quota or a hypervisor takes CPU time, percent of what is wanted."""

    ranks: tuple[int, ...]
    cause: str
    pct: float
    late: Waiting | None = None


class WaitsInRecorded(RunClaim, frozen=True, kw_only=True):
    """A main thread waits for a core in recorded steps, percent of them. ranks: all that do, where several. whole:
    percent of the whole run. on_cpu: no rank has a GPU."""

    rank: int
    pct: float
    ranks: tuple[int, ...] = ()
    whole: float | None = None
    on_cpu: bool = False


class LateForCore(RunClaim, frozen=True, kw_only=True):
    """A rank that is late because it waits for a core, `waited` ms of each recorded step more than the others."""

    rank: int
    waited: float
    late: Waiting


class HostLonger(RunClaim, frozen=True, kw_only=True):
    """A rank's host is longer in a function, ms per step. others: the median other rank, None for none. most: of a
    step, that the fix saves, where that is clearly less than the difference."""

    rank: int
    ms: float
    place: str
    others: float | None = None
    most: float | None = None


class HostSpends(RunClaim, frozen=True, kw_only=True):
    """Where a rank's host is outside of the recorded steps, ms per step; typical: how long these steps are."""

    rank: int
    ms: float
    place: str
    also: float | None = None
    also_place: str | None = None
    typical: float | None = None


class WorkersIn(RunClaim, frozen=True, kw_only=True):
    """Where the workers of a rank's loader are, percent of what they do. busy: percent of the time, on average."""

    rank: int
    pct: float
    place: str
    busy: float | None = None


class OwnWork(RunClaim, frozen=True, kw_only=True):
    """What a rank's process does besides the program, ms per step more than the median other rank."""

    rank: int
    ms: float
    cause: str


class PlainStep(RunClaim, frozen=True, kw_only=True):
    """What the other ranks' pace leaves of a step without the profiler, ms."""

    then: float
    step: float
    pct: float


class InFunction(RunClaim, frozen=True, kw_only=True):
    """The function that a rank's host is in by its trace's stacks, ms per step, or of the late steps (`sometimes`).
    others: on the median other rank; under: what it is less than. idle: ms in which the GPU has nothing to run."""

    rank: int
    place: str
    ms: float
    sometimes: bool = False
    others: float | None = None
    under: float | None = None
    idle: float | None = None


class IdleIn(RunClaim, frozen=True, kw_only=True):
    """The function that a rank's host is in while its GPU is idle for `bucket`, `ms` of `of` ms."""

    rank: int
    place: str
    ms: float
    of: float
    bucket: str
