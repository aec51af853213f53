"""Runs jobs on every node, alone or over all of them, joins their trials, and assesses them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.across.links import LinkReference as Link
from traceops.across.links import link_by_name
from traceops.core.claims import reason
from traceops.doctor.job import OF_ONE_DEVICE, STAGES, Backend, FailureCause, Job, Rendezvous
from traceops.doctor.model import BAD, EnvironmentChange, Outcome, PairState, Trial
from traceops.doctor.nodes import MEET_S, Nodes
from traceops.fabric.model import Machine, Measured

RunJob = Callable[..., tuple[Trial, ...]]
Scope = Literal["node", "all"]  # each node by itself, at the same time; one job over all nodes
_WORST: tuple[Outcome, ...] = ("hung", "failed", "wrong", "not_evaluated", "ok")
# A rank that never came to a pair was held up elsewhere: the one that waited for it there is not to blame.
_WORST_OF_PAIR: tuple[Outcome, ...] = ("wrong", "not_evaluated", "hung", "failed", "ok")


class Runner(Struct, frozen=True):
    """What every job of a checkup has in common. gpus: of this node, as nvidia-smi counts, in CUDA's order; empty for
    the CPU. devices: which of them take part, as CUDA counts (ranks, on the CPU). counts: devices of each node."""

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

    def job(
        self, stages: Collection[str], change: EnvironmentChange, deadlines_s: Mapping[str, float],
        sizes: tuple[int, ...] = (), budget_s: float = 10.0,
    ) -> Job:  # fmt: skip
        """A job on this node that tests these stages under a change; the other fields are those of Job."""
        ordered = tuple(stage for stage in STAGES if stage in stages)
        return Job(
            ordered, self.devices, self.backend, change.set, change.unset, None,
            deadlines_s, sizes, budget_s, self.tested,
        )  # fmt: skip

    def run(self, scope: Scope, job: Job, logs: Any = None) -> tuple[Trial, ...]:
        """The trials of all nodes: of each node its own, or one set of the job over all. logs: folder for the job's
        logs. Raises NodeError where a node does not answer long after this one is done."""
        over_all = scope == "all" and len(self.counts) > 1
        if over_all:
            port = self.nodes.first(_free_port() if self.nodes.leads else 0, int)
            identity, counts = self.nodes.identity, self.counts
            meeting = Rendezvous(identity.address, port, sum(counts[: identity.node]), sum(counts))
            job = replace(job, rendezvous=meeting)
        own = self.run_job(job, self.environ, *([] if logs is None else [logs]))
        if over_all:
            return merged(self._gather(own, job), self.nodes.hosts)
        return self.share(tuple(self._as_counted(trial) for trial in own), job)

    def own(self, job: Job) -> tuple[Trial, ...]:
        """The trials of this node, which no other is told of."""
        return tuple(self._as_counted(trial) for trial in self.run_job(job, self.environ))

    def share(self, own: tuple[Trial, ...], job: Job) -> tuple[Trial, ...]:
        """The trials of all nodes, with the host of each, from this node's. Raises NodeError as `run` does."""
        of_nodes = self._gather(own, job)
        if len(of_nodes) == 1:
            return of_nodes[0]
        pairs = zip(of_nodes, self.nodes.hosts, strict=True)
        return tuple(replace(trial, hosts=(host,)) for node, host in pairs for trial in node)

    def _gather(self, own: tuple[Trial, ...], job: Job) -> tuple[tuple[Trial, ...], ...]:
        # A job that hangs on another node goes on for the deadline of one stage.
        longest = max(job.deadline_s(stage) for stage in job.stages)
        return self.nodes.gather(own, tuple[Trial, ...], longest + MEET_S / 2)

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


def nodes_that_work(runner: Runner, trials: Sequence[Trial]) -> tuple[str, ...]:
    """Of several nodes those whose GPUs work together, by the trials with the environment as it is."""
    bad = {trial.hosts for trial in trials if trial.outcome in BAD}
    each = zip(runner.nodes.hosts, runner.counts, strict=True)
    return tuple(host for host, count in each if count > 1 and not bad & {(host,), ()})


def merged(of_nodes: Sequence[tuple[Trial, ...]], hosts: Sequence[str]) -> tuple[Trial, ...]:
    """One trial a stage from what each node says of a job over all of them: the worst outcome counts."""
    result = []
    for same in zip(*of_nodes, strict=True):
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
                measured=slowest_rows(row for trial in same for row in trial.measured),
                transports=tuple(dict.fromkeys(way for trial in same for way in trial.transports)),
                pairs=_worst_pairs(same),
                failed=tuple(rank for trial in same for rank in trial.failed),
                cause=next((trial.cause for _, trial in blamed if bad and trial.cause), None),
            )
        )
    return tuple(result)


def slowest_rows(rows: Iterable[Measured]) -> tuple[Measured, ...]:
    """Every rank and node reports the collectives that it takes part in, each end of a pair its own: the slowest."""
    slowest: dict[tuple[str, tuple[int, ...], int], Measured] = {}
    for row in rows:
        key = (row.op, row.gpus, row.bytes)
        if key not in slowest or slowest[key].time_us < row.time_us:
            slowest[key] = row
    return tuple(slowest.values())


def _worst_pairs(same: Sequence[Trial]) -> tuple[PairState, ...]:
    worst: dict[tuple[int, int], PairState] = {}
    for state in (state for trial in same for state in trial.pairs):
        known = worst.setdefault(state.gpus, state)
        worst[state.gpus] = min(known, state, key=lambda one: _WORST_OF_PAIR.index(one.outcome))
    return tuple(worst.values())


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port


FAR_BELOW = 0.5  # of what the link gives: nothing computes beside these transfers
OF_ITS_PAST = 0.7  # of what these GPUs gave before: repetitions differ by 1 to 2 %
OF_SIBLINGS = 0.5
_OF_THE_NETWORK = {"nccl": 0.1, "gloo": 0.03}  # of the fastest network device's speed: TCP may reach little more
_SLOWEST_NETWORK_GBS = 0.05  # half of what 1 Gbit/s gives: slow wherever nobody knows the network's speed
_LEAST_SIBLINGS = 3
_MOST_SHARED = 3

Pair = tuple[int, int]


class Assessment(Struct, frozen=True):
    """failed: stages with a bad outcome. large: the all-reduce of most devices and bytes. bad_pairs: where some are
    right and others not. slow_pairs: less than half of what pairs with the same kind of path reach. hopeless: why no
    setting can help. cause: the kind of it. named: the up to three devices that failed of themselves while most did
    not."""

    failed: frozenset[str] = frozenset()
    transports: frozenset[str] = frozenset()
    large: Measured | None = None
    bad_pairs: tuple[Pair, ...] = ()
    slow_pairs: tuple[Pair, ...] = ()
    hopeless: str = ""
    cause: FailureCause | None = None
    named: tuple[int, ...] = ()

    @property
    def one_device(self) -> bool:
        """Whether what no setting can help against may be true of one device only."""
        return self.cause in OF_ONE_DEVICE

    @property
    def gbs(self) -> float | None:
        return None if self.large is None else self.large.busbw_gbs


def assess(trials: Sequence[Trial], machine: Machine | None = None) -> Assessment:
    """What the trials of one configuration on one node, or on all nodes together, mean."""
    bad = [trial for trial in trials if trial.outcome in BAD]
    tested = [state for trial in trials for state in trial.pairs]
    bad_pairs = [state.gpus for state in tested if state.outcome in BAD]
    if len(bad_pairs) == sum(state.outcome != "not_evaluated" for state in tested):
        bad_pairs = []  # all of them: nothing that tells one from another
    rows = [row for trial in trials for row in trial.measured]
    # What the first trial says that no setting can help against, and what kind of cause that is.
    hopeless, cause = next(((trial.message, trial.cause) for trial in bad if trial.cause), ("", None))
    few = [trial.failed for trial in bad if 0 < len(trial.failed) <= min(_MOST_SHARED, (len(trial.gpus) - 1) // 2)]
    return Assessment(
        frozenset(trial.name for trial in bad), frozenset(way for trial in trials for way in trial.transports),
        large_all_reduce(rows), tuple(bad_pairs), slow_pairs(rows, machine), hopeless, cause,
        named=next(iter(few), ()),
    )  # fmt: skip


def assess_each(trials: Sequence[Trial], hosts: Sequence[str], machines: Sequence[Machine]) -> Assessment:
    """What the trials of nodes by themselves mean: what failed on any, and the slowest one's bandwidth."""
    if len(machines) == 1:
        return assess(trials, machines[0])
    each = [
        assess([trial for trial in trials if trial.hosts == (host,)], machine)
        for host, machine in zip(hosts, machines, strict=True)
    ]
    known = [one.large for one in each if one.large is not None]
    return Assessment(
        frozenset(stage for one in each for stage in one.failed),
        frozenset(way for one in each for way in one.transports),
        min(known, key=lambda row: row.busbw_gbs, default=None),
        tuple(pair for one in each for pair in one.bad_pairs),
        tuple(pair for one in each for pair in one.slow_pairs),
        hopeless=next((one.hopeless for one in each if one.hopeless), ""),
        cause=next((one.cause for one in each if one.hopeless), None),
    )


def large_all_reduce(rows: Sequence[Measured]) -> Measured | None:
    """The all-reduce over most devices of most bytes; the slowest of several."""
    found = [row for row in rows if row.op == "all_reduce"]
    return max(found, key=lambda row: (len(row.gpus), row.bytes, -row.busbw_gbs), default=None)


def slow_pairs(rows: Sequence[Measured], machine: Machine | None) -> tuple[Pair, ...]:
    """Pairs whose slower way gives less than half of the median of pairs that are joined alike."""
    ways: dict[Pair, float] = {}
    for row in rows:
        if row.op == "send_recv" and len(row.gpus) == 2:
            pair = (min(row.gpus), max(row.gpus))
            ways[pair] = min(row.busbw_gbs, ways.get(pair, row.busbw_gbs))
    alike: dict[str, list[Pair]] = {}
    for one, other in sorted(ways):
        path = machine.path(f"GPU{one}", f"GPU{other}") if machine else None
        alike.setdefault(f"{path.kind}{path.count or ''}" if path else "", []).append((one, other))
    return tuple(
        pair
        for siblings in alike.values()
        if len(siblings) >= _LEAST_SIBLINGS
        for pair in siblings
        if ways[pair] < OF_SIBLINGS * median(ways[other] for other in siblings)
    )


def shared_by(pairs: Sequence[Pair]) -> tuple[int, ...]:
    """The up to three devices of which every pair has one; none where others, as few, would do as well."""
    devices = sorted({device for pair in pairs for device in pair})
    for count in range(1, min(len(devices), _MOST_SHARED + 1)):
        if found := [some for some in combinations(devices, count) if all(set(some) & set(pair) for pair in pairs)]:
            return found[0] if len(found) == 1 else ()
    return ()


def shared_text(shared: Sequence[int]) -> str:
    """'GPU2 is in all of them', 'GPU2 or GPU5 is in each of them', of what pairs share; empty where that is nothing."""
    names = " or ".join(f"GPU{gpu}" for gpu in shared)
    return reason("doctor", "shared", gpus=names, count=len(shared)) if shared else ""


def to_leave_out(bad_pairs: Sequence[Pair]) -> tuple[int, ...]:
    """Devices without which no bad pair is left: again and again the one that is in most, the last of several."""
    left, out = list(bad_pairs), []
    while left:
        counts = Counter(device for pair in left for device in pair)
        out.append(max(counts, key=lambda device: (counts[device], device)))
        left = [pair for pair in left if out[-1] not in pair]
    return tuple(sorted(out))


def expected_gbs(
    machine: Machine, gpus: Sequence[int], backend: Backend, before: Measured | None
) -> tuple[float, float]:
    """Bus bandwidth from which a large all-reduce of these devices is not slow, GB/s: in the host, and between hosts.
    before: what they gave earlier. 0 where nothing is known to compare with."""
    link = link_of(machine, gpus) if backend == "nccl" else None
    inside = 0.0 if link is None else FAR_BELOW * link.busbw_gbs
    if before is not None:
        inside = max(inside, OF_ITS_PAST * before.busbw_gbs)
    speeds = [nic.speed_gbs for nic in machine.nics if nic.speed_gbs and nic.up is not False]
    return inside, max(speeds) * _OF_THE_NETWORK[backend] if speeds else _SLOWEST_NETWORK_GBS


def link_of(machine: Machine, gpus: Sequence[int]) -> Link | None:
    """The NVLink between these GPUs and the bus bandwidth it should give; None where not all have one."""
    names = {gpu.name for gpu in machine.gpus if gpu.index in gpus}
    paths = [machine.path(f"GPU{one}", f"GPU{other}") for one, other in combinations(gpus, 2)]
    if len(names) != 1 or not paths or any(path is None or path.kind != "NV" for path in paths):
        return None
    return link_by_name(names.pop(), len(gpus))
