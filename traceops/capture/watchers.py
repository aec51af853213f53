"""What a capture watches beside its windows: every step and the host, the memory, and the device alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from traceops.capture.after_import import when_loaded
from traceops.capture.detaching import Detaching
from traceops.capture.guard import Guard, contained, describe, raised_by_a_handler
from traceops.capture.light.window import AFTER, LightWindow
from traceops.capture.manifest import MemoryRecord, ObservedRecord
from traceops.capture.observing.memory import MemoryWatch
from traceops.capture.observing.observer import Observer
from traceops.capture.open_manifest import OpenManifest
from traceops.capture.recorder import before_other_profilers
from traceops.capture.schedule import NEVER, Schedule
from traceops.capture.settings import CaptureSettings
from traceops.capture.short_way.ways import LongWay, short_way
from traceops.core.live_pulses import PULSES_FILE
from traceops.core.rank_files import LATER_LIGHT_FILES, LIGHT_FILE, LOADER_GLOB, OBSERVED_FILE, STEPS_FILE

_FIRST_SNAPSHOT = 16  # steps


class Watchers:
    """Those that the settings ask for, from `begin` on; None where not, or where one could not begin."""

    def __init__(
        self,
        record: OpenManifest,
        settings: CaptureSettings,
        detaching: Detaching | None = None,
        way: LongWay | None = None,
    ) -> None:
        self._record, self._settings, self._detaching = record, settings, detaching
        self._way = short_way() if way is None else way
        self.observer: Observer | None = None
        self.light: LightWindow | None = None
        self.memory: MemoryWatch | None = None

    def begin(self, schedule: Schedule, guard: Guard, scope: ExitStack) -> None:
        """Watch from now on; what `scope` ends, ends with it."""
        if self._settings.observe or self._settings.with_memory:
            # Save what the allocator holds when memory runs out.
            way, history = self._way, self._settings.with_memory
            watch = self.memory = MemoryWatch(self._record.folder, history=history, steps=lambda: way.step)
            undo: list[Callable[[], Any]] = [watch.close]
            scope.callback(lambda: [contained(one) for one in undo])
            contained(when_loaded, {"torch.cuda": watch.install}, guard, undo)
        if self._settings.observe:
            # Watch the steps and the host. If that cannot begin, nothing else changes.
            scope.callback(self.end_observing)
            try:
                rank = self._record.manifest.rank
                self.observer = Observer(self._record.folder, rank, way=self._way, live=self._settings.live)
            except Exception as error:
                if raised_by_a_handler(error):
                    raise
                seen = ObservedRecord(samples=0, late=False, trouble=describe(error)[:200])
                self._record.manifest = replace(self._record.manifest, observed=seen)
        if self._settings.light:
            first = schedule.total_steps + AFTER
            rank = self._record.manifest.rank
            self.light = LightWindow(
                self._record.folder, rank, first, before_other_profilers, detaching=self._detaching
            )
            scope.callback(self.light.close)

    def steps_done(self, steps: int) -> None:
        """So many steps are done. A recorded memory is saved at 16, 32, 64, …: what grows shows in the last of them."""
        if self.memory is not None and self._settings.with_memory and self.saves_at(steps - 1) == steps:
            self.memory.save()

    def saves_at(self, steps: int) -> int:
        """The first number of steps beyond `steps` at which a recorded memory is saved."""
        if self.memory is None or not self._settings.with_memory:
            return NEVER
        return max(_FIRST_SNAPSHOT, 1 << max(steps, 0).bit_length())

    def window_ends(self, step: int, schedule: Schedule) -> None:
        """Keep what the memory holds at the end of this step, the last of a window."""
        if self.memory is None:
            return
        if (held := self.memory.held()) is not None:
            told = cast(MemoryRecord, {"step": step, **held})
            self._record.manifest = replace(self._record.manifest, memory=told)
        later = getattr(schedule, "later", ())
        if self._settings.with_memory or any(one.with_memory and one.end == step + 1 for one in later):
            self.memory.save()

    def training_fails(self) -> None:
        """Save the memory for a rank that ran out of it, where this one recorded its own."""
        if self.memory is not None and self._settings.with_memory:
            self.memory.save_beside_others()

    def end_observing(self) -> None:
        """Close the observer; what it saw is kept."""
        if (observer := self.observer) is None:
            return
        if contained(observer.close) is None:
            contained(observer.close)  # what failed in the middle
        self.observer = None
        seen = ObservedRecord(samples=observer.samples, late=observer.late, trouble=observer.trouble)
        self._record.manifest = replace(self._record.manifest, observed=seen)

    def remove_files(self) -> None:
        """Take away what was written: another capture has the folder from now on."""
        for name in (STEPS_FILE, OBSERVED_FILE, PULSES_FILE, LIGHT_FILE, *LATER_LIGHT_FILES, LOADER_GLOB):
            for path in self._record.folder.glob(name):
                path.unlink(missing_ok=True)
