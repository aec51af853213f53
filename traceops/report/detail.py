"""What a few ranks did in each step, as drawn by a page: not part of report.json, for the traces hold it all."""

from __future__ import annotations

from msgspec import Struct

from traceops.core.arrays import Bars
from traceops.core.words import Role


class DetailLane(Struct, frozen=True):
    """One row of a rank: `of` is 'stream' or 'thread', `lane` its number in the trace, `level` how deep in a thread.

    Moments are ns since the step's zero.
    """

    of: str
    lane: int
    level: int
    bars: Bars


class DetailTransfer(Struct, frozen=True):
    """One collective, or send and receive, on one rank; ns since the step's zero.

    From `start` to `turn` the rank waited, then came the transfer; `turn` is None where it could not be matched, so
    that nobody knows. busbw_gbs is of the transfer without the waiting. last_rank came last, None where none did.
    stage: the lane among those that overlapping ones need, counted from 0.
    """

    start: int
    turn: int | None
    end: int
    op: str
    group: str
    role: Role
    bytes: int | None
    busbw_gbs: float | None
    last_rank: int | None
    stage: int = 0


class DetailRank(Struct, frozen=True):
    """One rank in one step; begin and end of its step on the device. `unseen` transfers were too many to draw."""

    rank: int
    begin: int
    end: int
    lanes: tuple[DetailLane, ...]
    transfers: tuple[DetailTransfer, ...]
    unseen: int = 0


class DetailStep(Struct, frozen=True):
    """One step, None for a window without steps; `length_ns` from its zero to the end of the last rank shown."""

    step: int | None
    length_ns: int
    ranks: tuple[DetailRank, ...]


class Detail(Struct, frozen=True):
    """All recorded steps of the ranks shown. aligned: their clocks could be compared."""

    names: tuple[str, ...]
    steps: tuple[DetailStep, ...]
    aligned: bool = True
