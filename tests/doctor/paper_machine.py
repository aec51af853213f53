"""A machine with GPUs that exists on paper only: what its jobs give under any variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from changed import replace

from traceops.core.rule import Verdict
from traceops.doctor.checkup import Options, Tools, check_up
from traceops.doctor.job import Job, foreign_cause
from traceops.doctor.model import Checkup, Outcome, PairState, Trial
from traceops.doctor.nodes import NodeIdentity, Nodes
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Measured, Path
from traceops.machine.look import Look

Way = tuple[str, float]  # the transport NCCL takes and an all-reduce's bus bandwidth over it, GB/s
NVLINK: Way = ("P2P/CUMEM", 350.0)


def way_of(environ: Mapping[str, str]) -> Way:
    """As on 4 H200: NVLink, else shared memory, else sockets."""
    if environ.get("NCCL_P2P_DISABLE") != "1":
        return NVLINK
    return ("SHM", 40.0) if environ.get("NCCL_SHM_DISABLE") != "1" else ("NET/Socket", 3.0)


@dataclass
class PaperMachine:
    """starts: why a job with these variables does not start, None where it does. outcome: of the sums then.

    bad_gpus: whose pairs give wrong sums, and bad_pairs more of them. broken: why a GPU fails in any job, also alone.
    alone: whether `starts` holds for one GPU of several as well. jobs: all that were run.
    """

    gpus: int = 4
    way: Callable[[Mapping[str, str]], Way] = way_of
    starts: Callable[[Mapping[str, str]], str | None] = lambda environ: None
    sums: Callable[[Mapping[str, str]], Outcome] = lambda environ: "ok"
    bad_gpus: tuple[int, ...] = ()
    bad_pairs: tuple[tuple[int, int], ...] = ()
    broken: Mapping[int, str] = field(default_factory=dict)
    alone: bool = True
    nvlink: bool = True
    slow_pairs: tuple[tuple[int, int], ...] = ()
    jobs: list[Job] = field(default_factory=list)
    now: float = 0.0  # of its own clock: processes take 8 s to start, a test 1 s or, if it hangs, its deadline
    _began: float = 0.0

    @property
    def machine(self) -> Machine:
        kind = Path("NV", 18) if self.nvlink else Path("PHB")
        pairs = combinations(range(self.gpus), 2)
        return Machine(
            "paper",
            tuple(Gpu(index, "NVIDIA H200", uuid=f"GPU-{index}{index}{index}") for index in range(self.gpus)),
            paths={(f"GPU{one}", f"GPU{other}"): kind for one, other in pairs},
        )

    def run_job(self, job: Job, environ: Mapping[str, str], logs: Any = None) -> tuple[Trial, ...]:
        before, alone = self.jobs[-1:], len(job.devices) == 1 < self.gpus
        if not (alone and before and len(before[0].devices) == 1):
            self._began = self.now
        trials = self._trials(job, environ)
        took = 8.0 + sum(_took(trial) for trial in trials)
        # GPUs are tested alone side by side: the longest counts.
        self.now = max(self.now, self._began + took)
        return trials

    def _trials(self, job: Job, environ: Mapping[str, str]) -> tuple[Trial, ...]:
        self.jobs.append(job)
        kept = {name: value for name, value in environ.items() if name not in job.unset} | job.set
        names = kept.get("CUDA_VISIBLE_DEVICES")
        seen = [int(name) for name in names.split(",")] if names else list(range(self.gpus))
        real = [seen[device] for device in job.devices]
        way, gbs = self.way(kept)
        why = self.starts(kept) if self.alone or len(real) > 1 or self.gpus == 1 else None
        why = next((self.broken[gpu] for gpu in real if gpu in self.broken), why)
        if why is not None:
            return tuple(self._not_run(job, stage, why) for stage in job.stages)
        wrong = {
            (one, other)
            for one, other in combinations(job.devices, 2)
            if {seen[one], seen[other]} & set(self.bad_gpus) or (seen[one], seen[other]) in self.bad_pairs
        }
        bad = bool(wrong)
        trials = []
        for stage in job.stages:
            trial = Trial(
                stage, "ok", job.devices, 1.0, job.deadline_s(stage), set=job.set, unset=job.unset, transports=(way,)
            )  # fmt: skip
            if stage == "all_reduce":
                trial = replace(trial, outcome="wrong" if bad else self.sums(kept))
            elif stage == "pairs":
                states = tuple(
                    PairState(pair, "wrong" if pair in wrong else "ok") for pair in combinations(job.devices, 2)
                )
                trial = replace(trial, pairs=states, outcome="wrong" if bad else "ok")
            elif stage == "sweep" and len(real) > 1:
                sizes = job.sizes or (1 << 20, 1 << 28)
                rows = [Measured("all_reduce", job.devices, size, 9.0, gbs, "paper") for size in sizes]
                trial = replace(trial, measured=tuple(rows))
            elif stage == "pair_bandwidth":
                rows = [
                    Measured("send_recv", ends, 1 << 27, 9.0, 20.0 if ends in self.slow_pairs else 200.0, "paper")
                    for ends in combinations(job.devices, 2)
                ]
                trial = replace(trial, measured=tuple(rows))
            trials.append(trial)
            if trial.outcome == "hung":
                rest = job.stages[len(trials) :]
                return (*trials, *(self._not_run(job, stage, "") for stage in rest))
        return tuple(trials)

    def _not_run(self, job: Job, stage: str, why: str) -> Trial:
        outcome: Outcome = "failed" if why and stage == "start" else "not_evaluated"
        return Trial(
            stage, outcome, job.devices, 45.0, job.deadline_s(stage), why, set=job.set, unset=job.unset,
            cause=("no_gpu" if "finds no GPU" in why else foreign_cause(why)) if outcome == "failed" else None,
        )  # fmt: skip

    def check_up(self, environ: Mapping[str, str] | None = None, nodes: Nodes | None = None, **options: Any) -> Checkup:
        def judge(fabric: Fabric, circumstances: Any) -> list[Verdict]:
            return [Verdict("TO-P001", clear="on paper")]

        looks = (Look("paper", "GPU", "GPUs", f"{self.gpus}"),)
        tools = Tools(lambda environ: (self.machine, looks), self.run_job, judge, lambda folder: None, lambda e: 0)
        return check_up(Options(**options), environ or {}, nodes or Nodes(NodeIdentity()), tools)

    @property
    def tried(self) -> list[tuple[dict[str, str], tuple[str, ...]]]:
        """The changes of all jobs, in order."""
        return [(job.set, job.unset) for job in self.jobs if job.set or job.unset]


def _took(trial: Trial) -> float:
    return trial.deadline_s if trial.outcome == "hung" else 1.0 if trial.outcome == "ok" else 0.0
