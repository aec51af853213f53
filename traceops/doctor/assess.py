"""What a set of trials means: what failed, how fast it was, which pairs stand out and which GPU they share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from traceops.analyses.links import LINKS
from traceops.doctor.model import BAD, Trial
from traceops.topology.model import Machine, Measured

FAR_BELOW = 0.5  # of what the link gives: nothing computes beside these transfers
OF_ITS_PAST = 0.7  # of what these GPUs gave before: repetitions differ by 1 to 2 %
OF_SIBLINGS = 0.5
OF_THE_NETWORK = {
    "nccl": 0.1,
    "gloo": 0.03,
}  # of the fastest network device's speed: TCP may reach little more
SLOWEST_NETWORK_GBS = 0.05  # half of what 1 Gbit/s gives: slow wherever nobody knows the network's speed
_LEAST_SIBLINGS = 3
# Messages of trials that no variable of NCCL or gloo can change. A full disk as Python says it: NCCL means /dev/shm.
_NOT_COMMUNICATION = re.compile(
    r"finds no GPU|no GPU \d+: torch sees|was built without|had not imported torch|No module named"
    r"|CUDA out of memory|busy or unavailable|no kernel image|driver version is insufficient"
    r"|OSError: \[Errno \d+\] (No space left|Disk quota exceeded|Too many open files)"
)

Pair = tuple[int, int]


@dataclass(frozen=True)
class Assessment:
    """failed: stages with a bad outcome. large: the all-reduce of most devices and bytes.

    bad_pairs: where some are right and others not. slow_pairs: less than half of what pairs with the same kind of path
    reach. culprit: the one GPU that is in all of them. hopeless: why no setting can help.
    """

    failed: frozenset[str] = frozenset()
    transports: frozenset[str] = frozenset()
    large: Measured | None = None
    bad_pairs: tuple[Pair, ...] = ()
    slow_pairs: tuple[Pair, ...] = ()
    culprit: int | None = None
    hopeless: str = ""

    @property
    def gbs(self) -> float | None:
        return None if self.large is None else self.large.busbw_gbs


def assess(trials: Sequence[Trial], machine: Machine | None = None) -> Assessment:
    """What the trials of one configuration on one node, or on all nodes together, mean."""
    bad = [trial for trial in trials if trial.outcome in BAD]
    tested = [state for trial in trials for state in trial.pairs]
    bad_pairs = [state.gpus for state in tested if state.outcome in BAD]
    if len(bad_pairs) == len([state for state in tested if state.outcome != "not_evaluated"]):
        bad_pairs = []  # all of them: nothing that tells one from another
    rows = [row for trial in trials for row in trial.measured]
    slow = slow_pairs(rows, machine)
    hopeless = [
        trial.message for trial in bad if _NOT_COMMUNICATION.search(" ".join((trial.message, *trial.said)))
    ]
    return Assessment(
        frozenset(trial.name for trial in bad),
        frozenset(way for trial in trials for way in trial.transports),
        large_all_reduce(rows),
        tuple(bad_pairs),
        slow,
        shared_by(bad_pairs or slow),
        hopeless[0] if hopeless else "",
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


def shared_by(pairs: Sequence[Pair]) -> int | None:
    """The one device that is in all of several pairs."""
    common = set.intersection(*map(set, pairs)) if len(pairs) > 1 else set()
    return common.pop() if len(common) == 1 else None


def link_gbs(machine: Machine, gpus: Sequence[int]) -> tuple[str, float] | None:
    """The NVLink between these GPUs and the bus bandwidth it should give, GB/s; None where not all have one."""
    names = {gpu.name for gpu in machine.gpus if gpu.index in gpus}
    paths = [machine.path(f"GPU{one}", f"GPU{other}") for one, other in combinations(gpus, 2)]
    if len(names) != 1 or not paths or any(path is None or path.kind != "NV" for path in paths):
        return None
    name = names.pop() or ""
    return next(((link, gbs) for pattern, link, gbs in LINKS if re.search(pattern, name)), None)
