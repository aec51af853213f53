"""The manifest of one rank while it captures: what each window, timer and end adds, and why a schedule fell short."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from traceops.capture.environment import device_of_this_process, host, peak_memory, torch_facts, usable_cores
from traceops.capture.folder import ProcessPlace
from traceops.capture.guard import text
from traceops.capture.manifest import LightRecord, RankManifest, ScriptProfilerRecord, WindowRecord, write_rank
from traceops.capture.recorder import FIRST, KeptWindow
from traceops.capture.schedule import Phase, Schedule, StepEnds
from traceops.capture.timing import StepTimer, uses_gpu
from traceops.core.capture_failure import CaptureFailure, shorter_schedule


class OpenManifest:
    """`manifest` is what is known by now; nothing of it is in the run folder `out` before `save`."""

    def __init__(
        self, out: Path, place: ProcessPlace, schedule: Schedule, options: dict[str, bool], training: dict[str, Any]
    ) -> None:
        self.out = out
        self.manifest = RankManifest(
            rank=place.rank, local_rank=place.local_rank, world_size=place.world_size, host=host(),
            pid=os.getpid(), device=device_of_this_process(), schedule=asdict(schedule), options=options,
            training=training, facts=torch_facts(), started_ns=time.time_ns(), cores=usable_cores(),
        )  # fmt: skip

    @property
    def folder(self) -> Path:
        """The rank's own, inside the run folder."""
        return self.out / f"rank_{self.manifest.rank}"

    def add_times(self, timers: Mapping[Phase, StepTimer], steps: list[int]) -> None:
        """What the timers say, ms per step. steps: numbers of the recorded ones, in the order of the timer's."""
        timed = {phase: timer.durations() for phase, timer in timers.items()}
        before = self.manifest
        self.manifest = replace(before, step_clock="cuda_event" if uses_gpu() else "host")
        if unprofiled := timed.get(Phase.UNPROFILED):
            self.manifest = replace(
                self.manifest,
                unprofiled_step_ms=before.unprofiled_step_ms + unprofiled.step_ms,
                unprofiled_host_ms=before.unprofiled_host_ms + unprofiled.host_ms,
            )
        if profiled := timed.get(Phase.ACTIVE):
            self.manifest = replace(
                self.manifest,
                profiled_step_ms=before.profiled_step_ms + profiled.step_ms,
                profiled_host_ms=before.profiled_host_ms + profiled.host_ms,
                profiled_steps=before.profiled_steps + steps[: len(profiled.step_ms)],
            )

    def add_window(
        self, window: int, trace: str | None, steps: list[int], *, complete: bool, why: str | None = None
    ) -> None:
        """A recorded window. trace: its path relative to `out`; where there is none, nothing is added."""
        if trace is None:
            return
        kept = WindowRecord(window, trace, steps, complete, why)
        self.manifest = replace(
            self.manifest, traces=[*self.manifest.traces, trace], windows=[*self.manifest.windows, kept]
        )

    def add_first_window(self, kept: KeptWindow) -> None:
        """The window that stands for the schedule's, with its steps' durations by the host clock."""
        self.add_window(0, kept.trace, kept.steps, complete=len(kept.steps) == FIRST.active)
        self.manifest = replace(
            self.manifest,
            step_clock="host",
            profiled_step_ms=self.manifest.profiled_step_ms + kept.durations.step_ms,
            profiled_host_ms=self.manifest.profiled_host_ms + kept.durations.host_ms,
            profiled_steps=self.manifest.profiled_steps + kept.steps,
        )

    def add_adopted(self, trace: Path, steps: list[int]) -> None:
        """The trace of the script's own profiler, which is this rank's."""
        path = str(trace.relative_to(self.out))
        self.add_window(len(self.manifest.windows), path, steps, complete=True)
        self.note(f"the trace of steps {steps[0]} to {steps[-1]} is that of the script's own torch.profiler")
        self.manifest = replace(self.manifest, status="running")

    def note(self, text: str) -> None:
        """What else to know of the capture, in place of what was noted before."""
        self.manifest = replace(self.manifest, note=text)

    def remove(self) -> None:
        """Take the manifest out of the folder."""
        (self.folder / "manifest.json").unlink(missing_ok=True)

    def save(
        self, steps: int, samples: int | None, failure: CaptureFailure | None, ends: StepEnds, light: LightRecord | None
    ) -> None:
        """Bring up to date what may change at any time, and write the manifest."""
        known = {key: value for key, value in torch_facts().items() if value is not None}
        allocated, reserved = peak_memory()
        self.manifest = replace(
            self.manifest, steps=steps, samples=samples, failure=failure,
            step_ends=ends.ends, steps_within=ends.within, steps_beside=ends.beside, light=light,
            device=device_of_this_process(), facts={**self.manifest.facts, **known},
            peak_memory_bytes=allocated, peak_reserved_bytes=reserved,
        )  # fmt: skip
        write_rank(self.out, self.manifest)


def shortfall(
    schedule: Schedule, done: int, kept: Sequence[int], theirs: ScriptProfilerRecord | None, counts: str | None
) -> str:
    """Why not all was recorded, and what would help. done: steps. kept: recorded ones. theirs: a profiler of the
    script's own that was in the way, as `in_the_way` says. counts: what ends a step by itself, as `--step-on` has it;
    None where the script calls `step`."""
    if counts is not None and done == 0:
        return text("no_optimizer_step" if counts == "optimizer" else "no_forward_pass")
    steps = f"{'' if counts is None else f'{counts} '}step{'' if done == 1 else 's'}"
    only = text("only", done=done, steps=steps, needed=schedule.total_steps, schedule=schedule.explain())
    if theirs is not None and (not kept or kept[-1] < FIRST.total_steps - 1):
        held = text("one_step", step=kept[0]) if kept else text("no_step")
        return text("own_profiler", only=only, held=held, first=theirs["first"])
    if not kept or kept[-1] >= FIRST.total_steps:
        return text("train_longer", only=only)
    recorded = text("first_steps", only=only, kept=f"step{'s' if len(kept) > 1 else ''} {' and '.join(map(str, kept))}")
    shorter = shorter_schedule(asdict(schedule), done)
    better = shorter is not None and done > FIRST.total_steps
    return f"{recorded}; for later ones: {shorter.flags}" if shorter is not None and better else recorded


def in_the_way(theirs: ScriptProfilerRecord | None, done: int) -> ScriptProfilerRecord | None:
    """The script's own profiler, if it was at work in the steps that the first window would have taken."""
    return theirs if theirs is not None and theirs["first"] < FIRST.total_steps <= done else None
