"""What the links of a machine can give: by a file of its best measurements, and by the links that a ring joins."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path as FilePath
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from traceops.core import files
from traceops.core.errors import FileError, InputError
from traceops.fabric.model import Gpu, Machine, Measured, Path, PathKind, Reference, is_rdma

# A short name for a machine's GPUs and how they are joined, so that numbers measured on it go to its like only.

_PCIE_LIKE = {"PHB": "NODE"}  # NCCL calls both PHB, nvidia-smi tells them apart


def fingerprint(machine: Machine) -> str:
    """16 hex digits of the GPUs' names, the kind and count of each pair's path, and the NICs. The same whatever the
    host is called and in whatever order files told it. Not part of it: what may differ without another machine (PCIe
    width, NUMA nodes, addresses), Ethernet ports, which a container may or may not see, and where GPU indices begin.
    What a source does not tell is part of it: ask for that of all sources joined."""
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
    paths = [machine.path(one.label, other.label) for one, other in combinations(gpus, 2)]
    nics = sorted(
        ((nic.name or nic.label).lower(), nic.up is False)
        for nic in machine.nics
        if is_rdma(nic) or nic.kind == "other"
    )
    told = {
        "gpus": [gpu.name and gpu.plain_name for gpu in gpus],
        "paths": [None if path is None else (_PCIE_LIKE.get(path.kind, path.kind), path.count) for path in paths],
        "nics": nics,
    }
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


SCHEMA_VERSION = 1
MUCH_BETTER = 1.2  # from here two measurements differ by more than repetitions do
_MOST_GBS = 1e5  # no link gives that
_LARGEST_BYTES = 8_000_000  # of a file that could be one of ours


class _ReferenceFile(Reference, frozen=True):
    schema_version: int = SCHEMA_VERSION


def make_reference(
    machine: Machine,
    measured: Sequence[Measured],
    settings: Mapping[str, str] | None = None,
    measured_at: float | None = None,
) -> Reference:
    """The reference of one machine from what was measured on it. settings: variables that were set then. measured_at:
    seconds since the Unix epoch, None for now."""
    name = machine.gpus[0].name if machine.gpus else None
    at = time.time() if measured_at is None else measured_at
    return Reference(machine.host or "unknown", name, fingerprint(machine), at, tuple(measured), dict(settings or {}))


def save_reference(reference: Reference) -> FilePath | None:
    """Keep it in the cache's folder ``references``; returns where, None where that cannot be. Some rows of the same
    host and topology are kept already. Those stay that were not measured now, or are much better: what a machine once
    gave it should give again."""
    if (folder := files.cache_folder("references")) is None:
        return None
    path = folder / f"{_in_a_name(reference.host)}.{_in_a_name(reference.topology)}.json"
    try:
        files.make_own_folder(folder, folder)
        with files.locked_folder(folder):  # another doctor may keep rows of the same machine
            kept = kept_reference(reference.host, reference.topology)
            rows = {_what(row): row for row in (kept.measured if kept else ())}
            for row in reference.measured:
                if (before := rows.get(_what(row))) is None or before.busbw_gbs < MUCH_BETTER * row.busbw_gbs:
                    rows[_what(row)] = row
            best = replace(reference, measured=tuple(rows[what] for what in sorted(rows)))
            content = {"schema_version": SCHEMA_VERSION, **msgspec.to_builtins(best)}
            content.pop("source")
            files.write_own(path, msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
    except (OSError, files.Locked):
        return None
    return path


def references_in(path: str | FilePath) -> tuple[Reference, ...]:
    """The references in a doctor.json or a file of `save_reference`; none in JSON of another kind. Raises InputError,
    which names the file, where it cannot be read or what it holds is damaged."""
    try:
        data = files.read_regular(FilePath(path), _LARGEST_BYTES)
    except files.TooLargeError as error:
        raise FileError(path, "is too large for a reference; traceops doctor writes one") from error
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror}); traceops doctor writes one") from error
    found = _decoded(data, FilePath(path))
    if not isinstance(found, dict):
        return ()
    several = found.get("references")
    if isinstance(several, list):
        return tuple(_reference(one, str(path)) for one in several)
    return (_reference(found, str(path)),) if "measured" in found and "topology" in found else ()


def references_here() -> tuple[Reference, ...]:
    """All references kept on this machine, by file name; files that are none, or others', are passed over."""
    if (folder := files.cache_folder("references")) is None:
        return ()
    found = []
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        return ()
    for path in paths:
        try:
            with files.open_own(path, folder) as file:
                found.append(_reference(_decoded(file.read(_LARGEST_BYTES), path), str(path)))
        except (OSError, InputError):
            continue
    return tuple(found)


def kept_reference(host: str, topology: str) -> Reference | None:
    """The reference kept for this host with this topology, None where there is none."""
    matching = (kept for kept in references_here() if (kept.host, kept.topology) == (host, topology))
    return next(matching, None)


def _what(row: Measured) -> tuple[str, str, tuple[int, ...], int]:
    return row.backend, row.op, row.gpus, row.bytes


def _decoded(data: bytes, path: FilePath) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileError(path, f"is not JSON: {error}") from error


def _reference(content: Any, path: str) -> Reference:
    try:
        found = msgspec.convert({"gpu": None, **content} if isinstance(content, dict) else content, _ReferenceFile)
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


# GB/s of a lane, one way, in large copies: as NCCL counts them. On H200 (16 lanes of generation 5) pinned copies reach
# 54 to 55 in place of 48 [docs/metrics.md].
LANE_GBS = {1: 0.2, 2: 0.4, 3: 0.75, 4: 1.5, 5: 3.0, 6: 6.0}
_LANES = 16
# By the makers' data sheets, the first that fits. Not of superchips, whose link to the CPU is another.
_GENERATIONS: tuple[tuple[re.Pattern[str], int], ...] = (
    (re.compile(r"\bG[BH]\d00\b"), 0),
    (re.compile(r"\bMIG\b"), 0),
    (re.compile(r"\b(H[128]00|H20|B200|MI300X|MI325X|RTX 50[0-9]0)\b"), 5),
    (re.compile(r"\b(A[18]00|A[34]0|A10G?|L40S?|L4|RTX A\d000|RTX [34]0[0-9]0|6000 Ada|MI2[15]0X?)\b"), 4),
    (re.compile(r"\b([VP]100|T4|RTX 20[0-9]0|TITAN RTX)\b"), 3),
)


class HostLink(Struct, frozen=True):
    """GB/s from pinned memory, one way. source: what pinned copies of the trace reached, the machine's facts, or what
    the GPU's data sheet says."""

    gbs: float
    source: Literal["trace", "machine", "table"]


def link_of_machine(machines: tuple[Machine, ...]) -> HostLink | None:
    """The narrowest link of the GPUs of all machines; None where one is not known."""
    known = []
    for machine in machines:
        for gpu in machine.gpus:
            pcie = gpu.pcie
            lane = LANE_GBS.get(pcie.most_generation or 0) if pcie is not None else None
            if pcie is None or lane is None or not pcie.most_width:
                return None
            known.append(HostLink(lane * pcie.most_width, "machine"))
    return min(known, key=lambda link: link.gbs, default=None)


def link_by_name(device: str | None) -> HostLink | None:
    """The link by the GPU's name; None where it is not listed."""
    for pattern, generation in _GENERATIONS if device else ():
        if pattern.search(device or ""):
            return HostLink(_LANES * LANE_GBS[generation], "table") if generation else None
    return None


# What NCCL takes one NVLink to carry one way, by its physical rate, GB/s [NCCL, graph/topo.h]. Of NVLink 5 it is what
# NCCL before 2.26 takes: later ones count 40, and which one made a graph is not always told.
_AS_NCCL_COUNTS = {50.0: 20.0, 25.0: 20.0, 20.0: 18.0, 14.0625: 12.0}
_LEAST_GBS = 18.0  # of one NVLink where nothing tells its rate
_LEAST_BRIDGED_GBS = 12.0  # up to so many links they may be the bridge of a workstation's card
_BRIDGED_LINKS = 4
_MOST_GPUS = 12  # of a mesh: every way to cut it in two is looked at
_OWN_LINKS: tuple[PathKind, ...] = ("NV", "XGMI")


class RingLimit(Struct, frozen=True):
    """What all rings together can carry, GB/s one way, as NCCL counts its links. kind: of the links. count: links of a
    GPU, None where only their bandwidth is told. whole: every two of the GPUs have a link of their own; else the limit
    is that of the narrowest cut, which rings need not reach."""

    gbs: float
    kind: PathKind
    count: int | None
    whole: bool
    path: Path


def ring_limit(machine: Machine, gpus: Sequence[Gpu]) -> RingLimit | None:
    """The limit of rings over these GPUs; None where they are not joined by links whose speed is known."""
    pairs = {
        (one.label, other.label): path
        for one, other in combinations(gpus, 2)
        if (path := machine.path(one.label, other.label)) is not None
    }
    wanted = len(gpus) * (len(gpus) - 1) // 2
    if linked := {pair: path for pair, path in pairs.items() if path.kind in _OWN_LINKS}:
        return _of_links(gpus, linked, len(linked) == wanted)
    if len(pairs) == wanted > 0 and all(path.kind in ("PIX", "PXB") for path in pairs.values()):
        link, path = link_of_machine((replace(machine, gpus=tuple(gpus)),)), next(iter(pairs.values()))
        return None if link is None else RingLimit(link.gbs, path.kind, None, True, path)
    return None


def _of_links(gpus: Sequence[Gpu], linked: Mapping[tuple[str, str], Path], whole: bool) -> RingLimit | None:
    by_label = {gpu.label: gpu for gpu in gpus}
    gbs: dict[tuple[str, str], float] = {}
    for pair, path in linked.items():
        if (told := _link_gbs([by_label[label] for label in pair], path)) is None:
            return None
        gbs[pair] = told
    first = next(iter(linked.values()))
    totals = [gpu.nvlinks for gpu in gpus]
    if whole and not _is_mesh(gpus, linked):
        narrowest = min(gbs.values())
        known = [total for total in totals if total]
        count = (
            min(known)
            if len(known) == len(totals)
            else min((path.count for path in linked.values() if path.count), default=None)
        )
        return RingLimit(narrowest, first.kind, count, True, first)
    if len(gpus) > _MOST_GPUS:
        return None
    # Every ring crosses each cut once each way: all of them carry no more than the narrowest gives.
    own, *rest = by_label
    sides = ({own, *some} for size in range(len(rest)) for some in combinations(rest, size))
    cut = min(sum(one for pair, one in gbs.items() if (pair[0] in side) != (pair[1] in side)) for side in sides)
    return RingLimit(cut, first.kind, None, whole, first) if cut > 0 else None


def _is_mesh(gpus: Sequence[Gpu], linked: Mapping[tuple[str, str], Path]) -> bool:
    """Whether each pair has its links for itself, as all XGMI has; with a switch every path counts the same ones."""
    if all(path.kind == "XGMI" for path in linked.values()):
        return True
    for gpu in gpus:
        counts = [path.count for pair, path in linked.items() if gpu.label in pair]
        if gpu.nvlinks is None or None in counts or sum(one or 0 for one in counts) > gpu.nvlinks:
            return False
    return len(gpus) > 2


def _link_gbs(ends: Sequence[Gpu], path: Path) -> float | None:
    """What all links of a pair carry one way; the narrower way where they differ."""
    if path.gbs is not None:
        return path.gbs * (path.back_share or 1.0)
    if path.count is None:
        return None
    count = path.count * (path.back_share or 1.0)
    rates = [gpu.nvlink_gbs for gpu in ends if gpu.nvlink_gbs is not None]
    if path.kind == "XGMI":
        return count * min(rates) if rates else None
    if not rates:
        return count * (_LEAST_BRIDGED_GBS if path.count <= _BRIDGED_LINKS else _LEAST_GBS)
    return count * min(_AS_NCCL_COUNTS.get(rate, _LEAST_GBS) for rate in rates)
