"""Finds the evidence of a hang in a run folder, a folder of dumps, or one file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.documents import redact_fields
from traceops.core.errors import FileError, InputError, problem_of
from traceops.core.files import open_regular
from traceops.core.text import near_path
from traceops.fabric.fabric import Fabric
from traceops.fabric.readers.measured import is_inspector
from traceops.hangs import job
from traceops.hangs.evidence import HangEvidence, RankRecord, RankStacks, RecordedGroup
from traceops.hangs.given import (
    Found,
    opened,
    opened_archives,
    rank_in_name,
    rank_of_text,
    read_dumps,
    read_run,
    read_run_file,
)
from traceops.hangs.readers.flight_recorder import is_dump
from traceops.hangs.readers.last_start import last_line, last_lines, read_last_start
from traceops.hangs.readers.log_events import records_from_log, says_why
from traceops.hangs.readers.messages import ready_ranks
from traceops.hangs.readers.nccl import inspector_events, is_ras, mismatched_calls, read_ras
from traceops.hangs.readers.stacks import rank_of_process, read_stacks, sniff, stacks_in_log
from traceops.hangs.readers.steps import read_progress, waits_since
from traceops.hangs.readers.went_on import how_it_ends, idle_training
from traceops.hangs.readers.whole_lines import NEWEST_FIRST, is_newest_first
from traceops.traces.archives import is_archive
from traceops.traces.source import is_remote, is_tar, other_file, packing_of
from traceops.traces.text_lines import damage, is_dressed, text_head

_HEAD = 1 << 16
_DEEPEST = 4
_MOST_FILES = 20_000
_SKIPPED = (
    ".pt.trace.json", ".pt.trace.json.gz", ".html", ".csv", ".py", ".pyc", ".png", ".svg", ".json.gz",
    ".csv.gz", ".pkl.gz", ".pickle.gz", ".tar.gz", ".tgz",
)  # fmt: skip
_TEXTS = (".log", ".txt", ".out", ".err")
_OURS = re.compile(rb'\s*\{\s*"schema_version": ?\d{1,3},\s*"tool": ?\{\s*"name": ?"traceops"')  # hang.json and others


def find_evidence(path: str | os.PathLike[str], jobs: int | None = None, called: str | None = None) -> HangEvidence:
    """All evidence under `path`: a run folder, its evidence folder, a folder of dumps and logs, or one file. jobs:
    processes to read dumps with, one a core if None. called: see `diagnose`. A zip or tar archive is read as the folder
    that it holds; archives in a folder where nothing else tells of a hang. Raises InputError where nothing under `path`
    tells anything of a hang. A bad file costs itself only."""
    if is_remote(os.fspath(path)):
        raise FileError(path, "is remote; diagnose reads local files: copy it here first")
    with opened(Path(path), _SKIPPED, called) as given:
        try:
            return given.named(_find(given.path, jobs))
        except _NothingFound as error:
            with opened_archives(given.path, _SKIPPED) as packed:
                try:
                    if packed is not None:
                        return given.named(packed.named(_find(packed.path, jobs)))
                except _NothingFound as other:
                    if packed is not None and other.quiet is not None:
                        return given.named(packed.named(other.quiet))
                    if packed is not None and error.quiet is None:
                        raise given.error(packed.error(other)) from other
            if error.quiet is not None:
                return given.named(error.quiet)
            raise given.error(error) from error
        except InputError as error:
            raise given.error(error) from error


class _NothingFound(InputError):
    """Nothing that was read tells of a failure. quiet: what the logs tell otherwise, None where there is no text."""

    def __init__(self, message: str, quiet: HangEvidence | None) -> None:
        super().__init__(message)
        self.quiet = quiet


def _find(root: Path, jobs: int | None) -> HangEvidence:
    if not root.exists():
        near = near_path(str(root)) or reason("hangs", "give_what")
        raise InputError(f"{root} does not exist{near}")
    if not root.is_file() and not root.is_dir():
        raise FileError(root, "is a pipe, a socket or a device; its text: traceops diagnose - < FILE")
    found, run_folder = Found(), run_folder_of(root)
    manifest = read_run(run_folder, found) if root.is_dir() else {}
    files: Iterable[Path] = (root,)
    if root.is_dir():  # of a run folder its evidence and logs only, of any other folder all
        is_run = (run_folder / "run.json").is_file()
        files = chain(_files(run_folder / "evidence"), _files(run_folder / "logs")) if is_run else _files(root)
    for file in files:
        _read(file, found, alone=root.is_file())
    _read_all_dumps(found, jobs, alone=root.is_file())
    records, dropped = job.one_job(found.dumps)
    found.records = {rank: _with_groups(record, found.groups.get(rank, {})) for rank, record in records.items()}
    found.log, others = job.one_slurm_job(
        found.log if root.is_file() else job.with_earlier_starts(found.log), found.texts
    )
    found.log = job.with_kernel_joined(found.log, found.texts)
    found.records = records_from_log(found.log) | found.records
    fabric = _fabric(found)
    inspector = None if fabric is None else fabric.inspector
    found.log += () if inspector is None else inspector_events(inspector)
    found.problems += [*dropped, *others]
    evidence = _evidence(root, run_folder, found, fabric, manifest)
    read = found.records or found.stacks or found.lone or found.log or found.stalls or inspector is not None
    if not read and manifest.get("failed_rank") is None:
        raise _nothing(root, found, evidence)
    return evidence


def _evidence(
    root: Path, run_folder: Path, found: Found, fabric: Fabric | None, manifest: dict[str, Any]
) -> HangEvidence:
    """What was found, in order and without secrets."""
    log, failed_rank = tuple(found.log), manifest.get("failed_rank")
    if (world := _world(found)) is not None:
        log, strange = job.within_world(log, world.size)
        found.problems += strange
    return HangEvidence(
        root=str(root),
        name=run_folder.resolve().name if root.is_dir() else root.stem,
        world_size=None if world is None else world.size,
        world_source=None if world is None else world.source,
        is_own_run=bool(manifest),
        rank_files=frozenset(found.rank_files),
        records=dict(sorted(found.records.items())),
        stacks={rank: _richest(several) for rank, several in sorted(found.stacks.items())},
        processes={rank: redact_fields(process) for rank, process in sorted(found.processes.items())},
        log=tuple(redact_fields(event, "text") for event in log),
        stall=redact_fields(max(found.stalls, key=lambda stall: stall.stalled_s, default=None)),
        files=tuple(found.files),
        problems=redact_fields(tuple(found.problems)),
        failed_rank=failed_rank if isinstance(failed_rank, int) else None,
        fabric=fabric,
        progress=tuple(found.progress),
        models=redact_fields(dict(sorted(found.models.items()))),
        earlier=tuple(found.earlier),
        since=redact_fields(tuple(waits_since(found.log))),
        lone=tuple(found.lone),
        setting=job.setting_of(found.logs) if log else None,
        last_lines={rank: redact_fields(one, "text") for rank, one in sorted(found.last_lines.items())},
    )


_TRACES = "; traces are read by: traceops analyze {}"
_LOG_BESIDE = "; a log beside it: traceops diagnose {}"


def _nothing(root: Path, found: Found, evidence: HangEvidence) -> _NothingFound:
    unread = {path for path, _ in found.problems}
    ends = (how_it_ends(text) for text in found.logs if str(text) not in unread)
    quiet = replace(evidence, ends=redact_fields(tuple(end for end in ends if end.lines)))
    listed = "".join(f"\n  {file}: {what}" for file, what in found.problems[:20])
    why = reason("hangs", "nothing_read", path=root)
    logs = [log for kind in ("*.log", "*.out", "*.err") for log in root.parent.glob(kind) if log != root]
    if any(root.glob("*trace*.json*")):
        why += _TRACES.format(root)
    elif logs and not listed:
        why += _LOG_BESIDE.format(max(logs, key=lambda log: log.stat().st_mtime))
    return _NothingFound(f"{why}{listed}", quiet if quiet.ends else None)


def _fabric(found: Found) -> Fabric | None:
    """What the texts tell of machines, links and NCCL's connections; None where they tell nothing."""
    if not found.texts:
        return None
    fabric = _fabric_reader()(found.texts, [])
    known = {path for path, _ in found.problems}
    found.problems += [problem for problem in fabric.problems if problem[0] not in known]
    if not fabric.tells:
        return None
    told = [source for machine in fabric.machines for source in machine.sources]
    told += [benchmark.quote.path for benchmark in fabric.benchmarks]
    told = [*(fabric.log.files if fabric.log else ()), *told, *(fabric.inspector.files if fabric.inspector else ())]
    found.files += dict.fromkeys(path for path in told if path not in found.files)
    return fabric


def _fabric_reader() -> Callable[[Iterable[Path], list[Path]], Fabric]:
    from traceops.fabric.read import read_fabric  # most hangs leave dumps only

    return read_fabric


def run_folder_of(path: Path) -> Path:
    """The run folder for its evidence folder, any other path for itself."""
    return path.parent if path.name == "evidence" and (path.parent / "run.json").is_file() else path


def _files(folder: Path) -> Iterator[Path]:
    count = 0
    for parent, folders, names in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        folders.sort()
        for name in sorted(names):
            if name.startswith(".") or name.lower().endswith(_SKIPPED):
                continue
            count += 1
            if count > _MOST_FILES:
                return
            path = Path(parent, name)
            if path.is_file():  # no pipes, sockets or devices
                yield path


def _read(path: Path, found: Found, *, alone: bool) -> None:
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        found.problems.append((str(path), reason("hangs", "unreadable", error=error.strerror or error)))
        return
    if not head:
        if path.suffix not in _TEXTS or alone:  # a program that printed nothing is no problem
            found.problems.append((str(path), "it is empty"))
        return
    if (said := other_file(head, path.name)) is not None:
        found.problems.append((str(path), said))
        return
    try:
        packing = packing_of(head, path.name)
        if not alone and (packing is not None or is_tar(head)) and is_archive(str(path)):
            found.problems.append((str(path), reason("hangs", "archive", path=path)))
            return
        _read_kind(path, head, packing, found, alone=alone)
        if packing is not None and (what := damage(str(path))) is not None:
            found.problems.append((str(path), reason("hangs", "damaged", what=what)))
    except InputError as error:
        if alone:
            raise
        found.problems.append((str(path), problem_of(error)))


def _read_kind(path: Path, head: bytes, packing: str | None, found: Found, *, alone: bool) -> None:
    """Read a file as what its name and its beginning say that it is."""
    if is_dressed(head, path.name):
        head = text_head(str(path), _HEAD)
    if path.suffix == ".json" and read_run_file(path, found):
        found.files.append(str(path))
    elif is_ras(head):
        found.texts.append(path)
        if events := read_ras(str(path)):
            found.log += events
            found.files.append(str(path))
        if head.lstrip()[:1] == b"{":
            found.logs.append(path)
        else:  # a log of the job may hold it too
            _read_text(path, head, found, alone=alone)
            found.log = [event for event in found.log if event.path != str(path) or event.kind != "trouble"]
    elif head[:2] == b'{"' and is_inspector(head):
        found.texts.append(path)
    elif packing is None and is_dump(head):
        # Note the dump and its rank: all are read together.
        if (rank := rank_in_name(path)) is None:
            raise FileError(path, "does not say of which rank it is; name it …_rank_<number>")
        found.dump_files.append((path, rank))
    else:
        _read_text(path, head, found, alone=alone)


def _read_all_dumps(found: Found, jobs: int | None, *, alone: bool) -> None:
    for (path, _), (record, problem) in zip(found.dump_files, read_dumps(found.dump_files, jobs), strict=True):
        if record is None and alone:
            raise FileError(path, problem)
        if problem:
            found.problems.append((str(path), problem))
        if record is not None:
            found.dumps.append(record)
            found.files.append(str(path))


def _read_text(path: Path, head: bytes, found: Found, *, alone: bool) -> None:
    _fabric_reader()  # what it looks for is searched for in the same pass
    kind, rank = sniff(str(path)), rank_of_text(path, found.one_node)
    if rank is not None:
        found.rank_files.add(rank)
    if kind != "stacks":
        found.texts.append(path)
    if kind == "stacks":
        rank = rank_of_process(head) if rank is None else rank
        _add_stacks(read_stacks(str(path), rank), found)
    elif kind is None and alone and head.strip():
        found.problems.append((str(path), reason("hangs", "no_text")))
    elif kind == "log" and _OURS.match(head) is None:  # our own quotes what it was made of
        if is_newest_first(head):
            raise FileError(path, NEWEST_FIRST)
        _read_log(path, rank, found)


def _read_log(path: Path, rank: int | None, found: Found) -> None:
    found.logs.append(path)
    events, earlier = read_last_start(str(path), rank)
    said = last_line(str(path), rank) if rank is not None else ()
    if any(event.kind == "timeout" for event in events):
        known = {event.rank for event in events}
        said = said or last_lines(str(path))
        events += tuple(one for one in said if one.rank not in known)
    found.last_lines.update({one.rank: one for one in said if one.rank is not None})
    events += tuple(filter(None, [mismatched_calls(str(path))]))
    if not any(map(says_why, events)):
        events += tuple(filter(None, [idle_training(path)]))
    if (dumped := stacks_in_log(str(path), rank)) is not None:
        _add_stacks(dumped, found)
    if events:
        found.log += events
        found.earlier += earlier
        found.files.append(str(path))
        found.progress += filter(None, [read_progress(str(path), rank)])


def _add_stacks(stacks: RankStacks, found: Found) -> None:
    if stacks.rank is None:
        found.lone.append(stacks)
    else:
        found.stacks.setdefault(stacks.rank, []).append(stacks)
    found.files += [stacks.path] if stacks.path not in found.files else []


def _with_groups(record: RankRecord, told: dict[str, RecordedGroup]) -> RankRecord:
    """The record with the members that the rank itself told, where its dump does not (gloo's never do)."""
    groups = dict(record.groups)
    for name, group in told.items():
        if name not in groups or groups[name].ranks is None:
            description = groups[name].description if name in groups else ""
            groups[name] = replace(group, description=description or group.description)
    return replace(record, groups=groups)


def _richest(several: Iterable[RankStacks]) -> RankStacks:
    """Of several looks at one rank the one that shows compiled code too, else the one with most frames."""
    return max(
        several, key=lambda stacks: (stacks.main is not None, sum(len(thread.frames) for thread in stacks.threads))
    )


def _world(found: Found) -> job.World | None:
    """The ranks that the job has, as far as anything tells."""
    records = found.records.values()
    members = {group.ranks for record in records for group in record.groups.values() if group.ranks}
    named = set[int]().union(*(event.named for event in found.log))
    named.update(rank for event in found.log if event.kind == "missing" for rank in ready_ranks(event.text))
    own = {*found.records, *found.stacks, *found.processes}
    from_logs = all(record.source == "log" for record in records)
    claims = [job.World(size, "run") for size in found.worlds]
    claims += [job.World(max(ranks) + 1, "members") for ranks in members]
    claims += job.worlds_in_logs(found.texts, found.log) if found.log else []
    if len({*own, *named}) == 1 and from_logs and not (claims or found.stacks or found.processes):
        return None  # one rank's log tells of no others, whatever its number
    return job.world_of(claims, own, named)
