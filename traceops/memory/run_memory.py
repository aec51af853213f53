"""What the ranks of a run held of their GPUs' memory, from its folder: manifests, looks at steps, snapshots."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from traceops.across.run_use import MemoryUse, memory_use
from traceops.core.claims import reason
from traceops.core.errors import InputError
from traceops.core.rank_files import RAN_OUT, SNAPSHOT
from traceops.measure.step_memory import StepMemory
from traceops.pipeline.observed_run import recorded_memory_of
from traceops.traces.discover import discover
from traceops.traces.memory_snapshot import DeviceSnapshot, read_snapshot
from traceops.traces.observed import read_observed
from traceops.traces.ran_out import RanOut, ranks_that_ran_out
from traceops.traces.run_manifest import manifest_ranks, read_run_manifest

_MOST_RANKS = 256
_MOST_PROBLEMS = 4  # told where nothing else is there


class RunMemory(Struct, frozen=True):
    """One run. snapshots: of ranks that kept one at a window's end, by rank; problems: what could not be read.
    recorded: a rank, and what its recorded steps held, where its trace tells."""

    uses: tuple[MemoryUse, ...]
    ran_out: tuple[RanOut, ...]
    snapshots: dict[int, DeviceSnapshot]
    problems: tuple[str, ...] = ()
    recorded: tuple[int, StepMemory] | None = None


def read_run(folder: Path) -> RunMemory:
    """The run in this folder. Raises InputError where nothing there tells of a GPU's memory."""
    manifest, problem = read_run_manifest(str(folder))
    problems = [] if problem is None else [f"{problem[0]}: {problem[1]}"]
    told = manifest_ranks(manifest)[:_MOST_RANKS]
    read = [read_observed(str(folder), own.rank) for own in told]
    problems += [said for _, said in read if said is not None]
    uses = memory_use(told, [one for one, _ in read if one is not None], ())
    # For each rank take the device with the highest peak.
    snapshots = {}
    for path in sorted(folder.glob(f"rank_*/{SNAPSHOT}"))[:_MOST_RANKS]:
        number = path.parent.name.removeprefix("rank_")
        try:
            devices = read_snapshot(path)
        except InputError as error:
            problems.append(str(error))
            continue
        if number.isdecimal() and devices:
            snapshots[int(number)] = max(devices, key=lambda device: device.peak)
    ran_out = tuple(ranks_that_ran_out(folder))
    known = {one.rank for one in ran_out}
    problems += [
        reason("gpu_memory", "ran_out_unread", path=path)
        for path in sorted(folder.glob(f"rank_*/{RAN_OUT}"))[:_MOST_RANKS]
        if (number := path.parent.name.removeprefix("rank_")).isdecimal() and int(number) not in known
    ]
    recorded = _recorded(folder, uses)
    if not (uses or ran_out or snapshots or recorded):
        if problems:
            raise InputError("; ".join(problems[:_MOST_PROBLEMS]))
        raise InputError(
            f"{folder} has nothing about GPU memory: give a run folder of traceops run on GPUs, or a snapshot of "
            "torch.cuda.memory._dump_snapshot"
        )
    return RunMemory(uses, ran_out, snapshots, tuple(problems), recorded)


def _recorded(folder: Path, uses: tuple[MemoryUse, ...]) -> tuple[int, StepMemory] | None:
    try:
        return recorded_memory_of(discover(str(folder)), uses)
    except InputError:  # no traces are there
        return None
