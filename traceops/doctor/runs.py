"""Runs jobs on every node, alone or over all of them, and joins their trials."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.doctor.job import STAGES, Backend, Job, Rendezvous
from traceops.doctor.model import BAD, EnvironmentChange, Outcome, Trial
from traceops.doctor.nodes import MEET_S, Nodes

RunJob = Callable[..., tuple[Trial, ...]]
Scope = Literal["node", "all"]  # each node by itself, at the same time; one job over all nodes
_WORST: tuple[Outcome, ...] = ("hung", "failed", "wrong", "not_evaluated", "ok")
_SAME: EnvironmentChange = EnvironmentChange()


class JobRequest(Struct, frozen=True):
    """What a job is to test, under which change; the fields are those of Job."""

    stages: tuple[str, ...]
    change: EnvironmentChange = _SAME
    deadlines_s: Mapping[str, float] | None = None
    sizes: tuple[int, ...] = ()
    budget_s: float = 10.0


class Runner(Struct, frozen=True):
    """What every job of a checkup has in common.

    gpus: of this node, as nvidia-smi counts, in CUDA's order; empty for the CPU. devices: which of them take part, as
    CUDA counts (ranks, on the CPU). counts: devices of each node.
    """

    nodes: Nodes
    run_job: RunJob
    environ: Mapping[str, str]
    backend: Backend
    gpus: tuple[int, ...]
    devices: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def tested(self) -> tuple[int, ...]:
        """Devices of this node that take part, as nvidia-smi counts."""
        return tuple(self.gpus[device] for device in self.devices) if self.gpus else self.devices

    def run(self, scope: Scope, request: JobRequest, logs: Any = None) -> tuple[Trial, ...]:
        """The trials of all nodes: of each node its own, or one set of the job over all.

        logs: folder for the job's logs. Raises NodeError where a node does not answer long after this one is done.
        """
        rendezvous = self._rendezvous() if scope == "all" and len(self.counts) > 1 else None
        job = self._job(request, rendezvous)
        own = self.run_job(job, self.environ, *([] if logs is None else [logs]))
        if rendezvous is None:
            return self.share(tuple(self._as_counted(trial) for trial in own), request)
        return merged(self._gather(own, job), self.nodes.hosts)

    def own(self, request: JobRequest) -> tuple[Trial, ...]:
        """The trials of this node, which no other is told of."""
        return tuple(self._as_counted(trial) for trial in self.run_job(self._job(request), self.environ))

    def share(self, own: tuple[Trial, ...], request: JobRequest) -> tuple[Trial, ...]:
        """The trials of all nodes, with the host of each, from this node's. Raises NodeError as `run` does."""
        told = self._gather(own, self._job(request))
        if len(told) == 1:
            return told[0]
        pairs = zip(told, self.nodes.hosts, strict=True)
        return tuple(replace(trial, hosts=(host,)) for node, host in pairs for trial in node)

    def _gather(self, own: tuple[Trial, ...], job: Job) -> tuple[tuple[Trial, ...], ...]:
        # A job that hangs on another node goes on for the deadline of one stage.
        longest = max(job.deadline_s(stage) for stage in job.stages)
        return self.nodes.gather(own, tuple[Trial, ...], longest + MEET_S / 2)

    def _job(self, request: JobRequest, rendezvous: Rendezvous | None = None) -> Job:
        return Job(
            request.stages, self.devices, self.backend, request.change.set, request.change.unset, rendezvous,
            request.deadlines_s or {}, request.sizes, request.budget_s, self.tested,
        )  # fmt: skip

    def _rendezvous(self) -> Rendezvous:
        port = self.nodes.first(_free_port() if self.nodes.leads else 0, int)
        node = self.nodes.identity.node
        return Rendezvous(self.nodes.identity.address, port, sum(self.counts[:node]), sum(self.counts))

    def _as_counted(self, trial: Trial) -> Trial:
        """With GPUs as nvidia-smi counts them, whichever of them are visible."""
        if not self.gpus:
            return trial

        def named(devices: Sequence[int]) -> tuple[int, ...]:
            return tuple(self.gpus[device] for device in devices)

        return replace(
            trial,
            gpus=named(trial.gpus),
            failed=named(trial.failed),
            measured=tuple(replace(row, gpus=named(row.gpus)) for row in trial.measured),
            pairs=tuple(
                replace(state, gpus=(self.gpus[state.gpus[0]], self.gpus[state.gpus[1]])) for state in trial.pairs
            ),
        )


def stages_of(*names: str) -> tuple[str, ...]:
    """These stages in the order in which a job runs them."""
    return tuple(stage for stage in STAGES if stage in names)


def nodes_that_work(runner: Runner, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Of several nodes those whose GPUs work together, by the trials with the environment as it is."""
    bad = {trial.hosts for trial in trials if trial.outcome in BAD}
    each = zip(runner.nodes.hosts, runner.counts, strict=True)
    return tuple(host for host, count in each if count > 1 and not bad & {(host,), ()})


def merged(told: Sequence[tuple[Trial, ...]], hosts: Sequence[str]) -> tuple[Trial, ...]:
    """One trial a stage from what each node says of a job over all of them: the worst outcome counts."""
    result = []
    for same in zip(*told, strict=True):
        worst = min(same, key=lambda trial: _WORST.index(trial.outcome))
        bad = worst.outcome in BAD  # who fails at once often says more than who then waits for it until the end
        blamed = [(host, trial) for host, trial in zip(hosts, same, strict=True) if not bad or trial.outcome in BAD]
        messages = dict.fromkeys(f"{host}: {trial.message}" for host, trial in blamed if trial.message)
        said = (f"{host}: {line}" for host, trial in zip(hosts, same, strict=True) for line in trial.said)
        result.append(
            replace(
                worst,
                hosts=tuple(hosts),
                gpus=tuple(range(sum(len(trial.gpus) for trial in same))),
                seconds=max(trial.seconds for trial in same),
                message="; ".join(messages),
                said=tuple(dict.fromkeys(said)),
                measured=_each_once([row for trial in same for row in trial.measured]),
                transports=tuple(dict.fromkeys(way for trial in same for way in trial.transports)),
                pairs=_worst_pairs(same),
                failed=tuple(rank for trial in same for rank in trial.failed),
                cause=next((trial.cause for _, trial in blamed if bad and trial.cause), None),
            )
        )
    return tuple(result)


def _each_once(rows: Sequence[Any]) -> tuple[Any, ...]:
    """Every node reports the collectives of all: the slowest counts."""
    slowest: dict[Any, Any] = {}
    for row in rows:
        key = (row.op, row.gpus, row.bytes)
        if key not in slowest or slowest[key].time_us < row.time_us:
            slowest[key] = row
    return tuple(slowest.values())


def _worst_pairs(same: Sequence[Trial]) -> tuple[Any, ...]:
    worst: dict[tuple[int, int], Any] = {}
    for state in (state for trial in same for state in trial.pairs):
        known = worst.get(state.gpus)
        if known is None or _bad_first(state.outcome) < _bad_first(known.outcome):
            worst[state.gpus] = state
    return tuple(worst.values())


def _bad_first(outcome: Outcome) -> int:
    """A rank that never came to a pair was held up elsewhere: the one that waited for it there is not to blame."""
    return ("wrong", "not_evaluated", "hung", "failed", "ok").index(outcome)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port
