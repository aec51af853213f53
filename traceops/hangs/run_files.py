"""What `traceops run` leaves for a diagnosis: run.json, the launcher's look at the ranks, groups and members."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from traceops.core.errors import FileError
from traceops.core.regular_file import read_regular
from traceops.hangs.evidence import (
    LogEvent,
    LoggedProgress,
    RankProcess,
    RankRecord,
    RankStacks,
    RecordedGroup,
    Shards,
    Stall,
    Trained,
)
from traceops.traces.run_manifest import read_run_manifest


@dataclass
class Found:
    """What has been read so far."""

    dump_files: list[tuple[Path, int]] = field(default_factory=list)
    dumps: list[RankRecord] = field(default_factory=list)
    groups: dict[int, dict[str, RecordedGroup]] = field(default_factory=dict)
    stacks: dict[int, list[RankStacks]] = field(default_factory=dict)
    processes: dict[int, RankProcess] = field(default_factory=dict)
    log: list[LogEvent] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    worlds: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    one_node: bool = False
    progress: list[LoggedProgress] = field(default_factory=list)
    models: dict[int, tuple[Shards | Trained, ...]] = field(default_factory=dict)
    earlier: list[tuple[LogEvent, ...]] = field(default_factory=list)
    texts: list[Path] = field(default_factory=list)  # files that may tell of the fabric
    logs: list[Path] = field(default_factory=list)
    lone: list[RankStacks] = field(default_factory=list)
    rank_files: set[int] = field(default_factory=set)  # ranks that have a text of their own


def read_run_file(path: Path, found: Found) -> bool:
    """Read a file that `traceops run` wrote; False if it is none."""
    readers = {"hang.": _read_stall, "groups_": _read_groups, "parameters_": _read_models}
    read = next((read for prefix, read in readers.items() if path.name.startswith(prefix)), None)
    if read is None:
        return False
    try:
        document = json.loads(read_regular(path))
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"is not whole JSON ({error})") from error
    if not isinstance(document, dict):
        raise FileError(path, "is not a JSON object")
    return read(document, found)


def _read_stall(document: dict[str, Any], found: Found) -> bool:
    kind, stalled = document.get("kind"), _number(document.get("stalled_s"))
    if kind not in ("step", "init") or stalled is None:
        return False
    host = _typed(document.get("host"), str)
    found.stalls.append(
        Stall(
            kind,
            stalled,
            _number(document.get("limit_s")) or 0.0,
            _typed(document.get("noticed_ns"), int) or 0,
            host,
            tuple(str(note) for note in _rows(document.get("notes"))),
        )
    )
    for row in _rows(document.get("ranks")):
        if isinstance(row, dict) and (rank := _typed(row.get("rank"), int)) is not None:
            known = found.processes.get(rank, RankProcess(rank))
            kinds = {"pid": int, "state": str, "step": int, "phase": str, "exit_code": int}
            told = {key: _typed(row.get(key), its) for key, its in kinds.items()}
            told = {key: value for key, value in told.items() if value is not None}
            found.processes[rank] = replace(known, **{"host": known.host or host, "exit_code": None, **told})
    return True


def _read_groups(document: dict[str, Any], found: Found) -> bool:
    rank, groups = _typed(document.get("rank"), int), document.get("groups")
    if rank is None or not isinstance(groups, dict):
        return False
    if isinstance(document.get("world_size"), int):
        found.worlds.append(document["world_size"])
    found.groups[rank] = {
        str(name): RecordedGroup(str(name), str(group.get("description") or ""), tuple(sorted(group["ranks"])))
        for name, group in groups.items()
        if isinstance(group, dict)
        and isinstance(group.get("ranks"), list)
        and group["ranks"]
        and all(isinstance(member, int) for member in group["ranks"])
    }
    return True


def _read_models(document: dict[str, Any], found: Found) -> bool:
    rank, rows = _typed(document.get("rank"), int), document.get("collectives")
    if rank is None or not isinstance(rows, list):
        return False
    made = [_shards(row) or _trained(row) for row in rows if isinstance(row, dict)]
    found.models[rank] = tuple(model for model in made if model is not None)
    return True


def _shards(row: dict[str, Any]) -> Shards | None:
    elements, shard = _typed(row.get("elements"), int), _typed(row.get("shard"), int)
    names = tuple(name for name in _rows(row.get("names")) if isinstance(name, str))
    if not elements or not shard or not names:
        return None
    count = max(_typed(row.get("count"), int) or 0, len(names))
    return Shards(_typed(row.get("group"), str), elements, shard, names, count)


def _trained(row: dict[str, Any]) -> Trained | None:
    cap = _typed(row.get("cap_bytes"), int)
    parameters = [tuple(told) for told in _rows(row.get("parameters")) if isinstance(told, list)]
    kinds = (str, int, int)
    whole = all(len(told) == 3 and all(map(isinstance, told, kinds)) and min(told[1:]) > 0 for told in parameters)
    if not cap or not parameters or not whole:
        return None
    return Trained(_typed(row.get("group"), str), cap, tuple(parameters))


def read_run(folder: Path, found: Found) -> dict[str, Any]:
    manifest, problem = read_run_manifest(str(folder))
    if problem is not None:
        found.problems.append(problem)
    if isinstance(manifest.get("world_size"), int):
        found.worlds.append(manifest["world_size"])
    found.one_node = manifest.get("nnodes") == 1
    for row in _rows(manifest.get("ranks")):
        rank = _typed(row.get("rank"), int) if isinstance(row, dict) else None
        if rank is not None:
            found.processes[rank] = RankProcess(
                rank=rank,
                host=_typed(row.get("host"), str),
                pid=_typed(row.get("pid"), int),
                step=_typed(row.get("steps"), int),
                exit_code=_typed(row.get("exit_code"), int),
                error=_typed(row.get("error"), str),
            )
    if manifest:
        found.files.append(str(folder / "run.json"))
    return manifest


def _typed(value: Any, kind: type) -> Any:
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    """A number that can be reckoned with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= 1e300:
        return None
    return float(value) if math.isfinite(value) else None


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
