"""Reads a doctor.json back as the checkup that it was written from, to be shown elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceops.core.errors import InputError
from traceops.core.findings import Check, Finding
from traceops.doctor.model import Change, Checkup, Remedy, Trial
from traceops.fabric.model import Gpu, Machine, Measured, Nic, PathKind, Reference
from traceops.fabric.model import Path as Way
from traceops.machine.look import Look

SCHEMA_VERSION = 1
_LARGEST_BYTES = 256_000_000
_OWN = (b'"looks"', b'"trials"', b'"remedies"')


class _Path(msgspec.Struct):
    devices: tuple[str, str]
    kind: PathKind
    count: int | None = None
    gbs: float | None = None


class _Machine(msgspec.Struct):
    host: str | None
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    paths: tuple[_Path, ...]
    sources: tuple[str, ...] = ()


class _Remedy(msgspec.Struct):
    set: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    does: str = ""
    costs: str = ""
    busbw_gbs: float | None = None
    before_gbs: float | None = None


class _Problem(msgspec.Struct):
    file: str
    problem: str


class _File(msgspec.Struct):
    schema_version: int
    hosts: tuple[str, ...]
    backend: str
    started_at: float | None
    seconds: float | None
    machines: tuple[_Machine, ...]
    looks: tuple[Look, ...]
    trials: tuple[Trial, ...]
    measured: tuple[Measured, ...]
    remedies: tuple[_Remedy, ...]
    settings: _Remedy | None
    fallback: int | None
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    references: tuple[Reference, ...] = ()
    problems: tuple[_Problem, ...] = ()


def read_checkup(path: str | Path) -> Checkup | None:
    """The checkup in a doctor.json, without NCCL's log; None where the file is not one.

    Raises InputError, which names the file, for one that is damaged or of another version.
    """
    try:
        if not Path(path).is_file() or Path(path).stat().st_size > _LARGEST_BYTES:
            return None
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); traceops doctor writes it") from error
    if not content.lstrip().startswith(b"{") or not all(name in content for name in _OWN):
        return None
    try:
        found = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no doctor.json as traceops doctor writes it: {error}") from error
    if found.schema_version != SCHEMA_VERSION:
        raise InputError(
            f"{path} is a doctor.json of version {found.schema_version}, this traceops reads {SCHEMA_VERSION}; read it "
            "with the traceops that wrote it"
        )
    return _checkup(found)


def _checkup(found: _File) -> Checkup:
    return Checkup(
        found.hosts, found.backend, found.started_at or 0.0, found.seconds or 0.0,
        tuple(map(_machine, found.machines)), found.looks, found.trials, found.findings, found.checks,
        found.measured, tuple(map(_remedy, found.remedies)),
        None if found.settings is None else _remedy(found.settings), found.fallback, found.references,
        tuple((one.file, one.problem) for one in found.problems),
    )  # fmt: skip


def _machine(found: _Machine) -> Machine:
    paths = {one.devices: Way(one.kind, one.count, one.gbs) for one in found.paths}
    return Machine(found.host, found.gpus, found.nics, paths, found.sources)


def _remedy(found: _Remedy) -> Remedy:
    change = Change(found.set, found.unset, found.does, found.costs)
    return Remedy(change, found.busbw_gbs, found.before_gbs)
