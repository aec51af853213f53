"""The light windows of one rank: some steps after the schedule's windows, in which only the device is recorded.

Of hosts alike now the one is late and now the other, and a few steps do not tell. So more windows follow, each at
`SPREAD` times the step of the one before, where CUPTI was ended behind that.

What records is CUPTI itself, through the libcupti that torch has loaded, or torch's profiler where CUPTI is not
available. It gives way to everything else: it does not begin where another tool holds CUPTI, or torch's profiler is at
work or might be started from outside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from traceops.capture.detaching import VARIABLE, Detaching, other_tool
from traceops.capture.guard import contained, raised_by_a_handler, text
from traceops.capture.manifest import LaterLightRecord, LightRecord
from traceops.capture.schedule import NEVER
from traceops.capture.timing import StepTimer, uses_gpu
from traceops.capture.trace_file import packer
from traceops.core import rank_files
from traceops.core.files import write_whole


@dataclass(frozen=True)
class Activities:
    """What the device did, `ROW`s of `core/rank_files.py`. discarded: activities that are missing. clocks: before and
    after, where the times are not Unix ns."""

    rows: bytes
    names: tuple[str, ...]
    discarded: int = 0
    clocks: tuple[tuple[int, ...], ...] = ()


class Source(Protocol):
    """Started where a step begins, stopped where one ends and the device is idle. Each may raise: then `abandon`."""

    name: str

    def start(self) -> str | None:
        """Record; what is in the way, None where nothing is."""

    def stop(self) -> Activities | str:
        """What was recorded, or why there is nothing. Afterwards nothing is on any more."""

    def abandon(self) -> None:
        """Stop, whatever state it is in, and keep nothing."""


_BUFFER_BYTES = 4 << 20  # as torch's own
_MOST_BUFFERS = 64  # 1.2 million kernels
_MAPS = Path("/proc/self/maps")


class Cupti:
    """One window. calls: what CUPTI returned for each call, in order. detaching: ends CUPTI in `stop`."""

    name = "cupti"

    def __init__(self, library: str | None = None, *, detaching: Detaching | None = None) -> None:
        self._library, self._detaching = library, detaching
        self._native: ModuleType | None = None
        self._began: tuple[int, ...] = ()
        self.calls: list[tuple[str, int, int]] = []

    def start(self) -> str | None:
        """Enable the three kinds; what is in the way, None where nothing is."""
        if (other := other_tool()) is not None:
            return other
        if os.environ.get(VARIABLE) == "1":
            return text("cupti_taken", variable=VARIABLE)
        try:
            from traceops.capture.light import _cupti as native
        except ImportError:
            return text("not_compiled")
        library = self._library or loaded_library()
        if library is None:
            return text("no_libcupti")
        records, self.calls = native.start(library, _BUFFER_BYTES, _MOST_BUFFERS)
        if not records:
            name, argument, result = self.calls[-1] if self.calls else ("start", 0, -1)
            failed = next(((n, a, r) for n, a, r in self.calls if r != 0), (name, argument, result))
            return f"CUPTI refuses: {failed[0]}({failed[1]}) gave {failed[2]}"
        self._native = native
        self._began = native.clocks()
        if self._detaching is not None:
            self._detaching.attached()
        return None

    def stop(self) -> Activities | str:
        """What was recorded."""
        native, self._native = self._native, None
        if native is None:
            return text("did_not_record")
        ended = native.clocks()
        self.calls = [*self.calls, *native.stop()]
        rows, names, incomplete, discarded = native.take()
        failed = [(name, result) for name, _, result in self.calls if result != 0]
        if self._detaching is not None:
            self._end(native, self._detaching, failed=bool(failed))  # the names of kernels are gone with it
        if failed:
            return f"CUPTI failed: {failed[0][0]} gave {failed[0][1]}"
        if not rows:
            return text("no_records", incomplete=incomplete)
        return Activities(rows, tuple(names), incomplete + discarded, (self._began, ended))

    def _end(self, native: ModuleType, detaching: Detaching, *, failed: bool) -> None:
        """End CUPTI in this process, unless something speaks against it."""
        why_not = "CUPTI failed" if failed else detaching.in_the_way()
        if why_not is None:
            calls = native.detach()
            self.calls = [*self.calls, *calls]
            why_not = next((f"{name} gave {result}" for name, _, result in calls if result != 0), None)
        detaching.ended(why_not)

    def abandon(self) -> None:
        """Disable what was enabled; the records go."""
        native, self._native = self._native, None
        if native is not None:
            self.calls = [*self.calls, *native.stop()]
            native.take()


def loaded_library(maps: Iterable[str] | None = None) -> str | None:
    """The one libcupti of this process; None where there is none, or where it cannot be told which is torch's."""
    try:
        lines = _MAPS.read_text(errors="surrogateescape").splitlines() if maps is None else maps
    except OSError:
        return None
    paths = {line.split(None, 5)[5] for line in lines if "libcupti.so" in line and len(line.split(None, 5)) == 6}
    return paths.pop() if len(paths) == 1 else None


_COPIES = (("memcpy", rank_files.MEMCPY), ("memset", rank_files.MEMSET))
_MOST_NAMES = 1 << 16


class TorchDevice:
    """One window. detaching: ends CUPTI in `stop`."""

    name = "torch"

    def __init__(self, detaching: Detaching | None = None) -> None:
        self._session: Any = None
        self._detaching = detaching

    def start(self) -> str | None:
        """Start torch's profiler; what is in the way, None where nothing is."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():
            return text("other_profiler")
        session = profile(activities=[ProfilerActivity.CUDA])
        self._session = session
        session.start()
        if self._detaching is not None:
            self._detaching.attached()
        return None

    @property
    def own(self) -> Any:
        """The session that is ours, None where none runs."""
        return None if self._session is None else self._session.profiler

    def stop(self) -> Activities | str:
        """What was recorded."""
        session, self._session = self._session, None
        if session is None:
            return text("did_not_record")
        with nullcontext() if self._detaching is None else self._detaching.around_stop():
            session.stop()
        return activities_of(session.profiler.kineto_results.events())

    def abandon(self) -> None:
        """Stop; the records go."""
        session, self._session = self._session, None
        if session is not None:
            contained(session.stop)


def activities_of(events: Any) -> Activities | str:
    """Of kineto's events, those that ran on a device."""
    numbers: dict[str, int] = {}
    rows = []
    for event in events:
        if "CUDA" not in str(event.device_type()) or event.is_user_annotation():
            continue
        name = event.name()
        kind = next((kind for word, kind in _COPIES if name.lower().startswith(word)), rank_files.KERNEL)
        number = rank_files.NO_NAME
        if kind == rank_files.KERNEL and (name in numbers or len(numbers) < _MOST_NAMES):
            number = numbers.setdefault(name, len(numbers))
        begin = event.start_ns()
        rows.append(
            rank_files.ROW.pack(
                begin, begin + event.duration_ns(), event.nbytes() if kind != rank_files.KERNEL else 0, number,
                event.device_resource_id() & 0xFFFFFFFF, event.correlation_id() & 0xFFFFFFFF,
                kind, 0, event.device_index() & 0xFF, 0,
            )
        )  # fmt: skip
    return Activities(b"".join(rows), tuple(numbers)) if rows else text("nothing_on_device")


AFTER = 2  # steps after the last recorded one: writing its trace has driven the ranks apart
STEPS = 6  # measured; the one before them, in which recording begins, is not
SPREAD = 8  # times the step in which a window begins: there the next one does
NEEDED = AFTER + 1 + STEPS  # steps that a training has to have behind its schedule
# Of a copy within the device that nobody else makes: it marks where a step ends there. 4 kB and a prime number.
_MARK_BYTES = 4096 + 1009
BeforeOthers = Callable[[Any, Callable[[], None]], AbstractContextManager[None]]


class LightWindow:
    """Told where steps begin and end. Its errors end it alone, and `record` says what became of it.

    first: step in which it begins. before_others: calls back just before any profiler but the given one starts.
    detaching: ends CUPTI behind it. It may begin anew behind a later window of the schedule (`again`); `record` is of
    the latest beginning that recorded something, and of the windows that followed it.
    """

    def __init__(
        self, folder: Path, rank: int, first: int, before_others: BeforeOthers, *, detaching: Detaching | None = None
    ) -> None:
        self._folder = folder
        self._rank, self._first = rank, first
        self._before_others, self._detaching = before_others, detaching
        self._again: int | None = None
        self._begun = first  # where the first of these windows began
        # From this step on no profiler of the script's own may have been at work.
        self._free_from = first - AFTER
        self._scope = ExitStack()
        self.record: LightRecord | None = None
        self._prepare()

    def _prepare(self) -> None:
        self._sources: list[Source] = [Cupti(detaching=self._detaching), TorchDevice(self._detaching)]
        self._source: Source | None = None
        self._timer: StepTimer | None = None
        self._mark: Any = None
        self._marks = 0
        self._why: dict[str, str] = {}
        self._done = False

    @property
    def is_open(self) -> bool:
        return self._source is not None

    def idle_until(self, step: int) -> int:
        """The first step from `step` on whose begin or end it has to hear of."""
        if self.is_open:
            return step
        ahead = [first for first in (None if self._done else self._first, self._again) if first is not None]
        due = [first for first in ahead if first >= step]
        return max(step, min(due) - AFTER) if due else NEVER

    def again(self, window_end: int) -> None:
        """Have another one behind the window that ends before this step."""
        self._again = window_end + AFTER

    def step_begins(self, step: int, others: int = -1) -> None:
        """Open where the first step begins, on a GPU; a profiler of the script's own that starts before has it. others:
        the last step in which one was at work, also one that only warmed up; -1 without. Behind an earlier window it
        has CUPTI again, which was ended there."""
        if self._again is not None and not self.is_open and step >= self._again - AFTER:
            contained(self._scope.close)
            self._begun = self._first = self._again
            self._again, self._free_from = None, self._first - AFTER
            self._prepare()
        if self._done or step not in (self._first - AFTER, self._first) or not uses_gpu():
            return
        if others >= self._free_from:
            self._ended(None, text("script_profiles"))
            return
        self._guarded(self._open if step == self._first else self._watch)

    def step_ended(self, step: int) -> bool:
        """Mark the end of a step; the last one closes it. True where something was written just now."""
        if self._source is None:
            return False
        self._guarded(self._step, step)
        return self._source is None

    def give_way(self, why: str) -> None:
        """End now: something else has the better claim. Nothing is kept. why: a key of words/capture.ini."""
        source, self._source = self._source, None
        contained(self._scope.close)
        if source is not None:
            contained(source.abandon)
            self._ended(None, text(why))

    def close(self) -> None:
        """The capture ends, and with it a window that is open."""
        if self.is_open and self._detaching is not None:
            self._detaching.none_follow()
        self.give_way("capture_ended")

    def _guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:
            source, self._source = self._source, None
            if source is not None:
                contained(source.abandon)
            self._ended(None, f"{type(error).__name__}: {error}"[:200])
            if raised_by_a_handler(error):
                raise

    def _watch(self) -> None:
        """A profiler that is being prepared is at CUPTI already, and nothing else tells of it."""
        self._scope.enter_context(self._before_others(None, self._other_profiler))

    def _open(self) -> None:
        import torch

        self._scope.close()
        if torch._C._autograd._profiler_enabled():
            self._ended(None, text("script_profiles"))
            return
        if torch.cuda.is_current_stream_capturing():
            self._ended(None, text("graph_at_end"))
            return
        for source in self._sources:
            if torch.version.hip is not None and isinstance(source, Cupti):
                continue  # CUPTI is NVIDIA's
            try:
                why = source.start()
            except Exception as error:
                if raised_by_a_handler(error):
                    raise
                contained(source.abandon)
                why = f"{type(error).__name__}: {error}"[:200]
            if why is None:
                self._source = source
                break
            self._why[source.name] = why
        if self._source is None:
            self._ended(None)
            return
        own = getattr(self._source, "own", None)
        self._scope.enter_context(self._before_others(own, self._other_profiler))
        with _plain(torch):
            self._mark = torch.empty(2, _MARK_BYTES, dtype=torch.uint8, device="cuda")

    def _step(self, step: int) -> None:
        import torch

        if torch.cuda.is_current_stream_capturing():  # waiting for the device would break the capture
            self.give_way("graph_at_end")
            return
        if self._timer is None:
            self._timer = StepTimer()
        else:
            self._timer.mark()
        with _plain(torch):
            self._mark[0].copy_(self._mark[1])
        self._marks += 1
        if step == self._first + STEPS:
            self._close(step)

    def _close(self, step: int) -> None:
        import torch

        torch.cuda.synchronize()
        source = self._source
        assert source is not None and self._timer is not None
        found = source.stop()
        self._source = None
        if isinstance(found, str):
            self._ended(source, found)
            return
        durations = self._timer.durations().step_ms
        steps = list(range(step - len(durations) + 1, step + 1))
        marks = _MARK_BYTES if self._marks == len(durations) + 1 else 0
        header = {
            "rank": self._rank, "source": source.name, "steps": steps, "step_ms": durations, "mark_bytes": marks,
            "clocks": found.clocks, "names": found.names, "discarded": found.discarded,
        }  # fmt: skip
        file = rank_files.LIGHT_FILE
        if self._first != self._begun and self.record is not None:
            file = rank_files.LATER_LIGHT_FILES[len(self.record["later"])]
        else:
            for later in rank_files.LATER_LIGHT_FILES:  # of an earlier beginning
                (self._folder / later).unlink(missing_ok=True)
        text = json.dumps(header, separators=(",", ":")).encode()
        packed: bytes = packer().compress(rank_files.LIGHT_LOG_MAGIC + text + b"\n" + found.rows, compresslevel=1)
        write_whole(self._folder / file, packed)
        self._ended(source, file=file, steps=steps, step_ms=durations)

    def _other_profiler(self) -> None:
        if self._source is None:
            self._ended(None, text("script_profiles"))
        else:
            self.give_way("script_profiles")

    def _ended(
        self,
        source: Source | None,
        why: str | None = None,
        *,
        file: str | None = None,
        steps: Sequence[int] = (),
        step_ms: Sequence[float] = (),
    ) -> None:
        """Let go of everything. file, steps, step_ms: what was recorded. why: nothing, by a source that had begun."""
        self._done = True
        self._mark = self._timer = None
        contained(self._scope.close)
        if why is not None:
            self._why["window" if source is None else source.name] = why
        calls = [list(call) for one in self._sources for call in getattr(one, "calls", [])]
        self._sources = []
        whole = bool(steps) and source is not None and file is not None
        if not whole and self.record is not None and self.record["file"] is not None:
            return  # that of an earlier one is there still
        told = None if file is None else f"{self._folder.name}/{file}"
        if whole and self.record is not None and file in rank_files.LATER_LIGHT_FILES and told is not None:
            later = LaterLightRecord(file=told, steps=list(steps), step_ms=list(step_ms))
            self.record = {**self.record, "calls": calls, "later": [*self.record["later"], later]}
        else:
            self.record = LightRecord(
                source=source.name if whole and source is not None else None, why=self._why,
                file=told if whole else None, steps=list(steps), step_ms=list(step_ms), calls=calls, later=[],
            )  # fmt: skip
        if whole:
            self._follow(self.record)

    def _follow(self, record: LightRecord) -> None:
        """Have the next window, if this one left nothing behind."""
        ended = self._detaching is not None and self._detaching.done
        if record["source"] == Cupti.name and ended and len(record["later"]) < len(rank_files.LATER_LIGHT_FILES):
            self._free_from = self._first + STEPS + 1
            self._first *= SPREAD
            self._prepare()
            # torch's would be none of the same kind, and would leave CUPTI behind.
            self._sources = [one for one in self._sources if isinstance(one, Cupti)]


@contextmanager
def _plain(torch: Any) -> Iterator[None]:
    """Inside the block torch computes as if the script had changed nothing about it."""
    from torch.utils._python_dispatch import _disable_current_modes

    with torch.no_grad(), _disable_current_modes():
        yield
