"""Runs torchrun: passes its output on, shows progress, and ends every process of the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
from msgspec import Struct, field

from traceops.capture.progress import Progress, make_pipes, read_progress
from traceops.capture.schedule import Phase
from traceops.capture.settings import ENV
from traceops.core.claims import Wording
from traceops.core.run_lock import RunLock
from traceops.launch import supervise
from traceops.launch.display import Containment, Screen
from traceops.launch.forward import ALL_SHOWN, Forwarder, RankOf, Shown
from traceops.launch.hangs import HangWatch
from traceops.launch.on_demand import OnDemand
from traceops.launch.process_activity import is_alive, spent
from traceops.launch.signals import Received, from_terminal

_text = Wording("launch", "run")


class ProcessTree:
    """The processes that `root` has started, and theirs; psutil compares start times, so pids may be reused. env: the
    environment of `root`, which its descendants share."""

    def __init__(self, root: subprocess.Popen[bytes], env: Mapping[str, str]) -> None:
        self._root = root
        self._mark = env.get(ENV, "").rstrip("}") or None  # what a rank adds to it comes behind
        self._known: dict[int, psutil.Process] = {}

    def command(self) -> int | None:
        """The process that `root` started for the command; orphans come to be its children later."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._root.pid).children()
            return min(((child.create_time(), child.pid) for child in children), default=(0, None))[1]
        return None

    def refresh(self) -> None:
        """Note the processes that there are now."""
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._root.pid).children(recursive=True):
                self._known[child.pid] = child

    def end(self) -> None:
        """Kill what is left, after a moment in which a data loader ends after its rank."""
        self.refresh()
        if self._root.poll() is None:
            self._root.kill()
        self._root.wait()
        self._known.update({orphan.pid: orphan for orphan in self._orphans()})
        left = [child for child in self._known.values() if _lives(child)]
        _, left = psutil.wait_procs(left, timeout=1.0)
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(left, timeout=5.0)

    def _orphans(self) -> list[psutil.Process]:
        """Processes of ours that we never saw as anybody's child: their environment names this very run."""
        found = []
        if self._mark is not None:
            for process in psutil.process_iter():
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    if process.environ().get(ENV, "").startswith(self._mark):
                        found.append(process)
        return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


_SPAN_S = 10.0


class StepRate:
    """Turns the ranks' records into steps, step time and samples per second of the last seconds."""

    def __init__(self, ranks: int | None, host: str = "") -> None:
        """ranks: None for as many as come. host: which of several nodes these are of, '' where there is one."""
        self._ranks, self._host = ranks, host
        self._seen: deque[tuple[int, int, int | None]] = deque()  # (time_ns, step, samples of all ranks)

    def line(self, records: Sequence[Progress], alive: int) -> str:
        """What to show; the step is that of the rank furthest behind."""
        behind = min(records, key=lambda record: record.step, default=None)
        if behind is None and self._ranks is None:
            return _text("before_first_step")
        ranks = len(records) if self._ranks is None else self._ranks
        ended = sum(record.phase == "ended" for record in records)
        people = _text("alive", alive=alive, ranks=ranks, host=self._host)
        if alive < ranks <= ended:  # none of them died
            people = _text("ended", ended=ranks - alive, ranks=ranks, host=self._host)
        if behind is None or behind.step == 0:
            return f"{_text('before_first_step')} · {people}"
        known = [record.samples for record in records if record.samples is not None]
        now = (behind.time_ns, behind.step, sum(known) if known else None)
        if not self._seen or now[1] > self._seen[-1][1]:
            self._seen.append(now)
        while len(self._seen) > 2 and now[0] - self._seen[0][0] > _SPAN_S * 1e9:
            self._seen.popleft()
        parts = [f"step {behind.step} ({behind.phase})"]
        (t0, s0, n0), (t1, s1, n1) = self._seen[0], self._seen[-1]
        if s1 > s0 and t1 > t0:
            parts.append(f"{(t1 - t0) / (s1 - s0) / 1e6:.1f} ms/step")
            if n0 is not None and n1 is not None and n1 > n0:
                parts.append(f"{(n1 - n0) / ((t1 - t0) / 1e9):.0f} samples/s")
        return " · ".join([*parts, people])


# torchrun itself gives its ranks 30 s. Ours come behind that, and only once nothing of the run has worked for as long.
GRACE_S = 35.0
_WORKS_CORES, _WORKS_BYTES_PER_S = 0.1, 1e5
_POLL_S = 0.1
_LOOK_EVERY_S = 2.0
_KILLING_S = 6.0
_PATIENCE_S = 60.0  # with whoever reads our output, once the ranks have ended
_IMPATIENCE_S = 2.0  # the same after a signal


class TorchrunResult(Struct, frozen=True):
    """How torchrun ended: its return code, the signal we were sent (or None), and what it said itself.

    hung: we ended it because its ranks hung, or were about to. gone: ranks whose processes we saw end while torchrun
    knew of no failure yet, in this order. saved: what ranks that seemed to hang were doing, before the user ended them.
    completed: we ended it because all was captured.
    """

    returncode: int
    signal: int | None
    torchrun_log: str
    hung: bool = False
    gone: tuple[int, ...] = ()
    saved: bool = False
    completed: bool = False


class LauncherGuard(Struct, frozen=True):
    """What outlives the launcher, should it be killed. lock: of the run folder. afterwards: command that writes down
    how the run ended. remove: folder of no more use."""

    lock: RunLock
    afterwards: tuple[str, ...] = ()
    remove: Path | None = None


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    progress: Path,
    ranks: int | None,
    logs: Path | None,
    rank_of: RankOf,
    screen: Screen,
    received: Received,
    guard: LauncherGuard,
    hangs: HangWatch | None = None,
    folder: Path | None = None,
    shown: Shown = ALL_SHOWN,
    on_demand: OnDemand | None = None,
    node: str = "",
    stop_at: int | None = None,
) -> TorchrunResult:
    """Run `command` until it and all its processes have ended.

    folder: where it starts, None for here. progress: folder of the ranks' records. ranks: how many run on this
    machine, where that is known. logs, rank_of, shown: see `Forwarder`. received: the signals that came, see
    `held_signals`.
    on_demand: asks the ranks for windows while they run. node: this machine's name, where there are several. stop_at:
    steps after which the command is ended, with all traces written.
    A signal that ends the run goes to torchrun, which passes it on and waits for its ranks as it always does; so does
    SIGTERM at a hang that is to end it. SIGKILL follows for what is left and works no more, or on a second signal.
    """
    contain = Containment(screen)
    outputs, held = list[tuple[str, str]](), list[int]()
    with contain("make_pipes"):
        outputs, held = _outputs(progress, ranks, logs, one_place=screen.one_place)
    process, control = _start(command, env, folder, guard, outputs)
    assert process.stdout is not None and process.stderr is not None
    output = Forwarder((process.stdout, process.stderr), logs, rank_of, screen, shown)
    running = _Running(
        process, control, output, ProcessTree(process, env), progress, ranks, screen, contain, received,
        hangs, on_demand, stop_at,
    )  # fmt: skip
    running.until_it_ends(StepRate(ranks, node))
    heard = len(received)
    with contain("pass_output"):
        output.finish(_IMPATIENCE_S if received else _PATIENCE_S, lambda: len(received) > heard)
    hung = running.hung
    if hangs is not None:
        with contain("explain_hang"):
            hangs.finish(hurried=bool(received), well=process.poll() == 0 and not received)
        hung = hangs.kills and hangs.stall is not None and (hung or not received)
    for pipe in held:
        os.close(pipe)
    return TorchrunResult(
        process.wait(), received[0] if received and not hung else None, output.own_words(), hung, tuple(running.gone),
        saved=hangs is not None and hangs.saved,
        completed=running.complete and running.stopping is not None and not received and not hung,
    )  # fmt: skip


class _Running(Struct):
    """The command while it runs: what is looked at again and again, and when it is to end. process: the supervisor.
    control: the pipe to it. gone, hung, complete: what was seen; `complete`: all that was asked for is captured. heard:
    signals that came before we said what another Ctrl-C would do."""

    process: subprocess.Popen[bytes]
    control: int
    output: Forwarder
    tree: ProcessTree
    progress: Path
    ranks: int | None
    screen: Screen
    contain: Containment
    received: Received
    hangs: HangWatch | None
    on_demand: OnDemand | None
    stop_at: int | None
    gone: list[int] = field(default_factory=list)
    hung: bool = False
    complete: bool = False
    records: list[Progress] = field(default_factory=list)
    failed: bool = False
    saving: bool = False
    stopping: _Stopping | None = None
    heard: int = 0
    looked: float = 0.0

    @property
    def goes_on(self) -> bool:
        """Whether nobody has asked it to end."""
        return self.stopping is None and not self.saving

    def until_it_ends(self, pace: StepRate) -> None:
        """Wait for the end of all its processes, however they end."""
        contain, received = self.contain, self.received
        while self.process.poll() is None:
            now = time.monotonic()
            with contain("watch_ranks"):
                self.records = read_progress(self.progress)
                if self.goes_on:
                    self._look(pace)
            with contain("ask_window"):
                self._ask_for_windows()
            with contain("save_state"):
                self._save_before_the_end()
            saves = self.hangs is not None and len(received) == self.heard and self.hangs.saves()
            self.saving = self.saving and saves
            ending = self.goes_on and (self.hung or self.complete or bool(received))
            if now - self.looked > _LOOK_EVERY_S or ending:
                with contain("find_processes"):
                    self.tree.refresh()
                self.looked = now
            if ending:
                self._end(now)
            if self.stopping is not None and (received.again(self.heard) or self.stopping.is_over(now)):
                break
            time.sleep(_POLL_S)
        try:  # have the supervisor kill whatever is left, and wait for that
            with suppress(OSError):  # it has ended
                os.write(self.control, supervise.KILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_KILLING_S)
        finally:
            os.close(self.control)
        if not sys.platform.startswith("linux") or (self.process.poll() or 0) < 0:  # else it has ended them
            with contain("end_processes"):
                self.tree.end()

    def _ask_for_windows(self) -> None:
        asked = bool(self.received.others) and self.received.pass_on(self.tree.command(), self.records)
        if self.on_demand is not None and self.goes_on:
            if asked:
                self.on_demand.signalled()
            self.on_demand.look(self.records)

    def _save_before_the_end(self) -> None:
        """At the first Ctrl-C, of ranks that seem to hang."""
        if self.hangs is not None and self.received == [signal.SIGINT] and self.goes_on and not self.hung:
            self.saving, self.heard = self.hangs.interrupted(self.records), len(self.received)

    def _look(self, pace: StepRate) -> None:
        """Where the ranks are, which are gone, whether they hang, and whether all is captured."""
        records, reported = self.records, self.output.has_failure
        ended = [record.rank for record in records if not is_alive(record)]
        self.screen.progress(pace.line(records, len(records) - len(ended)))
        if not reported:
            self.gone += [rank for rank in ended if rank not in self.gone]
        if self.hangs is not None and (self.hangs.stall is not None or not reported):
            self.hung = self.hangs.observe(records) and not self.received
        elif self.hangs is not None and not self.failed:
            self.failed = True
            self.hangs.rank_failed(records)
        if self.stop_at is not None:  # one that writes a trace is not done
            done = (one.step >= self.stop_at and one.phase in (Phase.DONE.value, "ended") for one in records)
            self.complete = len(records) >= (self.ranks or 1) and all(done)

    def _end(self, now: float) -> None:
        """Ask the command to end, and say why."""
        received, why = self.received, ""
        if received:
            why = _text("stopping")
        elif self.complete:
            why = _text("complete", step=self.records[0].step)
        if why:
            with self.contain("report"):
                self.screen.say(why)
        self.output.mute()
        number = received.for_ranks(self.records) if received else signal.SIGTERM
        # The command is the user's own where its ranks are not known: Ctrl-C at a terminal is for all its processes.
        if self.ranks is None and number == signal.SIGINT and from_terminal():
            with suppress(OSError):
                os.write(self.control, supervise.INTERRUPT)
        else:
            self.process.send_signal(number)
        self.stopping = _Stopping(self.process.pid, now, patient=not self.hung)
        self.heard = self.heard or len(received)


def _outputs(
    progress: Path, ranks: int | None, logs: Path | None, *, one_place: bool
) -> tuple[list[tuple[str, str]], list[int]]:
    """The pipes that the ranks are to print into, each with its log as torchrun names it; and ours, which stay open.
    one_place: our own stdout and stderr are the same, so that theirs keep their order."""
    outputs, held = [], []
    for local_rank, pipe in make_pipes(progress, ranks, one_place=one_place) if ranks and logs is not None else ():
        name = "output" if one_place else pipe.name.partition("_")[0]
        outputs.append((str(pipe), f"{logs}/run/attempt_0/{local_rank}/{name}.log"))
        held.append(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # a write must not fail where the supervisor was killed
    return outputs, held


def _start(
    command: Sequence[str],
    env: Mapping[str, str],
    folder: Path | None,
    guard: LauncherGuard,
    outputs: list[tuple[str, str]],
) -> tuple[subprocess.Popen[bytes], int]:
    """torchrun below a supervisor, and our end of the pipe that tells the supervisor whether we live."""
    theirs, ours = os.pipe()
    keep = [] if guard.lock.descriptor is None else [guard.lock.descriptor]
    settings = supervise.SupervisorSettings(
        theirs, keep, list(guard.afterwards), None if guard.remove is None else str(guard.remove), GRACE_S, outputs
    )
    try:
        # A session of its own: Ctrl-C reaches us only, and we end the ranks in order.
        process = subprocess.Popen(
            supervise.command_line(settings, list(command)), env=dict(env), cwd=folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, pass_fds=[theirs, *keep],
        )  # fmt: skip
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return process, ours


class _Stopping:
    """How long a supervisor's processes have to end: `GRACE_S`, and longer while they work or write, if `patient`."""

    def __init__(self, supervisor: int, now: float, *, patient: bool) -> None:
        self._supervisor, self._patient = supervisor, patient
        self._worked_s = self._looked_s = now
        self._spent = spent(supervisor)

    def is_over(self, now: float) -> bool:
        """Whether nothing of the run has worked for as long."""
        elapsed = now - self._looked_s
        if self._patient and elapsed > _LOOK_EVERY_S:
            (stored, cpu, spun), self._spent, self._looked_s = self._spent, spent(self._supervisor), now
            worked = self._spent[1] + self._spent[2] - cpu - spun > _WORKS_CORES * elapsed
            if worked or self._spent[0] - stored > _WORKS_BYTES_PER_S * elapsed:
                self._worked_s = now
        return now - self._worked_s > GRACE_S
