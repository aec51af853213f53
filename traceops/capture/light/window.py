"""The light windows of one rank: some steps after the schedule's windows, in which only the device is recorded.

Of hosts alike now the one is late and now the other, and a few steps do not tell. So more windows follow, each at
`SPREAD` times the step of the one before, where CUPTI was ended behind that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from traceops.capture.detaching import Detaching
from traceops.capture.guard import contained, raised_by_a_handler, text
from traceops.capture.light.sources import Activities, Cupti, Source, TorchDevice
from traceops.capture.manifest import LaterLightRecord, LightRecord
from traceops.capture.schedule import NEVER
from traceops.capture.timing import StepTimer, uses_gpu
from traceops.core.files import write_whole
from traceops.core.rank_files import LATER_LIGHT_FILES, LIGHT_FILE, LIGHT_LOG_MAGIC

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
        self._before_others = before_others
        self._detaching = detaching
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
        """Open where the first step begins, on a GPU; a profiler of the script's own that starts before has it.

        others: the last step in which one was at work, also one that only warmed up; -1 without. Behind an earlier
        window it has CUPTI again, which was ended there.
        """
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
        for source in _possible(self._sources, torch):
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
        self._queue_mark()
        if step == self._first + STEPS:
            self._close(step)

    def _queue_mark(self) -> None:
        import torch

        with _plain(torch):
            self._mark[0].copy_(self._mark[1])
        self._marks += 1

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
        file = self._file()
        if file == LIGHT_FILE:
            for later in LATER_LIGHT_FILES:  # of an earlier beginning
                (self._folder / later).unlink(missing_ok=True)
        write_whole(self._folder / file, _packed(header, found))
        self._ended(source, file=file, steps=steps, step_ms=durations)

    def _file(self) -> str:
        """Where the window that is open now is to be written."""
        if self._first == self._begun or self.record is None:
            return LIGHT_FILE
        return LATER_LIGHT_FILES[len(self.record["later"])]

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
        if whole and self.record is not None and file in LATER_LIGHT_FILES and told is not None:
            later = LaterLightRecord(file=told, steps=list(steps), step_ms=list(step_ms))
            self.record = {**self.record, "calls": calls, "later": [*self.record["later"], later]}
        else:
            self.record = LightRecord(
                source=source.name if whole and source is not None else None, why=self._why,
                file=told if whole else None, steps=list(steps), step_ms=list(step_ms), calls=calls, later=[],
            )  # fmt: skip
        if whole:
            self._follow()

    def _follow(self) -> None:
        """Have the next window, if this one left nothing behind."""
        ended = self._detaching is not None and self._detaching.done
        if self.record is None or self.record["source"] != Cupti.name or not ended:
            return
        if len(self.record["later"]) < len(LATER_LIGHT_FILES):
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


def _possible(sources: list[Source], torch: Any) -> list[Source]:
    """CUPTI is NVIDIA's."""
    return [source for source in sources if torch.version.hip is None or not isinstance(source, Cupti)]


def _packed(header: dict[str, Any], found: Activities) -> bytes:
    try:
        from isal import igzip as packer
    except ImportError:
        import gzip as packer
    text = json.dumps(header, separators=(",", ":")).encode()
    packed: bytes = packer.compress(LIGHT_LOG_MAGIC + text + b"\n" + found.rows, compresslevel=1)
    return packed
