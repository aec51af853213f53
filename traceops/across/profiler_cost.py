"""What the profiler cost a run's steps, as far as other reasons for longer steps leave room for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from traceops.across.machine_use import recorded_waits
from traceops.across.run_steps import WholeRun
from traceops.measure.recording import SLOWED, profiler_slowdown
from traceops.traces.observed import Observed
from traceops.traces.run_manifest import ended_cupti

_MANY = 0.2  # of the steps without the profiler


class ProfilerCost(Struct, frozen=True):
    """Profiled ÷ unprofiled step.

    ratio: as the median steps have it; None where one of them is not known, or is no measure. core_pct: the most that a
    rank waits for a core in the recorded steps, but for the step in which it waited longest. as_long_pct: of the run's
    steps without the profiler, those that take as long as the recorded ones; None of a run that was not observed, and
    where CUPTI stays in the process and slows later steps.
    """

    ratio: float | None
    core_pct: float = 0.0
    as_long_pct: float | None = None

    @property
    def least(self) -> float | None:
        """What is left of the ratio where recorded steps had never waited for a core; the others may have."""
        return None if self.ratio is None else self.ratio * (1 - self.core_pct / 100)

    @property
    def by_cores(self) -> bool:
        """Whether waiting for cores may be all that makes recorded steps longer."""
        return self.least is not None and self.ratio is not None and self.least < SLOWED <= self.ratio

    @property
    def by_chance(self) -> bool:
        """Whether many steps without the profiler take as long as the recorded ones."""
        many = self.as_long_pct is not None and self.as_long_pct >= 100 * _MANY
        return many and self.ratio is not None and self.ratio >= SLOWED

    @property
    def slowdown(self) -> float | None:
        """The ratio where it tells what the profiler costs."""
        return None if self.by_cores or self.by_chance else self.ratio


def profiler_cost(
    manifest: dict[str, Any], observed: Sequence[Observed], whole: WholeRun | None, *, on_gpu: bool
) -> ProfilerCost:
    """Of a run whose ranks were observed, or not."""
    ratio = profiler_slowdown(manifest)
    waits = recorded_waits(observed)
    stays = on_gpu and not ended_cupti(manifest)
    if ratio is None or whole is None or stays or not whole.timed.any():
        as_long = None
    else:
        as_long = 100 * float((whole.step_ms[whole.timed] >= manifest["profiled_step_ms"]).mean())
    return ProfilerCost(ratio, max((one.beside_pct for one in waits.values()), default=0.0), as_long)
