"""The per-rank manifest and run.json: their fields, how they are written and read, and how ranks are merged.

``<out>/rank_<r>/manifest.json`` is a `RankManifest` and ``<out>/run.json`` a `RunManifest`, as JSON objects
with the field names below. Times are milliseconds (``_ms``) or Unix nanoseconds (``_ns``); unknown values are null.
Both files are replaced in one move, so a reader never sees half of one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from traceops.core.capture_failure import CaptureFailure, by_cause, cause_text, read_failure
from traceops.core.errors import InputError
from traceops.core.files import write_whole
from traceops.core.redaction import redact_text, redact_value
from traceops.words.catalogue import fill

SCHEMA_VERSION = 1


class DeviceRecord(TypedDict):
    """What a rank computes on. type: cpu or cuda. Null: a CPU has none, or torch does not tell."""

    type: str
    index: int | None
    name: str
    uuid: str | None
    memory_bytes: int | None


class ObservedRecord(TypedDict):
    """Looks at the host outside of windows, whether each came some ms late, and why no more was observed. The steps
    themselves are in steps.bin, the looks in observed.jsonl beside the manifest."""

    samples: int
    late: bool
    trouble: str | None


class LaterLightRecord(TypedDict):
    """A later light window, by CUPTI as the first one."""

    file: str
    steps: list[int]
    step_ms: list[float]


class LightRecord(TypedDict):
    """The light window. source: `cupti`, `torch`, or null where nothing was recorded; why not, by source. calls: what
    CUPTI returned in the latest one, as [call, argument, result]. later: those that followed, in order."""

    source: str | None
    why: dict[str, str]
    file: str | None
    steps: list[int]
    step_ms: list[float]
    calls: list[list[str | int]]
    later: list[LaterLightRecord]


class DetachRecord(TypedDict):
    """Whether CUPTI was ended behind the last window, and why not; otherwise it slows a host-bound training."""

    done: bool
    why_not: str | None


class ScriptProfilerRecord(TypedDict):
    """In which steps a profiler of the script's own was at work: the first, the last, in how many, and who began it."""

    first: int
    last: int
    steps: int
    where: str | None  # file and line outside of torch; null where that is not known


class MemoryRecord(TypedDict):
    """Bytes of GPUs at the end of `step`: what tensors held, and which of it was what."""

    step: int
    allocated: int
    parameters: int
    gradients: int
    optimizer_state: int


class GitState(TypedDict):
    """The code that ran. branch: null where HEAD is detached and no CI names it. dirty: null where git did not say."""

    commit: str
    branch: str | None
    dirty: bool | None


@dataclass(frozen=True)
class WindowRecord:
    """One recorded window of one rank.

    trace: path relative to the run folder, or None if nothing could be written.
    steps: recorded step numbers, ``ProfilerStep#<n>`` in the trace. complete: the window reached its end.
    why: the launcher asked for it by itself, because the first one was slower than the steps since (`slower`), holds
    compilations (`compiled`) or a step that comes now and then (`interrupted`). Null for all others.
    """

    index: int
    trace: str | None
    steps: list[int]
    complete: bool
    why: str | None = None


@dataclass(frozen=True)
class RankManifest:
    """What one rank says about itself.

    traces: paths relative to the run folder, one a window.
    unprofiled_step_ms, profiled_step_ms: one number a step. On cuda measured on the device's own timeline
    (events at the step boundaries), on cpu by the host clock; `step_clock` says which: cuda_event or host.
    unprofiled_host_ms, profiled_host_ms: the same steps by the host clock (the host runs ahead of a GPU).
    profiled_steps: numbers of the steps in profiled_step_ms.
    steps: steps finished. samples: as told to step().
    peak_memory_bytes: most that tensors held on the GPU; peak_reserved_bytes: most that the allocator held.
    status: running, finished, failed (exception or exit code), terminated (SIGTERM, Ctrl-C), given_way.
    exit_code: of the process, null while it runs or if it was killed before it could say.
    error: last line of the exception. note: why there is no complete trace, if there is none.
    failure: what ended the capture before it was complete, though the training went on; see `CaptureFailure`.
    observed: null if nothing was. light: null where no light window was begun.
    detached: null without a GPU, before a window has ended, and where CUPTI was to stay.
    memory: at the end of the last step of a window; null without a GPU.
    script_profiler: null where the script's own profiler was never at work while ours was not.
    step_ends: how often what ended a step (``AdamW.step``); steps_within: what was taken for a part of one.
    steps_beside: what other threads did, each with optimizers of its own: that is no step.
    cores: that the process may run on.
    training: the dict given to ``capture(manifest=…)``. facts: see environment.torch_facts.
    """

    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    device: DeviceRecord
    schedule: dict[str, int]
    options: dict[str, bool]
    status: str = "running"
    traces: list[str] = field(default_factory=list)
    windows: list[WindowRecord] = field(default_factory=list)
    step_clock: str = "host"
    unprofiled_step_ms: list[float] = field(default_factory=list)
    profiled_step_ms: list[float] = field(default_factory=list)
    unprofiled_host_ms: list[float] = field(default_factory=list)
    profiled_host_ms: list[float] = field(default_factory=list)
    profiled_steps: list[int] = field(default_factory=list)
    steps: int = 0
    samples: int | None = None
    peak_memory_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    error: str | None = None
    note: str | None = None
    failure: CaptureFailure | None = None
    observed: ObservedRecord | None = None
    light: LightRecord | None = None
    detached: DetachRecord | None = None
    memory: MemoryRecord | None = None
    script_profiler: ScriptProfilerRecord | None = None
    step_ends: dict[str, int] = field(default_factory=dict)
    steps_within: dict[str, int] = field(default_factory=dict)
    steps_beside: dict[str, int] = field(default_factory=dict)
    cores: int | None = None
    training: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunManifest:
    """What a reader of the run folder needs, merged from all ranks that can be seen.

    name: of the run. command: the launcher's own arguments; argv: the trained script and its arguments.
    strategy, training: from ``capture(manifest=…)``, null and {} for a script that says nothing.
    ranks: `RankManifest` objects by rank, less schedule, options, training and facts, which are the run's.
    ranks_missing: ranks of the world without a manifest. profiled_steps: of all ranks, sorted.
    unprofiled_step_ms, profiled_step_ms: medians over all ranks and steps.
    environment: variables that change how a training runs.
    git: null where the working directory is no work tree.
    status: running, finished, failed, interrupted, hung; cut_short where the launcher was killed.
    exit_code: what `traceops run` returned.
    failed_rank: the rank that failed first, or null. notes: what the reader should be told.
    not_recorded: processes that ended steps as a rank that another process was already (`capture/folder.py`).
    failures: captures that ended before they were complete, `CaptureFailure` objects by rank.
    settings: of ``--settings``: {source, set, unset, overruled}, variables that the ranks had and had not, and names
    that --env decided. fallback: of ``--fallback``: {kind, ranks, grad_accum, batch_size, strategy, asked}, how
    many ranks the one stands for, and what it trained with in place of what was asked for (null for a script of the
    user's own).
    """

    name: str
    command: list[str]
    argv: list[str]
    strategy: str | None
    training: dict[str, Any]
    schedule: dict[str, int] | None
    options: dict[str, bool]
    world_size: int
    nnodes: int
    hosts: list[str]
    device: str | None
    backend: str | None
    traceops_version: str | None
    python_version: str | None
    torch_version: str | None
    cuda_version: str | None
    hip_version: str | None
    nccl_version: str | None
    driver_version: str | None
    environment: dict[str, str]
    git: GitState | None
    started_ns: int | None
    ended_ns: int | None
    status: str
    exit_code: int | None
    failed_rank: int | None
    steps: int | None
    profiled_steps: list[int]
    unprofiled_step_ms: float | None
    profiled_step_ms: float | None
    ranks: list[dict[str, Any]]
    ranks_missing: list[int]
    notes: list[str]
    settings: dict[str, Any] | None = None
    fallback: dict[str, Any] | None = None
    signal: str | None = None
    launcher: dict[str, Any] | None = None
    failures: list[dict[str, Any]] = field(default_factory=list)
    not_recorded: list[dict[str, Any]] = field(default_factory=list)
    schema_version: int = SCHEMA_VERSION


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON to `path` in one move, without the secrets in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(redact_value(value), indent=1, default=lambda other: redact_text(str(other)))
    write_whole(path, (text + "\n").encode())


def write_rank(out: Path, manifest: RankManifest) -> None:
    """Write the manifest of one rank into its folder of the run `out`."""
    write_json(out / f"rank_{manifest.rank}" / "manifest.json", asdict(manifest))


def read_ranks(out: Path) -> list[RankManifest]:
    """The manifests under `out`, by rank. Raises InputError for one that is damaged."""
    found = [_read_rank(path) for path in out.glob("rank_*/manifest.json")]
    return sorted(found, key=lambda manifest: manifest.rank)


def readable_ranks(out: Path) -> tuple[list[RankManifest], list[str]]:
    """The manifests under `out` that can be read, by rank, and what is wrong with the others."""
    found, problems = [], []
    for path in out.glob("rank_*/manifest.json"):
        try:
            found.append(_read_rank(path))
        except (InputError, OSError) as error:
            problems.append(str(error))
    return sorted(found, key=lambda manifest: manifest.rank), sorted(problems)


def _read_rank(path: Path) -> RankManifest:
    known = {f.name for f in fields(RankManifest)}
    try:
        values = {key: value for key, value in json.loads(path.read_text()).items() if key in known}
        values["failure"] = read_failure(values.get("failure"))
        values["windows"] = [WindowRecord(**window) for window in values.get("windows", [])]
        return RankManifest(**values)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it, or repeat the run") from error


_OF_THE_RUN = ("world_size", "schedule", "options", "training", "facts", "failure")  # not repeated for each rank


def merge(
    ranks: list[RankManifest],
    *,
    versions: dict[str, str | None],
    world_size: int | None = None,
    nnodes: int | None = None,
    started_ns: int | None = None,
    notes: Iterable[str] = (),
    failures: Iterable[CaptureFailure] = (),
    **own: Any,
) -> RunManifest:
    """run.json's content from the manifests of the ranks and what only the caller knows; own: fields as they are."""
    facts = ranks[0].facts if ranks else {}
    world = max([world_size or 1, *(rank.world_size for rank in ranks)])
    hosts = sorted({rank.host for rank in ranks})
    failed = {failure.rank: failure for failure in failures}
    failed |= {rank.rank: rank.failure for rank in ranks if rank.failure is not None}
    all_notes = {*notes, *filter(None, (rank.note for rank in ranks))}
    for numbers, failure in by_cause(list(failed.values())):
        who = f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        all_notes.add(fill("capture", "ended_early", who=who, cause=cause_text(failure)))
    known = ("backend", "cuda_version", "hip_version", "nccl_version", "driver_version")
    values: dict[str, Any] = {
        **{name: facts.get(name) for name in known},
        **{name: versions.get(name) for name in ("traceops_version", "python_version")},
        "torch_version": facts.get("torch_version") or versions.get("torch_version"),
        "status": "running", "exit_code": None, "failed_rank": None, "ended_ns": None,
    }  # fmt: skip
    return RunManifest(
        **{**values, **own},
        **_of_all(ranks),
        world_size=world,
        nnodes=max(nnodes or 1, len(hosts)),
        hosts=hosts,
        started_ns=started_ns or min((r.started_ns for r in ranks if r.started_ns), default=None),
        ranks_missing=sorted(set(range(world)) - {rank.rank for rank in ranks}),
        notes=sorted(all_notes),
        failures=[failed[rank].as_dict() for rank in sorted(failed)],
    )


def _of_all(ranks: list[RankManifest]) -> dict[str, Any]:
    """What all ranks have alike, as the first has it, their steps, and the medians of their durations."""
    first: dict[str, Any] = {"strategy": None, "training": {}, "schedule": None, "options": {}, "device": None}
    if ranks:
        one = ranks[0]
        first |= {"training": one.training, "schedule": one.schedule, "options": one.options}
        first |= {"strategy": one.training.get("strategy"), "device": one.device["type"]}
    return {
        **first,
        "steps": max((rank.steps for rank in ranks), default=None),
        "profiled_steps": sorted({step for rank in ranks for step in rank.profiled_steps}),
        "unprofiled_step_ms": _median(value for rank in ranks for value in rank.unprofiled_step_ms),
        "profiled_step_ms": _median(value for rank in ranks for value in rank.profiled_step_ms),
        "ranks": [{key: value for key, value in asdict(rank).items() if key not in _OF_THE_RUN} for rank in ranks],
    }


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None
