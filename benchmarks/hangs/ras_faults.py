"""Replays the planted hangs of docs/hangs.md as NCCL's RAS would report them, and scores who is named from that alone.

python -m benchmarks.hangs.ras_faults

A report is made of each fault's truth: how many operations of each kind every rank has launched, and whose process does
not answer. It has the text and the JSON that ncclras prints (tests/ras_text.py).
"""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks import ROOT
from traceops.core.errors import InputError
from traceops.hangs.discover import find_evidence

sys.path.insert(0, str(ROOT / "tests"))
ras_text: Any = importlib.import_module("ras_text")

# The planted jobs of docs/hangs.md, by fault.
JOBS = {
    "sleep": 7, "loader": 3, "lock": 3, "gil": 9, "stop": 3, "skip": 3, "op": 7, "size": 3, "gpu": 8, "gpu_sync": 3,
    "exit0": 5, "exit3": 7, "raise": 5, "kill": 7, "init": 3, "none": 8,
}  # fmt: skip
# A stopped process does not answer, and one that is gone neither. Where the host is stuck, NCCL's own thread answers.
SILENT = ("stop", "exit0", "exit3", "raise", "kill")
# Their hosts call what the others call, so the counts are alike.
ALIKE = ("size", "gpu", "init", "none")
SHAPES = (("ddp", 4), ("fsdp2", 4), ("hsdp", 4), ("ddp", 2), ("fsdp2", 2))
Form = Literal["text", "json"]
_RANKS = re.compile(r"^Ranks? (\d[\d, –-]*)")
_STEPS = 6
_NAMES: dict[Form, str] = {"text": "ras.txt", "json": "ras.json"}


@dataclass(frozen=True)
class Job:
    """One planted job: its fault on `rank` of `ranks`."""

    fault: str
    strategy: str
    ranks: int
    rank: int

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Communicators by their members: HSDP shards inside halves of the world and replicates across them."""
        everybody = tuple(range(self.ranks))
        half = self.ranks // 2
        if self.strategy != "hsdp":
            return (everybody,)
        return (everybody, everybody[:half], everybody[half:], *((i, i + half) for i in range(half)))


def jobs() -> Iterator[Job]:
    """As many of each fault as were planted, over the strategies and ranks in turn."""
    for fault, count in JOBS.items():
        for number in range(count):
            strategy, ranks = SHAPES[number % len(SHAPES)]
            yield Job(fault, strategy, ranks, (number + 1) % ranks)


def counts(job: Job, group: tuple[int, ...]) -> dict[int, dict[str, int]]:
    """Operations that each member has launched, by its place in the communicator; of who answers.

    Every step has three of each kind that the group is used for, and an all-reduce of metrics over all ranks.
    """
    kinds = {"ddp": ("AllReduce",), "fsdp2": ("AllGather", "ReduceScatter"), "hsdp": ("AllGather", "ReduceScatter")}
    used = kinds[job.strategy]
    of_all = len(group) == job.ranks
    if job.strategy == "hsdp":
        inside = group[-1] - group[0] == 1
        used = () if of_all else kinds["hsdp"] if inside else ("AllReduce",)
    launched: dict[int, dict[str, int]] = {}
    for place, rank in enumerate(group):
        its = Counter(dict.fromkeys(used, 3 * _STEPS + 2))
        if of_all:
            its["AllReduce"] += _STEPS + 1
        if rank == job.rank and job.fault not in (*ALIKE, *SILENT):
            _go_wrong(job.fault, its, of_all)
        if not (rank == job.rank and job.fault in SILENT):
            launched[place] = dict(its)
    return launched


def _go_wrong(fault: str, its: Counter[str], of_all: bool) -> None:
    if fault not in ("skip", "op"):  # it stopped before the step that the others have begun
        for op in its:
            its[op] -= 2
    elif of_all:
        its["AllReduce"] -= 1
        its["AllGather"] += fault == "op"


def report(job: Job, form: Form) -> str:
    """What ncclras would print; of a job whose ranks never met no communicator."""
    groups = () if job.fault == "init" else job.groups
    made = {f"{number + 1:x}a": counts(job, group) for number, group in enumerate(groups)}
    silent = job.rank if job.fault in SILENT else None
    missing = {
        f"{number + 1:x}a": (group.index(silent),)
        for number, group in enumerate(groups)
        if silent is not None and silent in group
    }
    text: str = (ras_text.report if form == "text" else ras_text.report_json)(made, missing)
    return text


def named(job: Job, form: Form, folder: Path) -> set[int]:
    """The ranks of the job that traceops names from the report alone."""
    path = folder / _NAMES[form]
    path.write_text(report(job, form))
    try:
        log = find_evidence(path).log
    except InputError:  # nothing in it tells of trouble
        return set()
    groups = {f"{number + 1:x}a": group for number, group in enumerate(job.groups)}
    found = set()
    for event in log:
        told, where = _RANKS.match(event.text), re.search(r"communicator (\w+)", event.text)
        if told is not None and where is not None:
            places = [int(place) for place in re.findall(r"\d+", told[1])]
            found |= {groups[where[1]][place] for place in places}
    return found


def verdict(job: Job, ranks: set[int]) -> str:
    """'right', 'open' where nobody is named or both sides of a pair are, or 'wrong'."""
    if job.fault == "none":
        return "wrong" if ranks else "right"
    if not ranks or (job.rank in ranks and len(ranks) > 1 and job.ranks == 2):
        return "open"
    return "right" if ranks == {job.rank} else "wrong"


def main() -> None:
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs():
            for form in _NAMES:
                found[job.fault][verdict(job, named(job, form, Path(folder)))] += 1
    print("| planted | reports | the rank alone is named | open | wrong |\n|---|---|---|---|---|")
    for fault, told in found.items():
        print(f"| {fault} | {told.total()} | {told['right']} | {told['open']} | {told['wrong']} |")
    total = sum(found.values(), Counter())
    print(f"| all | {total.total()} | {total['right']} | {total['open']} | {total['wrong']} |")


if __name__ == "__main__":
    main()
