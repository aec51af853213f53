"""What `traceops run` leaves for a diagnosis: run.json, the launcher's look at the ranks, groups and members."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from traceops.errors import InputError
from traceops.hangs.model import LogEvent, RankProcess, RankRecord, RankStacks, RecordedGroup, Stall
from traceops.load.run_manifest import read_run_manifest


@dataclass
class Found:
    """What has been read so far."""

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


def read_own(path: Path, found: Found) -> bool:
    """Read a file that `traceops run` wrote; False if it is none."""
    is_hang, is_groups = path.name.startswith("hang."), path.name.startswith("groups_")
    if not is_hang and not is_groups:
        return False
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not whole JSON ({error})") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a JSON object")
    return _read_stall(document, found) if is_hang else _read_groups(document, found)


def _read_stall(document: dict[str, Any], found: Found) -> bool:
    kind, stalled = document.get("kind"), document.get("stalled_s")
    if kind not in ("step", "init") or not isinstance(stalled, (int, float)):
        return False
    host = document.get("host") if isinstance(document.get("host"), str) else None
    found.stalls.append(
        Stall(
            kind,
            float(stalled),
            float(document.get("limit_s") or 0.0),
            int(document.get("noticed_ns") or 0),
            host,
            tuple(str(note) for note in document.get("notes") or ()),
        )
    )
    for row in document.get("ranks") or ():
        if isinstance(row, dict) and isinstance(row.get("rank"), int):
            known = found.processes.get(row["rank"], RankProcess(row["rank"]))
            keys = ("pid", "state", "step", "phase", "heartbeat_age_s", "exit_code")
            told = {key: row[key] for key in keys if row.get(key) is not None}
            found.processes[row["rank"]] = replace(
                known, **{"host": known.host or host, "exit_code": None, **told}
            )
    return True


def _read_groups(document: dict[str, Any], found: Found) -> bool:
    rank, groups = document.get("rank"), document.get("groups")
    if not isinstance(rank, int) or not isinstance(groups, dict):
        return False
    if isinstance(document.get("world_size"), int):
        found.worlds.append(document["world_size"])
    found.groups[rank] = {
        str(name): RecordedGroup(
            str(name), str(group.get("description") or ""), tuple(sorted(group["ranks"]))
        )
        for name, group in groups.items()
        if isinstance(group, dict)
        and isinstance(group.get("ranks"), list)
        and group["ranks"]
        and all(isinstance(member, int) for member in group["ranks"])
    }
    return True


def read_run(folder: Path, found: Found) -> dict[str, Any]:
    manifest, problem = read_run_manifest(str(folder))
    if problem is not None:
        found.problems.append(problem)
    if isinstance(manifest.get("world_size"), int):
        found.worlds.append(manifest["world_size"])
    found.one_node = manifest.get("nnodes") == 1
    for row in manifest.get("ranks") or ():
        rank = row.get("rank")
        if isinstance(rank, int):
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
