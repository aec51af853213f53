"""What is claimed of transfer that the step waits for: typed facts, whose sentences lie in words/overlap.ini.

core_pct: percent of the steps in which ranks wait for a core, where their cores do the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from traceops.core.claims import Claim
from traceops.core.words import Role


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed transfer and step of the recorded steps, ms, where a claim is about steps without the profiler."""

    exposed: float
    step: float


class FreeTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """How much shorter the step is in a replay where the transfer is free. best: with no host late, too."""

    shorter: str
    saved: float
    best: float | None = None


class Unsized(msgspec.Struct, frozen=True, kw_only=True):
    """Collectives of unknown size: how many there are, and in which pass."""

    count: float
    in_forward: float | None = None
    in_backward: float | None = None
    after_backward: float | None = None
    after_update: float | None = None


class OneSize(msgspec.Struct, frozen=True, kw_only=True):
    """Calls for gradients, all of about one size, so that nothing separates the cost of a call from its bytes'."""

    calls: float
    size: float
    takes: float
    gbs: float
    larger: str


class OverlapClaim(Claim, frozen=True):
    family = "overlap"


class Exposed(OverlapClaim, frozen=True, kw_only=True):
    """Transfer that no computation hides. passes: backward passes of a step, in each of which gradients are reduced."""

    core_pct: float | None = None
    exposed: float
    pct: float
    step: float
    unsized: Unsized | None = None
    one_size: OneSize | None = None
    passes: int | None = None
    by_role: Mapping[Role, float] = {}
    recorded: Recorded | None = None
    free: FreeTransfer | None = None


class ManySmall(OverlapClaim, frozen=True, kw_only=True):
    """Many collectives whose time latency sets."""

    core_pct: float | None = None
    count: float
    median: float
    takes: float
    exposed: float
    pct: float
    recorded: Recorded | None = None
    free: FreeTransfer | None = None


class ManyCalls(OverlapClaim, frozen=True, kw_only=True):
    """Gradients in calls that cost more than their bytes. fixed: of a call; per_mb: on top, where it matters."""

    core_pct: float | None = None
    op: str
    calls: float
    size: float
    takes: float
    sizes: tuple[int, int]
    fixed: float
    per_mb: float | None = None
    fewest: int
    largest: int
    larger: str
    left: float
    saved: float
    recorded: Recorded | None = None


class StartsLate(OverlapClaim, frozen=True, kw_only=True):
    """Gradients that are transferred once backward is over. left: of the step where backward hides them."""

    core_pct: float | None = None
    exposed: float
    pct: float
    step: float
    late_pct: float
    collectives: float
    left: float
    left_in_time: float | None = None
    recorded: Recorded | None = None
