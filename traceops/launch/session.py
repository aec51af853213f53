"""One run from plan to run.json: starts the ranks and records how they ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from traceops.capture.environment import environment_that_matters, git_state, host, software_versions
from traceops.capture.joined import Unrecorded, unrecorded
from traceops.capture.last_words import LastWords
from traceops.capture.manifest import RankManifest, readable_ranks, write_json, write_rank
from traceops.capture.merged_manifest import merge
from traceops.capture.progress import Progress, read_progress
from traceops.core.capture_failure import CaptureFailure, advice_text, by_cause, cause_text
from traceops.core.exit_codes import reported_codes, shell_code
from traceops.core.run_lock import Launcher, RunLock, hold
from traceops.core.unrecorded_text import unrecorded_sentences
from traceops.core.unseen_steps import UNSEEN_STEPS_ADVICE
from traceops.launch import aftermath
from traceops.launch.aside import Aside
from traceops.launch.conclusion import tell_cause
from traceops.launch.debug_variables import hang_variables, nccl_log_variables
from traceops.launch.display import LineSource, Screen
from traceops.launch.early_ends import cut_short, early_ends, with_failures, with_last_steps
from traceops.launch.evidence import saved_evidence, tidy
from traceops.launch.fabric_evidence import FabricEvidence
from traceops.launch.folder import collect_logs, remove_unfinished, short_path
from traceops.launch.gather.gathering import Gathering
from traceops.launch.hangs import HangWatch
from traceops.launch.local_ranks import rank_of
from traceops.launch.log_end import show_end
from traceops.launch.machine_watch import MachineWatch
from traceops.launch.on_demand import OnDemand
from traceops.launch.outcome import Failure, first_failure, gone_unseen, left_early, with_exit_codes
from traceops.launch.plan import Plan
from traceops.launch.process import LauncherGuard, TorchrunResult, run
from traceops.launch.reserve import Reserve
from traceops.launch.signals import asking_signal, held_signals
from traceops.launch.step_words import steps_told
from traceops.launch.whole_steps import has_whole_steps, would_fit
from traceops.launch.writable import progress_folder, writable
from traceops.traces.summary_header import SUFFIX

HUNG = 124  # as timeout(1) has it
_TAIL_LINES = 20
_NOBODY = (
    "no process of the command was seen to train: none ended the step of a torch optimizer, or they run where the "
    "environment does not reach (python -I or -E, a container)"
)


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
    finally:
        if lock is None:
            own.release()


def _who(plan: Plan) -> str:
    if plan.launcher == "none":
        return "ranks as the command starts them"
    return f"{plan.cluster.nproc} rank{'s' if plan.cluster.nproc > 1 else ''}"


def _expected(plan: Plan) -> int | None:
    """The ranks of this machine; None where the command starts as many as it likes."""
    return None if plan.launcher == "none" else plan.cluster.nproc


def _run(plan: Plan, lock: RunLock, received: list[int], free: Callable[[], None], advise: bool) -> int:
    screen = Screen()
    aside = Aside(screen)
    started = time.time_ns()
    with writable(plan.out):
        plan.evidence.mkdir(parents=True, exist_ok=True)  # torch and NCCL write there, but do not make it
    with progress_folder() as progress:
        # One node: we have looked at the folder and merge the manifests; several: each rank claims its own.
        capture: dict[str, Any] = {"progress": progress, "launched": plan.cluster.nnodes == 1}
        hangs = None
        gathering: Gathering | None = None
        with aside("listening for the other nodes' files"):
            if plan.gather:
                gathering = Gathering(plan, screen, received)
        if plan.limits is not None:
            capture["evidence"] = str(plan.evidence)
            agree = None if gathering is None else gathering.all_still
            hangs = HangWatch(plan.limits, plan.out, Path(progress), screen, plan.cluster.nnodes, agree)
        env = plan.environment(os.environ, **capture)
        env |= nccl_log_variables(env, plan.evidence)
        if hangs is not None:
            env |= hang_variables(env, plan.evidence, Path(progress))
        words: LastWords | None = None
        with aside("listening to the ranks"):
            words = LastWords(Path(progress))
        if hangs is not None:
            hangs.last_words = words
        with writable(plan.out):
            _write_run(plan, [], env, started, status="running")
            reserve = Reserve(plan.out)
        with aside("telling of the run"):
            screen.say(f"{_who(plan)}, run folder {short_path(plan.out)}")
        fabric: FabricEvidence | None = None
        with aside("saving the machine's topology"):
            fabric = FabricEvidence(plan.evidence, gpus=plan.gpus)
        machine: MachineWatch | None = None
        with aside("looking at the machine"):
            if plan.capture.get("observe", True):
                machine = MachineWatch(plan.out, Path(progress), gpus=plan.gpus)
                machine.start()
        on_demand = OnDemand(plan.out, Path(progress), screen.say)
        with asking_signal(on_demand.signalled):
            ended = run(
                plan.command(), env, progress=Path(progress), ranks=_expected(plan), logs=plan.rank_logs,
                rank_of=rank_of(plan.cluster, Path(progress)), screen=screen, received=received,
                guard=LauncherGuard(lock, aftermath.command_line(plan.out, plan.rank_logs), Path(progress)),
                hangs=hangs, folder=None if plan.checkout is None else plan.checkout.folder, shown=plan.shown,
                on_demand=on_demand,
            )  # fmt: skip
        with aside("asking for a window"):
            on_demand.close()
        with aside("looking at the machine"):
            if machine is not None:
                machine.finish()
        told: list[CaptureFailure] = []
        last: list[Progress] = []
        with aside("listening to the ranks"):
            last = list(read_progress(Path(progress)))
            told = cut_short(last, readable_ranks(plan.out)[0], ended)
            if words is not None:
                told += words.heard()
                words.close()
    reserve.release()
    counted = len(received)

    def let_through() -> None:
        free()
        if len(received) > counted:  # it came when all was over
            signal.raise_signal(received[-1])

    return _record(
        plan, ended, told, last, env, started, fabric, gathering, aside, screen, let_through, advise
    )


def _record(
    plan: Plan,
    ended: TorchrunResult,
    told: list[CaptureFailure],
    last: list[Progress],
    env: dict[str, str],
    started: int,
    fabric: FabricEvidence | None,
    gathering: Gathering | None,
    aside: Aside,
    screen: Screen,
    free: Callable[[], None],
    advise: bool,
) -> int:
    """Keep and tell how the run ended, as far as that succeeds; returns its exit code in any case.

    free: lets signals through again, for what may take long.
    """
    code, ranks, failure = _exit_code(ended, None), list[RankManifest](), None
    here: list[RankManifest] = []
    with aside("saving the machine's topology"):
        if fabric is not None:
            fabric.finish()
    with aside("tidying the evidence"):
        tidy(plan.evidence)
    with aside("gathering the other nodes' files"):
        if gathering is not None:
            gathering.ended(by_signal=ended.signal is not None)
    with aside("reading how the ranks ended"):
        code, ranks, failure = _how_it_ended(plan, ended, told, last, screen)
        here = [rank for rank in ranks if _is_here(plan, rank)]
    status = "hung" if ended.hung else "interrupted" if ended.signal else "failed" if code else "finished"
    with aside("writing run.json"):
        _write_run(
            plan,
            ranks,
            env,
            started,
            status=status,
            code=code,
            failure=failure,
            ended_by=ended.signal,
            told=told,
        )
    for rank in here:
        with aside("writing the ranks' manifests"):
            write_rank(plan.out, rank)
    with aside("removing what was not finished"):
        remove_unfinished(plan.out, here)
    with aside("keeping the logs"):
        _keep_logs(plan, ended, here)
    with aside("letting signals through"):
        free()
    if plan.summarize and not ended.signal:
        with aside("summarising the traces"):
            _summarize(plan, here, screen)
    with aside("sending this node's files"):
        if gathering is not None:
            gathering.send()
    with aside("telling how the run ended"):
        advise = advise and (gathering is None or gathering.first)
        _tell(screen, plan, ranks, ended, told, failure, code, aside, advise)
    return code


def _is_here(plan: Plan, rank: RankManifest) -> bool:
    """Whether a rank ran on this node; hosts may share a name, as containers do."""
    if plan.cluster.nnodes > 1 and plan.cluster.node_rank is not None:
        return rank.rank // plan.cluster.nproc == plan.cluster.node_rank
    return rank.host == host()


def _how_it_ended(
    plan: Plan, ended: TorchrunResult, told: list[CaptureFailure], last: list[Progress], screen: Screen
) -> tuple[int, list[RankManifest], Failure | None]:
    """The run's exit code, its ranks' manifests as they are to be kept, and the rank that failed first."""
    reported = {} if ended.hung else reported_codes(ended.torchrun_log)
    silent = 0 if ended.returncode == 0 else -signal.SIGTERM if ended.signal or ended.hung else None
    readable, unreadable = readable_ranks(plan.out)
    for problem in unreadable:
        screen.say(problem)
    known = with_last_steps(with_failures(readable, told), last)
    ranks = with_exit_codes(known, reported, default=silent)
    ranks = gone_unseen(known, ranks, {one.rank for one in _unrecorded(plan, known) if one.restarted})
    own_end = ended.returncode != 0 and not ended.signal and not ended.hung
    failure = first_failure(ranks, reported) if own_end else None
    code = _exit_code(ended, failure)
    if failure is not None and (leaver := left_early(ranks, ended.gone, failure, reported)) is not None:
        failure, echo = leaver, failure
        screen.say(f"rank {echo.rank} failed with exit code {code}, because rank {leaver.rank} was gone")
        ranks = with_exit_codes(ranks, {leaver.rank: 0}, default=None)
    return code, ranks, failure


def _summarize(plan: Plan, here: list[RankManifest], screen: Screen) -> None:
    from traceops.launch.summarize import summarize_traces  # NumPy and the pipeline, which few runs need

    count, problems = summarize_traces(plan.out, {rank.rank for rank in here if rank.traces})
    for problem in problems:
        screen.say(f"no summary: {problem}")
    screen.say(f"{count} trace{'' if count == 1 else 's'} summarised, each in a *{SUFFIX} beside it")


def _exit_code(ended: TorchrunResult, failure: Failure | None) -> int:
    if ended.hung:
        return HUNG
    if ended.signal is not None:
        return 128 + ended.signal
    if ended.returncode and failure is not None:
        return failure.exit_code
    return shell_code(ended.returncode)


def _keep_logs(plan: Plan, ended: TorchrunResult, here: list[RankManifest]) -> None:
    if plan.rank_logs is None:
        return
    logs = plan.out / "logs"
    logs.mkdir(exist_ok=True)
    if ended.torchrun_log.strip():
        (logs / f"torchrun.{host()}.log").write_text(ended.torchrun_log)
    collect_logs(plan.out, plan.rank_logs, here, host())


def _write_run(
    plan: Plan,
    ranks: list[RankManifest],
    env: dict[str, str],
    started: int,
    *,
    status: str,
    code: int | None = None,
    failure: Failure | None = None,
    ended_by: int | None = None,
    told: Sequence[CaptureFailure] = (),
) -> None:
    document = merge(
        ranks,
        name=plan.name,
        command=["traceops", *sys.argv[1:]],
        argv=plan.trains if plan.checkout is None else plan.checkout.argv,
        environment=environment_that_matters(env),
        versions=software_versions(),
        git=git_state(Path.cwd()) if plan.checkout is None else plan.checkout.git,
        world_size=plan.cluster.world_size,
        nnodes=plan.cluster.nnodes,
        started_ns=started,
        ended_ns=None if status == "running" else time.time_ns(),
        status=status,
        exit_code=code,
        failed_rank=None if failure is None else failure.rank,
        failures=told,
    )
    document = replace(
        document,
        settings=None if plan.settings is None else asdict(plan.settings),
        fallback=None if plan.fallback is None else asdict(plan.fallback),
        signal=None if ended_by is None else signal.Signals(ended_by).name,
        launcher=asdict(Launcher.this()),
        not_recorded=[asdict(one) for one in _unrecorded(plan, ranks)],
    )
    write_json(plan.out / "run.json", asdict(document))


def _unrecorded(plan: Plan, ranks: list[RankManifest]) -> list[Unrecorded]:
    return list(unrecorded(plan.out, [rank.rank for rank in ranks]))


def _tell(
    screen: Screen,
    plan: Plan,
    ranks: list[RankManifest],
    ended: TorchrunResult,
    told: list[CaptureFailure],
    failure: Failure | None,
    code: int,
    aside: Aside,
    advise: bool,
) -> None:
    if failure is not None:
        where = next((f" on {rank.host}" for rank in ranks if rank.rank == failure.rank), "")
        what = "failed" if failure.exit_code else "ended"
        code_words = f"exit code {failure.exit_code}"
        reason = "" if failure.reason == code_words else f": {failure.reason}"
        screen.say(f"rank {failure.rank}{where} {what} first, {code_words}{reason}")
        log = plan.out / "logs" / f"rank_{failure.rank}.stderr.log"
        if log.exists() and not plan.shown.shows(failure.rank, failure.rank):
            show_end(screen, log, LineSource(plan.shown.mark(failure.rank, failure.rank), error=True))
        if log.exists():
            screen.say(f"its output is in {short_path(log)}")
        with aside("finding the cause"):
            tell_cause(plan, screen)
    elif ended.hung:
        screen.say(f"hang: the job was ended; evidence is in {short_path(plan.evidence)}")
        screen.say(f"next: traceops diagnose {short_path(plan.out)}")
    elif code and not ended.signal:
        if plan.launcher == "none":  # it has said itself what it had to say
            screen.say(f"the command ended with {code}; no rank was seen to fail")
        else:
            screen.say(f"torchrun ended with {ended.returncode} and named no rank; its last words:")
            tail = ended.torchrun_log.splitlines(keepends=True)[-_TAIL_LINES:]
            screen.output("".join(tail).encode(), LineSource(error=True))
            with aside("finding the cause"):
                tell_cause(plan, screen)
    elif ended.saved and (saved := saved_evidence(plan.evidence)):
        screen.say(f"saved before the end, in {short_path(plan.evidence)}: {saved}")
        screen.say(f"next: traceops diagnose {short_path(plan.out)}")
    for note in sorted({rank.note for rank in ranks if rank.note}):
        screen.say(note)
    for sentence in unrecorded_sentences(asdict(one) for one in _unrecorded(plan, ranks)):
        screen.say(sentence)
    for who, early in by_cause(early_ends(ranks, told)):
        several = "s" if len(who) > 1 else ""
        screen.say(
            f"the capture of rank{several} {', '.join(map(str, who))} ended early: {cause_text(early)}"
        )
        screen.say(f"next time: {advice_text(early)}")
    for line in steps_told(ranks):
        screen.say(line)
    traced = sum(has_whole_steps(rank) for rank in ranks)
    what = "recorded a whole step" if not traced and any(rank.traces for rank in ranks) else "traced"
    world = plan.cluster.world_size
    if plan.launcher == "none":
        world = max((rank.world_size for rank in ranks), default=0)
    if not world:
        screen.say(_NOBODY)
        if not code:
            screen.say(f"next time: {UNSEEN_STEPS_ADVICE}")
    screen.say(f"{traced} of {world} ranks {what} in {short_path(plan.out)}")
    elsewhere = world - len(ranks)
    if plan.cluster.nnodes > 1 and elsewhere > 0 and not plan.gather:
        screen.say(
            f"{elsewhere} ranks left nothing in this folder. If the nodes do not share it, --gather sends their files "
            "to the first node"
        )
    if not traced and (shorter := would_fit(ranks)) is not None:
        screen.say(f"next: run it again with {shorter.flags}")
    if failure is not None and any(plan.evidence.glob("flight_recorder_*")):
        screen.say(f"next: traceops diagnose {short_path(plan.out)}, if another rank may be the cause")
    elif advise and traced and not ended.hung and not ended.saved:
        screen.say(f"next: traceops analyze {short_path(plan.out)}")
