"""The monitor of one run: reads what its ranks write, once per second, reports what it finds, and asks for windows."""

from __future__ import annotations

import io
import json
import os
import secrets
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict, replace

from traceops.capture.manifest import readable_ranks
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.files import write_whole
from traceops.core.live_pulses import CLOSER, EVENTS_FILE, PULSES_FILE, STATE_FILE
from traceops.core.run_lock import in_use
from traceops.core.text import near_path
from traceops.launch.on_demand import ANSWER, Request, recorded, request_window
from traceops.live.findings import Detection, Stuck
from traceops.live.job import Job
from traceops.live.machines import Gpm, MachineReader, Machines, RasLook, ask
from traceops.live.measures import RankState, seen_ms
from traceops.live.stream import LineReader, RankReader, rank_folders

if TYPE_CHECKING:
    from traceops.report.model import Report

_text = Wording("live", "window")
_PATIENCE_S = 120.0  # for the window to be recorded
_CARD_LINES, _REPORT_LINES = 18, 12
_REASONS, _REASON_PART = 3, 0.05  # for what changed: at most so many, each of so much of a healthy step
_ANALYZE_S = 300.0


class Trigger:
    """Asks for windows; `look` about once a second. most: windows in an hour; after each the pause doubles."""

    def __init__(self, out: Path, most: int) -> None:
        self._out, self._most = out, most
        self._asked: deque[float] = deque(maxlen=max(most, 1))
        self._pause_s = 60.0
        self._asked_s: float | None = None  # when the window that is waited for was asked for
        self._analyzing: tuple[subprocess.Popen[str], Path, float] | None = None
        self._wanted_until = 0.0
        self._since: int | None = None
        self._numbers: list[int] = []  # of windows that were asked for: they are not healthy
        self.windows = 0

    def detected(self, now_s: float, since: int | None) -> None:
        """Something was found that a window may explain; it is asked for soon, where that is possible. since: step."""
        self._wanted_until, self._since = now_s + 20.0, since

    def look(self, now_s: float, *, busy: bool) -> list[str]:
        """Go on with what was asked for; returns lines to say. busy: a checkpoint or an evaluation goes on."""
        if self._analyzing is not None:
            return self._card(now_s)
        if self._asked_s is not None:
            self._look_for_window(self._asked_s, now_s)
            return []
        if busy or self._most < 1 or now_s >= self._wanted_until:
            return []
        full = len(self._asked) == self._most and now_s - self._asked[0] < 3600
        if full or (self._asked and now_s - self._asked[-1] < self._pause_s):
            return []
        self._wanted_until = 0.0
        with suppress(UsageError):
            request_window(self._out, Request(secrets.token_hex(8), warmup=2, active=4))
            self._asked.append(now_s)
            self._pause_s = min(2 * self._pause_s, 3600.0)
            self._asked_s = now_s
        return []

    def _look_for_window(self, asked_s: float, now_s: float) -> None:
        """Analyze the window that was asked for, once all ranks have recorded it."""
        if now_s - asked_s > _PATIENCE_S or not in_use(self._out):
            self._asked_s = None
            return
        try:
            number = int(json.loads((self._out / ANSWER).read_bytes())["number"])
        except (OSError, ValueError, KeyError, TypeError):  # no answer yet
            return
        seen = recorded(self._out, number)
        if not seen.ranks or len(seen.steps) < seen.ranks:
            return
        self._asked_s = None
        self.windows += 1
        report = self._out / "live" / f"window_{number}"
        report.parent.mkdir(exist_ok=True)
        self._numbers.append(number)
        since = "-" if self._since is None else str(self._since)
        command = [sys.executable, "-m", "traceops.live.monitor", str(self._out), str(report), since]
        process = subprocess.Popen(
            ["nice", *command, *map(str, reversed(self._numbers))],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._analyzing = process, report, now_s

    def _card(self, now_s: float) -> list[str]:
        assert self._analyzing is not None
        process, report, since = self._analyzing
        if process.poll() is None:
            if now_s - since > _ANALYZE_S:
                self.close()
            return []
        self._analyzing = None
        text = process.stdout.read() if process.stdout is not None else ""
        if not (lines := [line.rstrip() for line in text.splitlines() if line.strip()]):
            return []
        (report.parent / "card.txt").write_text("\n".join(lines[:_CARD_LINES]) + "\n", encoding="utf-8")
        return lines[:_CARD_LINES]

    def close(self) -> None:
        """End an analysis that goes on: it is ours."""
        if self._analyzing is not None:
            process, _, _ = self._analyzing
            self._analyzing = None
            process.kill()
            process.wait()


def judge_window(out: Path, report_folder: Path, since: int | None, numbers: Sequence[int]) -> str:
    """The card of the first of these windows, which a detection asked for, and its report. It begins with what changed
    against the latest other window before step `since`: a healthy one of the same job."""
    from traceops.pipeline.analyze import analyze_window, find_traces
    from traceops.pipeline.mapping.ranks import MapOptions
    from traceops.render.files import write_report
    from traceops.render.report.terminal import print_report

    found = find_traces(str(out))
    recorded_ones = {window.index: window for window in found.windows}
    now = analyze_window(found, recorded_ones[numbers[0]], MapOptions(jobs=1))
    written = write_report(now, report_folder, ("html", "json"))
    for path in written:  # a later `analyze` of the run would take them for traces
        if path.name.startswith("flame."):
            path.unlink()
    lines = []
    if (healthy := healthy_window(out, since, numbers)) in recorded_ones:
        lines = what_changed(analyze_window(found, recorded_ones[healthy], MapOptions(jobs=1)), now)
    text = io.StringIO()
    print_report(now, text, written[0])
    alone = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
    return "\n".join([*lines, *alone[:_REPORT_LINES]])


def healthy_window(out: Path, since: int | None, not_these: Collection[int]) -> int | None:
    """The number of the latest window that all ranks ended before step `since`, without those."""
    windows = [window for rank in readable_ranks(out)[0] for window in rank.windows if window.trace is not None]
    ends = {window.index: max(window.steps, default=0) for window in windows if window.index not in not_these}
    before = [number for number, end in ends.items() if since is None or end < since]
    return max(before, default=None)


def what_changed(healthy: Report, now: Report) -> list[str]:
    """Lines on what takes longer in a window than in a healthy one of the same job."""
    from traceops.compare import compare
    from traceops.compare.capture import capture_of, step_numbers, step_series
    from traceops.report.document import to_json_object

    sides = [capture_of(to_json_object(report), path) for report, path in ((healthy, "healthy"), (now, "now"))]
    # Both sides share the steps of the whole run, so only the two windows are compared.
    sides = [replace(side, report=replace(side.report, unprofiled_steps=(), whole_run=None)) for side in sides]
    before_ms, now_ms = (float(step_series(side, "duration_ms").mean()) for side in sides)
    steps = step_numbers(sides[0])
    reasons = sorted(compare(sides[:1], sides[1:], force=True).explanations, key=lambda one: -one.ms)
    longer = [one for one in reasons if one.ms >= _REASON_PART * before_ms][:_REASONS]
    known = {"first": steps[0], "last": steps[-1], "before_ms": before_ms, "now_ms": now_ms}
    heading = _text("against" if longer else "alike", **known)
    return [heading, *(f"  - {one.text}" for one in longer)]


_CLOSER_EVERY_S = 4.0  # ranks are asked for more looks at most so often
_MOST_CLOSER = 90  # in an hour: 6 minutes, of which looks take 1 %
_MOST_EVENTS = 10_000  # in the file: after that, remarks are left out
_GONE_S = 5.0  # without a launcher and without new pulses
_STARTS_S = 600.0  # until the first pulse: models are loaded and compiled before the first step
_SHARE_S = 10.0
_RECENT_S = 60.0
_FRESH_S = 4.0  # of the state: a monitor that writes it


class _Sources:
    """Where the job finds what is not read all the time."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._lines: dict[int, LineReader] = {}
        self.machines = Machines(out)
        self.host_bytes = 64 << 30
        with suppress(ValueError, OSError):
            self.host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._asked: deque[float] = deque([-_CLOSER_EVERY_S], maxlen=_MOST_CLOSER)

    def lines(self, rank: int) -> LineReader:
        return self._lines.setdefault(rank, LineReader(self._out / f"rank_{rank}"))

    def machine(self, rank: int) -> MachineReader | None:
        return self.machines.of(rank)

    def closer(self) -> None:
        now = time.monotonic()
        full = len(self._asked) == _MOST_CLOSER and now - self._asked[0] < 3600
        if not full and now - self._asked[-1] >= _CLOSER_EVERY_S:
            self._asked.append(now)
            with suppress(OSError):
                (self._out / CLOSER).touch()


class Monitor:
    """Beside one run, in another process than its ranks: nothing it does or suffers reaches them. say: a line for the
    user. post: each detection's document, for a webhook. windows: as `Trigger`."""

    def __init__(
        self,
        out: Path,
        say: Callable[[str], None],
        *,
        windows: int = 4,
        post: Callable[[dict[str, Any]], None] = lambda document: None,
    ) -> None:
        self._out, self._say, self._post = out, say, post
        self._readers: dict[int, RankReader] = {}
        self._sources = _Sources(out)
        self.job = Job(self._sources)
        self.events: deque[dict[str, Any]] = deque(maxlen=200)
        self._trigger = Trigger(out, windows)
        self._began = time.time()
        self._written = 0
        self._gpm: Gpm | None = None
        self.activity: dict[int, dict[str, float]] = {}
        self.ras: RasLook | None = None
        self.state: dict[str, Any] = {}
        with suppress(OSError):
            self._gpm = Gpm()

    def look(self) -> None:
        """Take in what is new and report what is found. Raises OSError where the run folder cannot be written."""
        for rank, folder in rank_folders(self._out).items():
            self._readers.setdefault(rank, RankReader(folder, rank))
        looks = [look for reader in self._readers.values() if (look := reader.look()) is not None]
        self._sources.machines.look()
        if self._gpm is not None:
            self.activity = self._gpm.look()
        now_ns = time.time_ns()
        for found in self.job.take(looks, now_ns):
            self._report(found)
        for line in self._trigger.look(time.monotonic(), busy=self.job.saves_or_evaluates):
            self._say(line)
        self.state = self._document(now_ns)
        write_whole(self._out / STATE_FILE, json.dumps(self.state).encode())

    def _report(self, found: Detection) -> None:
        document = found.document()
        if isinstance(found.claim, Stuck):
            self.ras = ask()
            if self.ras is not None:
                document["ras"] = {"missing": self.ras.missing, "ranks": self.ras.ranks}
        elif found.page:
            self._trigger.detected(time.monotonic(), found.claim.step)
        self.events.append(document)
        self._say(document["message"])
        self._written += 1
        if self._written <= _MOST_EVENTS or found.page:
            with (self._out / EVENTS_FILE).open("ab", buffering=0) as file:
                file.write(json.dumps(document).encode() + b"\n")
        self._post(document)

    def over(self) -> bool:
        """Whether there is nothing more to watch."""
        if self.job.ended:
            return True
        if in_use(self._out):
            return False
        newest = max((state.pulse.time_ns for state in self.job.ranks.values() if state.pulse), default=None)
        since = self._began if newest is None else max(newest / 1e9, self._began)
        return time.time() - since > (_STARTS_S if newest is None else _GONE_S)

    def close(self) -> None:
        """End what we began."""
        self._trigger.close()
        if self._gpm is not None:
            self._gpm.close()

    def _document(self, now_ns: int) -> dict[str, Any]:
        job = self.job
        gpus = self._sources.machines.gpus()
        return {
            "format": 1, "run": self._out.name, "pid": os.getpid(), "time_ns": now_ns,
            "began_ns": int(1e9 * self._began), "ended": job.ended, "slow": job.slow, "goodput": job.goodput.part,
            "seconds": {part: round(value, 3) for part, value in job.goodput.seconds.items()},
            "windows": self._trigger.windows,
            "ranks": [_of_rank(state, now_ns) for _, state in sorted(job.ranks.items())],
            "gpus": [{name: value for name, value in asdict(gpu).items() if name != "ms"} for gpu in gpus],
            "activity": self.activity, "events": list(self.events)[-20:],
        }  # fmt: skip


def _of_rank(state: RankState, now_ns: int) -> dict[str, Any]:
    pulse = state.pulse
    recent = sorted(state.recent)
    known: dict[str, Any] = {
        "rank": state.rank,
        "step": state.steps,
        "ms": round(recent[len(recent) // 2], 3) if recent else None,
        "usual_ms": round(state.pace.usual_ms, 3) or None,
        "slow": state.pace.change is not None,
        "ended": state.ended,
    }
    if pulse is None:
        return known
    pulses = state.latest(int(2 * _SHARE_S))
    seen = seen_ms(pulses[0], pulses[-1])
    whole = sum(seen.values())
    return known | {
        "age_s": round((now_ns - pulse.begun_ns) / 1e9, 2),
        "seen_s": round((now_ns - pulse.time_ns) / 1e9, 2),
        "samples": None if pulse.samples < 0 else pulse.samples,
        **{name: getattr(pulse, name) for name in ("held", "reserved", "total", "resident", "retries")},
        "share": {kind: round(ms / whole, 3) for kind, ms in seen.items()} if whole else {},
    }


def watched_folder(path: str | None) -> Path:
    """The run folder that was given, else the only one below profile/ whose ranks write for a monitor now."""
    if path is not None:
        if not Path(path).is_dir():
            raise UsageError(
                f"{path}: no such folder{near_path(path) or '; give the run folder of a job that runs with --live'}"
            )
        return Path(path).absolute()
    now = time.time()
    files = Path("profile").glob(f"*/rank_*/{PULSES_FILE}")
    found = {file.parent.parent for file in files if now - file.stat().st_mtime < _RECENT_S}
    if len(found) != 1:
        raise UsageError(f"jobs with --live that are active below profile/: {len(found) or 'none'}; give a run folder")
    return found.pop().absolute()


def read_state(out: Path) -> dict[str, Any] | None:
    """The monitor's latest state of a run; None where none is there."""
    try:
        told = json.loads((out / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


class Follower:
    """What another monitor of the run finds, in its place: the same states and detections, read from its files."""

    def __init__(self, out: Path, say: Callable[[str], None], post: Callable[[dict[str, Any]], None]) -> None:
        self._out, self._say, self._post = out, say, post
        self._at = (out / EVENTS_FILE).stat().st_size if (out / EVENTS_FILE).exists() else 0
        self.state: dict[str, Any] = {}

    def look(self) -> None:
        """Take in what is new. Raises OSError."""
        self.state = read_state(self._out) or self.state
        if not (self._out / EVENTS_FILE).exists():
            return
        with (self._out / EVENTS_FILE).open("rb") as file:
            file.seek(self._at)
            raw = file.read()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            document = json.loads(line)
            self._say(document["message"])
            self._post(document)

    def over(self) -> bool:
        """Whether the run has ended, or its monitor."""
        return bool(self.state.get("ended")) or not has_monitor(self._out)

    def close(self) -> None:
        """Nothing of it is ours."""


def has_monitor(out: Path) -> bool:
    """Whether another process watches this run."""
    if (state := read_state(out)) is None or state.get("ended") or state.get("pid") == os.getpid():
        return False
    return time.time() - float(state.get("time_ns", 0)) / 1e9 < _FRESH_S


if __name__ == "__main__":
    _out, _report, _since, *_numbers = sys.argv[1:]
    _since_step = int(_since) if _since.isdigit() else None
    print(judge_window(Path(_out), Path(_report), _since_step, [int(number) for number in _numbers]))
