"""One run from plan to run.json: starts the ranks and records how they ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest, readable_ranks, write_rank
from traceops.capture.progress import LastWords, Progress, read_progress
from traceops.core.capture_failure import CaptureFailure
from traceops.core.claims import Wording
from traceops.core.run_lock import RunLock, hold
from traceops.launch import folder, outcome
from traceops.launch.conclusion import report_run
from traceops.launch.display import Containment, Screen
from traceops.launch.ended import EndedRun, cut_short, exit_code, how_it_ended, write_run
from traceops.launch.evidence import hang_variables, nccl_log_variables, tidy
from traceops.launch.gather.gathering import Gathering
from traceops.launch.gather.relay import Relay
from traceops.launch.hangs import HangWatch
from traceops.launch.machine_watch import FabricEvidence, MachineWatch
from traceops.launch.on_demand import OnDemand
from traceops.launch.plan import Plan, python_path, rank_of
from traceops.launch.process import LauncherGuard, TorchrunResult, run
from traceops.launch.signals import Received, held_signals
from traceops.traces.windows import SUFFIX

_MONITOR_ENDS_S = 3.0
_text = Wording("launch", "run")


class _Launched(Struct, frozen=True):
    """What a run began with. started: Unix time, ns."""

    plan: Plan
    screen: Screen
    contain: Containment
    env: dict[str, str]
    started: int
    fabric: FabricEvidence | None
    gathering: Gathering | None


class _Monitor:
    """`traceops live` in a process of its own beside the run: what it finds is said with the run's own lines."""

    def __init__(self, out: Path, screen: Screen) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "traceops", "live", os.fspath(out)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path(os.environ) or os.environ.get("PYTHONPATH", "")},
        )  # fmt: skip
        self._screen = screen
        self._reader = threading.Thread(target=self._print_lines, name="traceops-monitor", daemon=True)
        self._reader.start()

    def _print_lines(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._process.stdout or ():
                self._screen.say(line.decode(errors="replace").rstrip())

    def finish(self) -> None:
        """Have it take in the rest, and end it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_MONITOR_ENDS_S)
        self._process.terminate()
        try:
            self._process.wait(_MONITOR_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reader.join(1.0)


def _begin_monitor(plan: Plan, screen: Screen, gathering: Gathering | None) -> _Monitor | Relay | None:
    """Beside the first node's launcher; on others, where no folder is shared, what sends it their ranks' records."""
    if not plan.capture.get("live"):
        return None
    if gathering is not None and not gathering.first:
        return gathering.relay()
    return _Monitor(plan.out, screen) if gathering is not None or not plan.cluster.node_rank else None


def launch(plan: Plan, *, advise: bool = True, lock: RunLock | None = None) -> int:
    """Run `plan`; returns the exit code of the training: of the rank that failed first, if one did.

    advise: end with what to do with the traces. lock: of the run folder, if it is held already.

    After Ctrl-C, SIGTERM, SIGHUP or SIGQUIT it is 128 plus the signal's number, 130 for Ctrl-C; 124 after a hang.
    Raises FolderInUse where another run holds the folder.
    """
    own = hold(plan.out, shared=plan.cluster.nnodes > 1) if lock is None else lock
    try:
        with ExitStack() as held:
            received = held.enter_context(held_signals())
            return _run(plan, own, received, held.close, advise)
    except folder.NotWritable:
        if plan.cluster.nnodes == 1:
            folder.not_started(plan.out)
            own.take_back()
        raise
    finally:
        if lock is None:
            own.release()


def _expected(plan: Plan) -> int | None:
    """The ranks of this machine; None where the command starts as many as it likes."""
    return None if plan.launcher == "none" else plan.cluster.nproc


def _run(plan: Plan, lock: RunLock, received: Received, free: Callable[[], None], advise: bool) -> int:
    screen = Screen(shows_progress=not (plan.beside or plan.quiet))
    contain = Containment(screen)
    started = time.time_ns()
    with folder.writable(plan.out):
        plan.evidence.mkdir(parents=True, exist_ok=True)  # torch and NCCL write there, but do not make it
    with folder.progress_folder() as progress:
        # One node: we have looked at the folder and merge the manifests; several: each rank claims its own.
        capture: dict[str, Any] = {"progress": progress, "launched": plan.cluster.nnodes == 1}
        hangs, gathering = None, None
        if plan.gather:
            gathering = contain.made("listen_nodes", lambda: Gathering(plan, screen, received))
        if plan.limits is not None:
            capture["evidence"] = str(plan.evidence)
            agree = None if gathering is None else gathering.all_still
            hangs = HangWatch(plan.limits, plan.out, Path(progress), screen, plan.cluster.nnodes, agree)
        env = plan.environment(os.environ, **capture)
        env |= nccl_log_variables(env, plan.evidence)
        if hangs is not None:
            env |= hang_variables(env, plan.evidence, Path(progress))
        words = contain.made("listen_ranks", lambda: LastWords(Path(progress)))
        if hangs is not None:
            hangs.last_words = words
        with folder.writable(plan.out):
            write_run(plan, env, started)
            reserve = folder.Reserve(plan.out)
        with contain("announce"):
            if not (plan.beside or plan.quiet):
                several = plan.cluster.nnodes if plan.cluster.nnodes > 1 else None
                screen.say(_text("begins", ranks=_expected(plan), nodes=several, out=folder.short_path(plan.out)))
        fabric = contain.made("save_topology", lambda: FabricEvidence(plan.evidence, gpus=plan.gpus))
        machine: MachineWatch | None = None
        with contain("watch_machine"):
            if plan.capture.get("observe", True):
                machine = MachineWatch(plan.out, Path(progress), gpus=plan.gpus)
                machine.start()
        monitor = contain.made("start_monitor", lambda: _begin_monitor(plan, screen, gathering))
        on_demand = OnDemand(plan.out, Path(progress), screen.say)
        ended = run(
            plan.command(), env, progress=Path(progress), ranks=_expected(plan), logs=plan.rank_logs,
            rank_of=rank_of(plan.cluster, Path(progress)), screen=screen, received=received,
            guard=LauncherGuard(lock, outcome.settle_command(plan.out, plan.rank_logs), Path(progress)),
            hangs=hangs, folder=None if plan.checkout is None else plan.checkout.folder, shown=plan.shown,
            on_demand=on_demand, node=host() if plan.cluster.nnodes > 1 else "", stop_at=plan.stop_at,
        )  # fmt: skip
        with contain("ask_window"):
            on_demand.close()
        with contain("end_monitor"):
            if monitor is not None:
                monitor.finish()
        with contain("watch_machine"):
            if machine is not None:
                machine.finish()
        early: list[CaptureFailure] = []
        last: list[Progress] = []
        with contain("listen_ranks"):
            last = list(read_progress(Path(progress)))
            early = cut_short(last, readable_ranks(plan.out)[0], ended, plan.launcher != "none")
            if words is not None:
                early += words.heard()
                words.close()
    reserve.release()
    counted = len(received)

    def let_through() -> None:
        free()
        if len(received) > counted:  # it came when all was over
            signal.raise_signal(received[-1])

    launched = _Launched(plan, screen, contain, env, started, fabric, gathering)
    return _record(launched, EndedRun(ended, early, exit_code(ended, None)), last, let_through, advise)


def _record(launched: _Launched, run: EndedRun, last: list[Progress], free: Callable[[], None], advise: bool) -> int:
    """Keep and tell how the run ended, as far as that succeeds; returns its exit code in any case. free: lets signals
    through again, for what may take long."""
    plan, screen, contain, gathering = launched.plan, launched.screen, launched.contain, launched.gathering
    ended = run.ended
    here: list[RankManifest] = []
    with contain("save_topology"):
        if launched.fabric is not None:
            launched.fabric.finish()
    with contain("tidy_evidence"):
        tidy(plan.evidence)
    with contain("gather"):
        if gathering is not None:
            gathering.ended(by_signal=ended.signal is not None)
    with contain("read_ends"):
        run = how_it_ended(plan, ended, run.early, last, screen)
        here = [rank for rank in run.ranks if _is_here(plan, rank)]
    with contain("write_run"):
        write_run(plan, launched.env, launched.started, run)
    for rank in here:
        with contain("write_manifests"):
            write_rank(plan.out, rank)
    with contain("remove_unfinished"):
        folder.remove_unfinished(plan.out, here)
    with contain("keep_logs"):
        _keep_logs(plan, ended, here)
    with contain("free_signals"):
        free()
    if plan.summarize and not ended.signal:
        with contain("summarize"):
            from traceops.launch.summarize import summarize_traces  # NumPy and the pipeline, which few runs need

            count, problems = summarize_traces(plan.out, {rank.rank for rank in here if rank.traces})
            for problem in problems:
                screen.say(_text("no_summary", problem=problem))
            screen.say(_text("summarized", traces=count, suffix=SUFFIX))
    with contain("send"):
        if gathering is not None:
            gathering.send()
    with contain("report_end"):
        advise = advise and (gathering is None or gathering.first)
        own = run.failure is not None and run.failure.rank in {rank.rank for rank in here}
        if own or (not plan.beside and (run.code or not plan.quiet)):
            report_run(screen, plan, run, contain, advise)
    return run.code


def _keep_logs(plan: Plan, ended: TorchrunResult, here: list[RankManifest]) -> None:
    if plan.rank_logs is None:
        return
    logs = plan.out / "logs"
    logs.mkdir(exist_ok=True)
    if ended.torchrun_log.strip():
        (logs / f"torchrun.{host()}.log").write_text(ended.torchrun_log)
    folder.collect_logs(plan.out, plan.rank_logs, here, host())


def _is_here(plan: Plan, rank: RankManifest) -> bool:
    """Whether a rank ran on this node; hosts may share a name, as containers do."""
    if plan.cluster.nnodes > 1 and plan.cluster.node_rank is not None:
        return rank.rank // plan.cluster.nproc == plan.cluster.node_rank
    return rank.host == host()
