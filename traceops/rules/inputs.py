"""What is known of a run when its rules are judged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.across.phases import Rounds
from traceops.across.plain_step import PlainStep, ProfilerCost, profiler_cost
from traceops.across.rank_times import RankTimes
from traceops.across.run_steps import WholeRun
from traceops.across.run_use import MachineUse, MemoryUse
from traceops.across.undisturbed import Undisturbed
from traceops.core.claims import reason
from traceops.core.findings import Finding
from traceops.core.rule import Verdict
from traceops.measure.summary import RankSummary
from traceops.traces.discover import Discovery
from traceops.traces.observed import Observed
from traceops.traces.source import is_remote


def why_incomplete(ranks: Iterable[RankTimes]) -> str:
    """Why these ranks cannot be judged together; empty where each trace is whole, or nearly."""
    lost = [times.summary.rank for times in ranks if times.summary.incomplete]
    return reason("reasons", "incomplete", ranks=tuple(lost)) if lost else ""


if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis


class OtherSteps(Struct, frozen=True):
    """A rank that recorded these steps and none of the other ranks', so that it is left out."""

    rank: int
    steps: tuple[int, ...]


class Inputs(Struct, frozen=True):
    """One run, measured: the judge of a family takes from it what it needs.

    hang: None where nothing was diagnosed, and `no_hang` says why. earlier: verdicts of the families before this one.
    observed, whole, machine: what ranks and launchers saw of the whole run, not only of its window (docs/observe.md).
    plain: what a step takes that is not recorded. own_ms: the one number that is told of it, ms. undisturbed: where it
    goes; None where no light window tells. memory: what the ranks held of their GPUs. other_steps: ranks that are left
    out because of theirs. rounds: of the training's loop.
    """

    found: Discovery
    run: CrossRank
    hang: Diagnosis | None = None
    no_hang: str = ""
    earlier: tuple[Verdict, ...] = ()
    observed: tuple[Observed, ...] = ()
    whole: WholeRun | None = None
    machine: tuple[MachineUse, ...] = ()
    undisturbed: Undisturbed | None = None
    memory: tuple[MemoryUse, ...] = ()
    other_steps: tuple[OtherSteps, ...] = ()
    plain: PlainStep | None = None
    own_ms: float | None = None
    rounds: Rounds | None = None

    @property
    def ranks(self) -> list[RankSummary]:
        """Each rank by itself, in order."""
        return [times.summary for times in self.run.ranks]

    @property
    def manifest(self) -> dict[str, Any]:
        """run.json; empty where there is none."""
        return self.found.manifest

    @property
    def slowdown(self) -> float | None:
        """Profiled ÷ unprofiled step, None where that is not known to be the profiler's."""
        return self.profiler_cost.slowdown

    @property
    def profiler_cost(self) -> ProfilerCost:
        """What the profiler itself cost the steps."""
        on_gpu = any(rank.on_gpu for rank in self.ranks)
        return profiler_cost(self.manifest, self.observed, self.whole, on_gpu=on_gpu)

    @property
    def unprofiled_ms(self) -> float | None:
        """What a step takes without the profiler, ms; None where none was timed.

        Nor is there one to hold against a window of which nobody knows where its steps begin.
        """
        return self.own_ms if self.run.unit == "step" else None

    @property
    def single_file(self) -> bool:
        """Whether one trace was asked about rather than a folder of them."""
        return not is_remote(self.found.root) and Path(self.found.root).is_file()

    def found_before(self, *rules: str) -> list[Finding]:
        """What rules of earlier families found. rules: their ids."""
        return [found for verdict in self.earlier if verdict.rule in rules for found in verdict.findings]
