"""A run, decided: its command and environment, the doctor's settings, and one rank in place of many."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from traceops.capture.environment import host
from traceops.capture.manifest import GitState
from traceops.capture.progress import read_progress
from traceops.capture.settings import ENV
from traceops.core.as_module import command_of
from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.installation import PACKAGE
from traceops.core.rank_files import RANKS_ENV, effective_batches
from traceops.doctor.settings import read_settings
from traceops.fabric import fabric
from traceops.launch.forward import ALL_SHOWN, RankOf, Shown
from traceops.launch.launchers import HangTimeouts
from traceops.train.config import TrainConfig
from traceops.train.strategies import MESHES
from traceops.words.catalogue import fill

_text = Wording("launch", "fallback")
# DistributedDataParallel works with one rank, where it has nothing to send.
STRATEGY = "pytorch_ddp"
_ACCUMULATIONS = (1, 2, 4, 8)
_BATCHES = (1, 4, 16, 64)


class Fallback(Struct, frozen=True):
    """What became of a run that one rank does alone. ranks: that it would have had, which RANKS_ENV tells the script.
    batch_size: of a micro-batch. grad_accum: micro-batches a step; both None for a script, which decides itself.
    strategy: in use, None for a script; asked: the one in whose place it is used."""

    ranks: int
    grad_accum: int | None = None
    strategy: str | None = None
    asked: str | None = None
    kind: str = "single"
    batch_size: int | None = None

    def table(self) -> list[str]:
        """Samples a step with all ranks and here, as lines of a table."""
        if self.grad_accum is not None and self.batch_size is not None:
            return effective_batches(self.ranks, self.grad_accum // self.ranks, self.batch_size)
        lines = [_text("table_head"), f"{'of script':>12}  {'':5}" + "".join(f"  {batch:>6}" for batch in _BATCHES)]
        for steps in _ACCUMULATIONS:
            here = steps * self.ranks
            lines.append(f"{steps:>12}  {here:>5}" + "".join(f"  {here * batch:>6}" for batch in _BATCHES))
        return lines

    def line(self) -> str:
        """What was changed, and what is left to the user."""
        if self.grad_accum is None:
            return _text("script", ranks=self.ranks, variable=RANKS_ENV)
        asked = self.asked if self.asked != self.strategy else None
        return _text("own", ranks=self.ranks, strategy=self.strategy, asked=asked, accumulation=self.grad_accum)


def alone(config: TrainConfig, ranks: int) -> tuple[TrainConfig, Fallback]:
    """`config` for one rank that does what `ranks` would do.

    All ranks' shares of the data, which are every n-th sample of one order, are one piece of that order a step:
    the same samples in other micro-batches, so the same gradient but for rounding (and dropout).

    Raises UsageError where profiler steps are micro-batches, and where ranks share a copy of the model.
    """
    if config.step_unit == "batch":
        raise UsageError(fill("launch", "single_batch", "refused"))
    if config.strategy in MESHES:
        raise UsageError(fill("launch", "single_mesh", "refused", strategy=config.strategy))
    changed = replace(config, strategy=STRATEGY, grad_accum=config.grad_accum * ranks, shard_group_size=None)
    return changed, Fallback(ranks, changed.grad_accum, STRATEGY, config.strategy, batch_size=config.batch_size)


def stands_for(nproc: int | None, nnodes: int, node_rank: int | None, told: int | None, here: int) -> int:
    """Ranks that the run would have had. nproc, nnodes, node_rank: as asked for. told: ranks that the doctor's file
    names. here: ranks that this machine would have of itself. Raises UsageError on any node but the first, and for less
    than one rank."""
    if node_rank:
        raise UsageError(f"--fallback single --node-rank {node_rank}: start it once, on the first node only")
    ranks = nproc * nnodes if nproc is not None else told if told is not None else here * nnodes
    if ranks < 1:
        raise UsageError("--nproc and --nnodes must be 1 or more")
    return ranks


class Applied(Struct, frozen=True):
    """Variables to set and to remove before the ranks start, less those that --env decides. source: the file, as the
    user named it. overruled: names that --env decided otherwise."""

    source: str
    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()

    def line(self) -> str:
        """What is applied, for people."""
        parts = [f"{name}={value}" for name, value in self.set.items()]
        if self.unset:
            parts.append(f"without {', '.join(self.unset)}")
        if self.overruled:
            parts.append(f"--env decides {', '.join(self.overruled)}")
        return f"settings of {self.source}: {'; '.join(parts) or 'nothing to change'}"


def read_applied(path: str, extra_env: Mapping[str, str], *, fallback: str | None) -> tuple[Applied, int | None]:
    """The settings in the doctor's file, and the ranks that one is to stand in for where no setting worked. extra_env:
    of --env. fallback: of --fallback. Raises InputError for a file that is not the doctor's, UsageError where it holds
    no setting that works and the user does not ask for the fallback."""
    told = read_settings(path)
    if told.fallback is not None and fallback is None:
        raise UsageError(fill("launch", "no_setting", "refused", path=path, ranks=told.fallback))
    applied = Applied(
        path,
        {name: value for name, value in told.set.items() if name not in extra_env},
        tuple(name for name in told.unset if name not in extra_env),
        tuple(name for name in (*told.set, *told.unset) if name in extra_env),
    )
    return applied, told.fallback


# Of a torchrun that we ourselves stand below: with them each rank of the command would be one of that job.
_OF_TORCHRUN = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip
RANK = PACKAGE / "capture" / "as_script.py"  # what each rank runs, with the user's command
JOINING = PACKAGE / "capture" / "joining"  # first on the PYTHONPATH where the command starts the ranks

# torchrun expands ${rank} itself, for each line that a rank prints.
LOG_PREFIX = "[rank ${rank}] "


class Cluster(Struct, frozen=True):
    """How many processes, where, and how they find each other; None leaves it to torchrun. One node without any of the
    rendezvous settings is launched standalone, on a free port."""

    nproc: int
    nnodes: int = 1
    node_rank: int | None = None
    rdzv_backend: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    master_addr: str | None = None
    master_port: int | None = None

    @property
    def world_size(self) -> int:
        return self.nproc * self.nnodes

    def check(self) -> None:
        """Raise UsageError for settings with which the ranks could not meet."""
        if self.nproc < 1 or self.nnodes < 1:
            raise UsageError(fill("launch", "no_ranks", "refused", nproc=self.nproc, nnodes=self.nnodes))
        if self.nnodes > 1 and self.rdzv_endpoint is None and self.master_addr is None:
            raise UsageError(fill("launch", "no_meeting", "refused", nnodes=self.nnodes))
        static = self.master_addr is not None and self.rdzv_endpoint is None
        if static and self.nnodes > 1 and self.node_rank is None:
            raise UsageError("--master-addr needs --node-rank on each node, 0 on the first")
        if self.node_rank is not None and not 0 <= self.node_rank < self.nnodes:
            raise UsageError(f"--node-rank {self.node_rank}: must be 0 to {self.nnodes - 1}")

    def torchrun_options(self, name: str) -> list[str]:
        """The part of torchrun's command line that says who runs where."""
        options = [f"--nnodes={self.nnodes}", f"--nproc-per-node={self.nproc}"]
        backend, identity = self.rdzv_backend, self.rdzv_id
        if self.rdzv_endpoint is not None:  # the nodes must name one meeting alike
            backend, identity = backend or "c10d", identity or name
        settings = {
            "node-rank": self.node_rank, "rdzv-backend": backend, "rdzv-endpoint": self.rdzv_endpoint,
            "rdzv-id": identity, "master-addr": self.master_addr, "master-port": self.master_port,
        }  # fmt: skip
        given = [f"--{key}={value}" for key, value in settings.items() if value is not None]
        return options + (given or ["--standalone"])


class Checkout(Struct, frozen=True):
    """Another checkout than the working tree, for the ranks to run in. folder: where they start. git: what run.json
    says of the code there. argv: the script and its arguments as the user named them, for run.json: `folder` is gone
    when somebody reads it."""

    folder: Path
    git: GitState
    argv: list[str]


class Plan(Struct, frozen=True):
    """Everything that is needed to start a run, decided.

    capture: the JSON object in TRACEOPS_CAPTURE. extra_env: from --env. trains: the script (or "-m", module)
    and its arguments. limits: when the ranks count as hanging; None does not watch them. checkout: of the code
    that runs; None for the working folder as it is. launcher: who starts the ranks, torchrun or, with "none", the
    command in `trains` itself. summarize: the traces of this node, once it has ended.
    settings: the doctor's. fallback: where one rank stands in for many. gpus: whether the ranks run on them.
    shown: what of their output. gather: on several nodes whether the others' files come to the first one's folder;
    gather_port: at which of its ports, None beside the rendezvous's. beside: another launcher tells of the run in the
    same output, and this one only of what happens to its own ranks. quiet: only what goes wrong is reported.
    stop_at: the training ends once every rank has done so many steps and written its traces; None lets it go on.
    """

    name: str
    out: Path
    cluster: Cluster
    trains: list[str]
    capture: dict[str, Any]
    extra_env: dict[str, str]
    log_files: bool = True
    limits: HangTimeouts | None = None
    checkout: Checkout | None = None
    summarize: bool = False
    settings: Applied | None = None
    fallback: Fallback | None = None
    gpus: bool = False
    launcher: Literal["torchrun", "none"] = "torchrun"
    shown: Shown = ALL_SHOWN
    gather: bool = False
    gather_port: int | None = None
    beside: bool = False
    quiet: bool = False
    stop_at: int | None = None

    @property
    def evidence(self) -> Path:
        """Folder for what is left of a hang, and for what tells which ways NCCL took."""
        return self.out / "evidence"

    @property
    def rank_logs(self) -> Path | None:
        """Folder for the files of what the ranks of this node print, if there are any."""
        if not self.log_files or self.launcher == "none":
            return None
        return self.out / "logs" / f"{host()}.{os.getpid()}"

    def command(self, *, pasted: bool = False) -> list[str]:
        """torchrun, which starts the capture's bootstrap on every rank, which runs the script; or the user's command.
        pasted: into a shell, so that torchrun has to keep and show the ranks' output. Under `traceops run` they print
        into pipes of its own."""
        if self.launcher == "none":
            python = self.trains[0] == "-m" or self.trains[0].endswith(".py")
            return [sys.executable, *self.trains] if python else list(self.trains)
        logs: list[str] = []
        if self.rank_logs is not None and pasted:
            logs = [f"--log-dir={self.rank_logs.parent}", "--tee=3"]
        return [
            *command_of("torch.distributed.run"), *self.cluster.torchrun_options(self.name), *logs,
            # Behind "--": an option of the script's may be short for several of torchrun's (--nproc), which it refuses.
            "--", str(RANK), *self.trains,
        ]  # fmt: skip

    @property
    def removed(self) -> tuple[str, ...]:
        """Variables that the ranks do not inherit."""
        names = [*(self.settings.unset if self.settings else ()), *(fabric.UNSET if self.fallback else ())]
        if self.launcher == "none" and "TORCHELASTIC_RUN_ID" in os.environ:
            names += _OF_TORCHRUN
        return tuple(dict.fromkeys(names))

    def environment(self, environ: Mapping[str, str], **capture: Any) -> dict[str, str]:
        """All variables of the ranks that are started from `environ`; `capture` as in `assignments`."""
        kept = {name: value for name, value in environ.items() if name not in self.removed}
        return {**kept, **self.assignments(kept, **capture)}

    def assignments(self, environ: Mapping[str, str], **capture: Any) -> dict[str, str]:
        """Variables to set on top of `environ`; `capture` adds to the settings of the capture."""
        values = {ENV: json.dumps({"out": str(self.out), **self.capture, **capture})}
        if self.launcher == "torchrun" and "OMP_NUM_THREADS" not in environ and self.cluster.nproc > 1:
            values["OMP_NUM_THREADS"] = "1"  # as torchrun does, without its warning
        if self.rank_logs is not None:
            values["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = LOG_PREFIX
        if (path := python_path(environ)) is not None:
            values["PYTHONPATH"] = path
        if self.fallback is not None:
            values |= fabric.SET
            values[RANKS_ENV] = str(self.fallback.ranks)
        if self.settings is not None:
            values |= self.settings.set
        values |= self.extra_env
        if self.launcher == "none":
            after = values.get("PYTHONPATH") or environ.get("PYTHONPATH")
            values["PYTHONPATH"] = os.pathsep.join([str(JOINING), *([after] if after else [])])
        return values

    def shell(self, environ: Mapping[str, str]) -> str:
        """One line to paste into a shell; run like that, the ranks write run.json themselves."""
        settings = [f"{key}={shlex.quote(value)}" for key, value in self.assignments(environ).items()]
        removed = [word for name in self.removed for word in ("-u", name)]
        return " ".join([*(["env", *removed] if removed else []), *settings, shlex.join(self.command(pasted=True))])


def python_path(environ: Mapping[str, str]) -> str | None:
    """PYTHONPATH with which the ranks find this traceops, or None if it is installed where Python looks."""
    root = PACKAGE.parent
    if root.name in ("site-packages", "dist-packages"):
        return None
    before = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(before if str(root) in before else [*before, str(root)])


def parse_assignments(texts: list[str]) -> dict[str, str]:
    """``KEY=VALUE`` texts as a dict. Raises UsageError for anything else."""
    pairs = [text.partition("=") for text in texts]
    for (key, sign, _), text in zip(pairs, texts, strict=True):
        if not sign or not key.isidentifier():
            said = "".join(takewhile(lambda c: c.isalnum() or c == "_", text))  # the rest may be a secret
            raise UsageError(f"--env {said}…: write it as KEY=VALUE; did you mean {said or 'NCCL_DEBUG'}=1?")
    return {key: value for key, _, value in pairs}


def rank_of(cluster: Cluster, progress: Path) -> RankOf:
    """On several machines, once all ranks of this one have told who they are: torchrun numbers them in one piece.
    progress: folder of their records."""

    def of(local: int) -> int | None:
        if cluster.nnodes == 1:
            return local
        told = [record.rank for record in read_progress(progress)]
        return min(told) + local if len(told) == cluster.nproc else None

    return of
