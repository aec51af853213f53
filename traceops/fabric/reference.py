"""What a machine gave at its best, kept for the runs made on it later: one file a host and topology."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from traceops.core.cache_folder import cache_folder
from traceops.core.errors import FileError, InputError
from traceops.core.folder_lock import Locked, locked_folder
from traceops.core.own_files import make_own_folder, open_own, write_own
from traceops.core.regular_file import TooLargeError, read_regular
from traceops.fabric.fingerprint import fingerprint
from traceops.fabric.model import Machine, Measured, Reference

SCHEMA_VERSION = 1
MUCH_BETTER = 1.2  # from here two measurements differ by more than repetitions do
_MOST_GBS = 1e5  # no link gives that
_LARGEST_BYTES = 8_000_000  # of a file that could be one of ours


@dataclass(frozen=True)
class _ReferenceFile:
    host: str
    topology: str
    measured_at: float
    measured: tuple[Measured, ...]
    schema_version: int = SCHEMA_VERSION
    gpu: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


def make_reference(
    machine: Machine,
    measured: Sequence[Measured],
    settings: Mapping[str, str] | None = None,
    measured_at: float | None = None,
) -> Reference:
    """The reference of one machine from what was measured on it.

    settings: variables that were set then. measured_at: seconds since the Unix epoch, None for now.
    """
    name = machine.gpus[0].name if machine.gpus else None
    at = time.time() if measured_at is None else measured_at
    return Reference(machine.host or "unknown", name, fingerprint(machine), at, tuple(measured), dict(settings or {}))


def save_reference(reference: Reference) -> Path | None:
    """Keep it in the cache's folder ``references``; returns where, None where that cannot be.

    Some rows of the same host and topology are kept already. Those stay that were not measured now, or are much
    better: what a machine once gave it should give again.
    """
    folder = cache_folder("references")
    if folder is None:
        return None
    path = folder / f"{_in_a_name(reference.host)}.{_in_a_name(reference.topology)}.json"
    try:
        make_own_folder(folder, folder)
        with locked_folder(folder):  # another doctor may keep rows of the same machine
            kept = kept_reference(reference.host, reference.topology)
            rows = _best_of(kept.measured if kept else (), reference.measured)
            content = {"schema_version": SCHEMA_VERSION, **asdict(replace(reference, measured=rows))}
            content.pop("source")
            write_own(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    except (OSError, Locked):
        return None
    return path


def _kept(found: Any, path: str | Path) -> Reference:
    if not isinstance(found, dict) or "measured" not in found or "topology" not in found:
        raise FileError(path, "is no reference as traceops doctor writes it")
    return _reference(found, str(path))


def references_in(path: str | Path) -> tuple[Reference, ...]:
    """The references in a doctor.json or a file of `save_reference`; none in JSON of another kind.

    Raises InputError, which names the file, where it cannot be read or what it holds is damaged.
    """
    found = _content(Path(path))
    if not isinstance(found, dict):
        return ()
    several = found.get("references")
    if isinstance(several, list):
        return tuple(_reference(one, str(path)) for one in several)
    return (_reference(found, str(path)),) if "measured" in found and "topology" in found else ()


def references_here() -> tuple[Reference, ...]:
    """All references kept on this machine, by file name; files that are none, or others', are passed over."""
    folder = cache_folder("references")
    if folder is None:
        return ()
    found = []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        return ()
    for path in paths:
        try:
            with open_own(path, folder) as file:
                found.append(_kept(_decoded(file.read(_LARGEST_BYTES), path), path))
        except (OSError, InputError):
            continue
    return tuple(found)


def kept_reference(host: str, topology: str) -> Reference | None:
    """The reference kept for this host with this topology, None where there is none."""
    matching = (kept for kept in references_here() if (kept.host, kept.topology) == (host, topology))
    return next(matching, None)


def _best_of(kept: Sequence[Measured], now: Sequence[Measured]) -> tuple[Measured, ...]:
    rows = {_what(row): row for row in kept}
    for row in now:
        before = rows.get(_what(row))
        if before is None or before.busbw_gbs < MUCH_BETTER * row.busbw_gbs:
            rows[_what(row)] = row
    return tuple(rows[what] for what in sorted(rows))


def _what(row: Measured) -> tuple[str, str, tuple[int, ...], int]:
    return row.backend, row.op, row.gpus, row.bytes


def _content(path: Path) -> Any:
    try:
        data = read_regular(path, _LARGEST_BYTES)
    except TooLargeError as error:
        raise FileError(path, "is too large for a reference; traceops doctor writes one") from error
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror}); traceops doctor writes one") from error
    return _decoded(data, path)


def _decoded(data: bytes, path: Path) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(path, f"is not JSON: {error}") from error


def _reference(content: Any, path: str) -> Reference:
    try:
        found = msgspec.convert(content, _ReferenceFile)
    except msgspec.ValidationError as error:
        raise FileError(path, f"is no reference as traceops doctor writes it: {error}") from error
    if found.schema_version != SCHEMA_VERSION:
        raise FileError(
            path,
            f"is a reference of version {found.schema_version}, this traceops reads {SCHEMA_VERSION}; "
            "measure again with traceops doctor",
        )
    for row in found.measured:
        sane = math.isfinite(row.time_us) and row.time_us > 0 and 0 < row.busbw_gbs < _MOST_GBS
        if row.bytes < 1 or not sane:
            raise FileError(path, f"a bandwidth of {row.busbw_gbs} GB/s over {row.bytes} bytes is none", ": ")
    return Reference(found.host, found.gpu, found.topology, found.measured_at, found.measured, found.settings, path)


def _in_a_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:80] or "unknown"
