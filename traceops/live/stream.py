"""What the ranks of a run have written since the last look: steps, pulses, and samples of their hosts."""

from __future__ import annotations

import json
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from traceops.core.live_pulses import PULSES_FILE, Pulse, StackKinds, read_pulses
from traceops.core.rank_files import MAGIC, OBSERVED_FILE, RECORD, RECORDED, STEPS_FILE

_MOST_BYTES = 1 << 18  # of a log in one look: what a rank that was started long before us wrote comes in pieces
_MOST_PULSES = 64
_MOST_BEHIND = 2_000  # steps that a look takes in one by one, where there are many more
_MOST_SAMPLES = 20_000  # of a rank's host that are kept: hours
_PIECE = 1 << 18  # bytes of what was seen of a host that are read at once
_CLOSE_US, _ENOUGH = 60_000, 40  # what a close look stands for at most; so many count without the others


class Step(Struct, frozen=True):
    """One that has ended. number: from 0; us: of the host's clock, without what the capture took behind it."""

    number: int
    us: int
    gc_us: int = 0
    compile_us: int = 0
    recorded: bool = False


class RankLook(Struct, frozen=True):
    """What one rank has written since the last look. started_ns: Unix time at which its steps begin. skipped: steps
    of long ago, which a monitor that starts late does not take in one by one, and their µs."""

    rank: int
    steps: list[Step]
    pulses: list[Pulse]
    started_ns: int
    anew: bool = False  # it is another process than before
    skipped: tuple[int, int] = (0, 0)


class RankReader:
    """Follows the files of one rank, whose folder may not have them yet, or has them anew after a restart."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self._steps, self._pulses = folder / STEPS_FILE, folder / PULSES_FILE
        self._at = self._number = 0
        self._pulse = -1
        self._started_ns = 0
        self._inode = 0

    def look(self) -> RankLook | None:
        """None where the rank has not written anything yet."""
        anew = self._is_anew()
        if not self._at and not self._begin():
            return None
        skipped = self._skip()
        steps = self._new_steps()
        if pulses := read_pulses(self._pulses, self._pulse, _MOST_PULSES):
            self._pulse = pulses[-1].number
        return RankLook(self.rank, steps, pulses, self._started_ns, anew, skipped)

    def _is_anew(self) -> bool:
        """Whether the log was written from its start again."""
        if not self._at:
            return False
        try:
            status = self._steps.stat()
        except OSError:
            return False
        if status.st_size >= self._at:
            return False
        self._at, self._number, self._pulse = 0, 0, -1
        return True

    def _begin(self) -> bool:
        try:
            with self._steps.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    return False
                line = file.readline(4096)
                told = json.loads(line)
                self._at = file.tell()
        except (OSError, ValueError):
            return False
        self._number, self._started_ns = int(told.get("first", 0)), int(told.get("started_ns", 0))
        return True

    def _skip(self) -> tuple[int, int]:
        """Pass over what was written long before this look; how many steps that are, and their µs."""
        try:
            count = (self._steps.stat().st_size - self._at) // RECORD.size - _MOST_BEHIND
            if count < _MOST_BEHIND:
                return 0, 0
            with self._steps.open("rb", buffering=0) as file:
                file.seek(self._at)
                words = array("I", file.read(count * RECORD.size))
        except OSError:
            return 0, 0
        if sys.byteorder == "big":
            words.byteswap()
        self._at += count * RECORD.size
        self._number += count
        return count, sum(words[:: RECORD.size // words.itemsize])

    def _new_steps(self) -> list[Step]:
        try:
            with self._steps.open("rb", buffering=0) as file:
                file.seek(self._at)
                raw = file.read(_MOST_BYTES)
        except OSError:
            return []
        raw = raw[: len(raw) // RECORD.size * RECORD.size]
        self._at += len(raw)
        first, self._number = self._number, self._number + len(raw) // RECORD.size
        return [
            Step(first + at, host, gc, compiled, bool(flags & RECORDED))
            for at, (host, _, gc, compiled, *_, flags) in enumerate(RECORD.iter_unpack(raw))
        ]


def rank_folders(out: Path) -> dict[int, Path]:
    """The folders of the ranks that a run has so far."""
    found = ((path.name.removeprefix("rank_"), path) for path in out.glob("rank_*"))
    return {int(number): path for number, path in found if number.isdigit()}


class LineTime(Struct, frozen=True):
    """A line of the program, and by how many ms per step its rank's main thread was seen longer on it, or in what it
    calls, than before: `before_ms`. input: it waits there for the next batch. kind: of `core/live_pulses.py`, what it
    mostly does there; surprise: how little chance explains that it was seen there more often (a log likelihood)."""

    file: str
    line: int
    function: str
    text: str
    ms: float
    before_ms: float = 0.0
    input: bool = False
    kind: str = "own"
    surprise: float = 0.0


class LineReader:
    """Follows what one rank's observer saw of its host, by line of the program."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OBSERVED_FILE
        self._at = 0
        self._frames: list[list[Any]] = []
        self._kinds = StackKinds()
        self._stacks: list[tuple[int, str]] = []  # the frame that stands for each, and its kind
        self._input: set[int] = set()  # frames that stand for stacks in a loader
        self._samples = array("I")  # step, stack, µs of each

    def read(self) -> None:
        """Take in what is new."""
        with suppress(OSError), self._path.open("rb", buffering=0) as file:
            file.seek(self._at)
            rest = b""
            while raw := file.read(_PIECE):
                lines, newline, rest = (rest + raw).rpartition(b"\n")
                self._at += len(lines) + len(newline)
                for line in lines.splitlines():
                    with suppress(ValueError, LookupError, TypeError, AttributeError, OverflowError):
                        self._take(json.loads(line))  # damage costs this line only

    def _take(self, line: list[Any]) -> None:
        if line[0] == "f":
            self._frames.append(line[1:])
        elif line[0] == "s":
            own = [number for number in line[1] if self._frames[number][4] is not None]
            self._stacks.append(((own or line[1])[-1], self._kinds.of(line[1])))
            if any("torch/utils/data/" in self._frames[number][1] for number in line[1]):
                self._input.add(self._stacks[-1][0])
        elif line[0] == "t":
            samples = array("I", line[1])
            self._samples += samples[: len(samples) // 3 * 3]
            if len(self._samples) > 3 * _MOST_SAMPLES:
                del self._samples[: 3 * _MOST_SAMPLES // 4]
        self._kinds.take(line)

    def _seen(self, steps: Iterable[int]) -> Iterator[tuple[int, int, str, int]]:
        """Looks in these steps: the step, the frame, the kind, and the µs that each stands for."""
        wanted = steps if isinstance(steps, range) else set(steps)
        every = iter(self._samples)
        for step, stack, us in zip(every, every, every, strict=True):
            if step in wanted and stack < len(self._stacks):
                yield step, *self._stacks[stack], us

    def shares(self, steps: Iterable[int]) -> tuple[dict[int, float], int]:
        """Of the time that was seen in these steps, the part of each line's frame; and the number of looks."""
        close, others, looks = Counter[int](), Counter[int](), Counter[bool]()
        for _, frame, _, us in self._seen(steps):
            is_close = us <= _CLOSE_US
            (close if is_close else others)[frame] += us
            looks[is_close] += 1
        if looks[True] < _ENOUGH:  # else one look among many that stands for a whole second would hide them
            close, looks[True] = close + others, looks.total()
        whole = close.total()
        return ({frame: us / whole for frame, us in close.items()} if whole else {}), looks[True]

    def looks(self, steps: range, took_ms: Mapping[int, float]) -> tuple[Counter[tuple[int, str]], float]:
        """How often each frame was seen in these steps, at which kind of work; and looks per ms of a step, each by the
        step that it fell into. took_ms: by step; looks at others do not count."""
        seen, per_ms = Counter[tuple[int, str]](), 0.0
        for step, frame, kind, _ in self._seen(steps):
            if ms := took_ms.get(step):
                seen[frame, kind] += 1
                per_ms += 1 / ms
        return seen, per_ms

    def line(self, frame: int, ms: float, before_ms: float = 0.0, kind: str = "own", surprise: float = 0.0) -> LineTime:
        """The frame as a reader knows it."""
        function, file, _, line, text = self._frames[frame][:5]
        return LineTime(file, line, function, text or "", ms, before_ms, frame in self._input, kind, surprise)
