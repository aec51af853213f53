"""What is claimed of steps that take far longer than the typical one; the sentences lie in words/steps.ini."""

from __future__ import annotations

from traceops.core.claims import Claim


class LongSteps(Claim, frozen=True, kw_only=True):
    """Steps unlike the others. took: of the only one, else they take `least` to `most`; times in ms.

    does: why, on these ranks. place: what the host is in for `longer` more. another: an optimizer that runs in some
    steps only, which leaves `left_pct` unexplained. share: percent of the run, where such steps come again.
    """

    family = "steps"
    kind = "long_steps"
    steps: tuple[int, ...]
    took: float | None = None
    least: float | None = None
    most: float | None = None
    typical: float
    waits_for_core: int | None = None
    does: str | None = None
    ranks: tuple[int, ...] = ()
    all_ranks: bool = False
    place: str | None = None
    longer: float | None = None
    longer_at_most: float | None = None
    another: str | None = None
    another_in: int | None = None
    another_of: int | None = None
    left_pct: float | None = None
    once: bool = False
    timed: int
    unlike: int
    share: float | None = None
