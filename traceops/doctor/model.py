"""The nouns of the doctor: what was looked at, what was tried, what it measured and what it advises."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from traceops.core.findings import Check, Finding
from traceops.doctor.job import FailureCause
from traceops.fabric.model import Machine, Measured, Reference
from traceops.fabric.nccl import Benchmark, Inspector, NcclLog
from traceops.machine.look import Look

Outcome = Literal["ok", "wrong", "failed", "hung", "not_evaluated"]
BAD: tuple[Outcome, ...] = ("wrong", "failed", "hung")


class PairState(Struct, frozen=True):
    """What became of two devices' test; ``not_evaluated`` where it was not begun, or one waited for the other."""

    gpus: tuple[int, int]
    outcome: Outcome


class Trial(Struct, frozen=True):
    """One test in child processes with a deadline.

    name: ``start``, ``all_reduce``, ``pair 0-1``, ``ddp_step``, ``sweep``. gpus: the devices that took part (ranks, on
    the CPU). set and unset: variables changed for it against the environment as it is. seconds: until it ended or was
    ended. deadline_s: what it was allowed. said: what it said of its failure, from its output. measured: bandwidths it
    gave. transports: ways NCCL says it took (``P2P/CUMEM``, ``SHM``, ``NET/Socket``). pairs: of a test of pairs, what
    became of each two of `gpus`. hosts: where it ran, of a checkup of several nodes; `gpus` of a trial over several are
    ranks. cause: where no setting can help. failed: those of `gpus` that failed of themselves, and not because another
    one was gone."""

    name: str
    outcome: Outcome
    gpus: tuple[int, ...]
    seconds: float
    deadline_s: float
    message: str = ""
    said: tuple[str, ...] = ()
    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()
    transports: tuple[str, ...] = ()
    pairs: tuple[PairState, ...] = ()
    hosts: tuple[str, ...] = ()
    failed: tuple[int, ...] = ()
    cause: FailureCause | None = None

    @property
    def as_it_is(self) -> bool:
        """Whether it ran without any change to the environment."""
        return not self.set and not self.unset


class EnvironmentChange(Struct, frozen=True):
    """Variables to set and to remove, what that does and what it costs, in words."""

    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    does: str = ""
    costs: str = ""

    @property
    def size(self) -> int:
        """Variables touched: the smallest change that works is the one to take."""
        return len(self.set) + len(self.unset)


class Remedy(Struct, frozen=True):
    """A change that was tried and worked, with the largest all-reduce's bus bandwidth with and without it, GB/s.
    before_gbs: None where nothing worked before."""

    change: EnvironmentChange
    after_gbs: float | None
    before_gbs: float | None


class Checkup(Struct, frozen=True):
    """Everything the doctor found: what each renderer draws from and doctor.json holds.

    backend: ``nccl``, ``gloo``. settings: the change to use, None where none is needed or none worked. fallback: one
    GPU with gradient accumulation, where no multi-GPU setting works: ranks to stand in for. log: what NCCL said with
    the environment as it is, or in files that others saved. benchmarks: what nccl-tests measured, and inspector: what
    NCCL Inspector wrote, in files that others saved."""

    hosts: tuple[str, ...]
    backend: str
    started_at: float
    seconds: float
    machines: tuple[Machine, ...]
    looks: tuple[Look, ...]
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    measured: tuple[Measured, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    settings: Remedy | None = None
    fallback: int | None = None
    references: tuple[Reference, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    log: NcclLog | None = None
    benchmarks: tuple[Benchmark, ...] = ()
    inspector: Inspector | None = None
