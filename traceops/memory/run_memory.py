"""What the ranks of a run held of their GPUs' memory, from its folder: manifests, looks at steps, snapshots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from traceops.across.run_use import MemoryUse, memory_use
from traceops.core.claims import reason
from traceops.core.errors import InputError
from traceops.core.rank_files import OUT_OF_MEMORY, RAN_OUT, SNAPSHOT
from traceops.measure.step_memory import StepMemory
from traceops.pipeline.observed_run import recorded_memory_of
from traceops.traces.discover import discover
from traceops.traces.memory_snapshot import DeviceSnapshot, read_snapshot
from traceops.traces.observed import read_observed
from traceops.traces.ran_out import RanOut, ranks_that_ran_out
from traceops.traces.run_manifest import manifest_ranks, read_run_manifest

_MOST_RANKS = 256
_MOST_SNAPSHOTS, _MOST_FILES = 16, 20_000  # of any name; that are looked at
_SNAPSHOT_SUFFIXES = (".pickle", ".pkl", ".html")  # torch's viewer makes a page of one
_MOST_PROBLEMS = 4  # told where nothing else is there


class RunMemory(Struct, frozen=True):
    """One run. snapshots: of ranks that kept one at a window's end, by rank; problems: what could not be read.
    recorded: a rank, and what its recorded steps held, where its trace tells. others: snapshots of any other name."""

    uses: tuple[MemoryUse, ...]
    ran_out: tuple[RanOut, ...]
    snapshots: dict[int, DeviceSnapshot]
    problems: tuple[str, ...] = ()
    recorded: tuple[int, StepMemory] | None = None
    others: tuple[tuple[str, tuple[DeviceSnapshot, ...]], ...] = ()


def read_folder(folder: Path) -> list[tuple[str, RunMemory]]:
    """What lies in this folder itself, and each run below it that tells of a GPU's memory, by its place. Raises
    InputError where nothing does."""
    is_run = (folder / "run.json").is_file()
    below = [] if is_run else [path.parent for path in _files(folder) if path.name == "run.json"]
    found, errors = [], []
    for place in (folder, *below):
        try:
            found.append((place.relative_to(folder).as_posix(), read_run(place, below if place is folder else ())))
        except InputError as error:
            errors.append(error)
    if not found:
        raise errors[0]
    return found


def read_run(folder: Path, below: Sequence[Path] = ()) -> RunMemory:
    """The run in this folder; `below` are folders of other runs. Raises InputError where nothing there tells of a GPU's
    memory."""
    manifest, problem = read_run_manifest(str(folder))
    problems = [] if problem is None else [f"{problem[0]}: {problem[1]}"]
    told = manifest_ranks(manifest)[:_MOST_RANKS]
    read = [read_observed(str(folder), own.rank) for own in told]
    problems += [said for _, said in read if said is not None]
    uses = memory_use(told, [one for one, _ in read if one is not None], ())
    snapshots = _of_ranks(folder, problems)
    ran_out = tuple(ranks_that_ran_out(folder))
    known = {one.rank for one in ran_out}
    problems += [
        reason("gpu_memory", "ran_out_unread", path=path)
        for path in sorted(folder.glob(f"rank_*/{RAN_OUT}"))[:_MOST_RANKS]
        if (number := path.parent.name.removeprefix("rank_")).isdecimal() and int(number) not in known
    ]
    recorded = None
    with contextlib.suppress(InputError):  # no traces are there
        recorded = recorded_memory_of(discover(str(folder)), uses)
    others = tuple(_others(folder, below))
    if not (uses or ran_out or snapshots or recorded or others):
        if problems:
            raise InputError("; ".join(problems[:_MOST_PROBLEMS]))
        raise InputError(
            f"{folder} has nothing about GPU memory: give a run folder of traceops run on GPUs, or a snapshot of "
            "torch.cuda.memory._dump_snapshot"
        )
    return RunMemory(uses, ran_out, snapshots, tuple(problems), recorded, others)


def _of_ranks(folder: Path, problems: list[str]) -> dict[int, DeviceSnapshot]:
    """For each rank the device with the highest peak."""
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
    return snapshots


def _files(folder: Path) -> list[Path]:
    return sorted(islice(folder.rglob("*"), _MOST_FILES))


def _others(folder: Path, below: Sequence[Path]) -> Iterator[tuple[str, tuple[DeviceSnapshot, ...]]]:
    """Snapshots that are not a rank's of a run, told from other pickles by what is in them."""
    files = (
        path
        for path in _files(folder)
        if path.suffix in _SNAPSHOT_SUFFIXES
        and not (path.parent.parent == folder and path.name in (SNAPSHOT, OUT_OF_MEMORY))
        and not any(path.is_relative_to(run) for run in below)
    )
    for path in islice(filter(Path.is_file, files), _MOST_SNAPSHOTS):
        with contextlib.suppress(InputError):
            yield path.relative_to(folder).as_posix(), read_snapshot(path)
