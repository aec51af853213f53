"""Reads what was saved of the fabric: topology matrices, NCCL's logs, XML dumps, measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.errors import FileError, InputError, problem_of
from traceops.core.files import open_regular
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Gpu, Machine, Nic, Pcie, Reference, normal_bus_id, same_host, short_host, with_numa
from traceops.fabric.model import Path as DevicePath
from traceops.fabric.nccl import Benchmark, GraphBandwidth, NcclLog
from traceops.fabric.readers.measured import holds_nccl_tests, is_inspector, read_inspector, read_nccl_tests
from traceops.fabric.readers.nccl_lines import holds_nccl_lines
from traceops.fabric.readers.nccl_log import read_nccl_log
from traceops.fabric.readers.topo_matrix import (
    looks_like_rocm_topo,
    looks_like_topo_matrix,
    read_rocm_topo,
    read_topo_matrices,
)
from traceops.fabric.reference import references_in
from traceops.traces.source import GIT_LFS
from traceops.traces.text_lines import is_dressed, text_head

# The matrix that `traceops run` saved of a host: nvidia-smi counted there as NVML does in the ranks beside it.

_BEGIN, _END = "topo.", ".txt"


def _named(machine: Machine, log: NcclLog | None) -> Machine:
    """The machine with the host of the file's name, and with the bus ids that NCCL's log has of its rows. A matrix from
    elsewhere may be of the whole host, where a job sees a part of it; this one is of what its ranks saw."""
    if (host := _host_of_run(machine)) is None or any(gpu.bus_id for gpu in machine.gpus):
        return machine
    told = {
        (place.nvml_device, place.bus_id)
        for communicator in (log.communicators if log is not None else ())
        for place in communicator.places.values()
        if short_host(place.host) == short_host(host) and place.bus_id is not None and place.nvml_device is not None
    }
    buses = dict(told)
    if len(buses) < len(told) or len(set(buses.values())) < len(told):  # two jobs in one folder
        return replace(machine, host=host)
    gpus = tuple(replace(gpu, bus_id=buses.get(gpu.index)) for gpu in machine.gpus)
    return replace(machine, host=host, gpus=gpus)


def _host_of_run(machine: Machine) -> str | None:
    if machine.host is not None or len(machine.sources) != 1:
        return None
    path = Path(machine.sources[0])
    is_own = path.parent.name == "evidence" and (path.parent.parent / "run.json").is_file()
    name = path.name
    if not is_own or not (name.startswith(_BEGIN) and name.endswith(_END)):
        return None
    return name[len(_BEGIN) : -len(_END)] or None


_Device = TypeVar("_Device", Gpu, Nic)
_Told = TypeVar("_Told", Gpu, Nic, Pcie, DevicePath)
_OWN_LINKS = ("NV", "XGMI", "C2C")


def merge_machines(machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """One machine a host, in order of appearance, with what any source says of it. Where two say different things, the
    first does; but NVLink and XGMI come before the PCIe path below them, and nvidia-smi's NODE before NCCL's PHB, which
    means either. A source without a host's name joins the only named host, or other sources without one, where their
    GPUs agree. They agree if they have the same bus ids. Where those are not known, they agree if they have the same
    indices and no other names, NUMA nodes or numbers of NVLinks; where one has bus ids, in the order of the indices, as
    nvidia-smi counts: NCCL's log of a job that has a part of its host counts that part. Two machines of one file are
    never one for want of names."""
    given = list(machines)
    hosts = {short_host(machine.host) for machine in given if machine.host is not None}
    groups: list[tuple[int, Machine]] = []
    for position, machine in sorted(enumerate(given), key=lambda item: item[1].host is None):
        for place, (first, known) in enumerate(groups):
            if _is_same_host(known, machine, len(hosts)) and _agree(known, machine):
                both = (machine, known) if position < first else (known, machine)
                groups[place] = min(first, position), _joined(*both)
                break
        else:
            groups.append((position, machine))
    ordered = [machine for _, machine in sorted(groups, key=lambda item: item[0])]
    return tuple(replace(each, nics=with_numa(each.nics, each.gpus, each.paths)) for each in ordered)


def _is_same_host(known: Machine, other: Machine, hosts: int) -> bool:
    if other.host is not None:
        return same_host(known.host, other.host)
    if known.host is not None:
        return hosts == 1
    return not set(known.sources) & set(other.sources)


def _differ(a: Gpu, b: Gpu) -> bool:
    pairs = ((a.plain_name or None, b.plain_name or None), (a.uuid or None, b.uuid or None), (a.numa, b.numa))
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _agree(one: Machine, other: Machine) -> bool:
    """Whether the GPUs of one are among those of the other, and nothing said of them is against it."""
    pairs = list(_same(one.gpus, other.gpus, _same_gpu))
    if len(pairs) < min(len(one.gpus), len(other.gpus)):
        return False
    ours, theirs = _bus_ids(one), _bus_ids(other)
    if not (ours and theirs) and (buses := ours or theirs):
        is_whole = len(one.gpus) == len(other.gpus) == len(buses)
        if not is_whole or buses != sorted(buses):
            return False
    if any(_differ(a, b) for a, b in pairs):
        return False
    labels = {b.label: a.label for a, b in pairs}
    for (start, end), path in other.paths.items():
        known = one.path(labels.get(start, ""), labels.get(end, ""))
        counts = {each.count for each in (known, path) if each and each.kind == "NV"} - {None}
        if known and len(counts) > 1:
            return False
    return True


def _bus_ids(machine: Machine) -> list[str]:
    """In the order of the GPUs' indices."""
    gpus = sorted(machine.gpus, key=lambda gpu: gpu.index)
    return [bus for gpu in gpus if (bus := normal_bus_id(gpu.bus_id))]


def _same(
    known: Sequence[_Device], told: Sequence[_Device], same: Callable[[_Device, _Device], bool]
) -> Iterator[tuple[_Device, _Device]]:
    left = list(known)
    for device in told:
        if (match := next((each for each in left if same(each, device)), None)) is not None:
            left.remove(match)
            yield match, device


def _same_gpu(one: Gpu, other: Gpu) -> bool:
    ours, theirs = normal_bus_id(one.bus_id), normal_bus_id(other.bus_id)
    return ours == theirs if ours and theirs else one.index == other.index


def _same_nic(one: Nic, other: Nic) -> bool:
    if one.name and other.name:
        return one.name.lower() == other.name.lower()
    ours, theirs = normal_bus_id(one.bus_id), normal_bus_id(other.bus_id)
    return ours == theirs if ours and theirs else not one.name and not other.name and one.label == other.label


def _joined(one: Machine, other: Machine) -> Machine:
    gpu_pairs = list(_same(one.gpus, other.gpus, _same_gpu))
    nic_pairs = list(_same(one.nics, other.nics, _same_nic))
    labels = {b.label: a.label for a, b in gpu_pairs} | {b.label: a.label for a, b in nic_pairs}
    gpus = {gpu.label: gpu for gpu in one.gpus} | {a.label: _filled(a, b) for a, b in gpu_pairs}
    nics = {nic.label: nic for nic in one.nics} | {a.label: _filled(a, b) for a, b in nic_pairs}
    for gpu in other.gpus:
        if gpu.label not in labels:
            taken = {each.index for each in gpus.values()}
            index = gpu.index if gpu.index not in taken else max(taken) + 1
            labels[gpu.label] = f"GPU{index}"
            gpus[labels[gpu.label]] = replace(gpu, index=index)
    for nic in other.nics:
        if nic.label not in labels:
            names = (nic.label, *map("NIC{}".format, range(len(nics) + 1)))
            labels[nic.label] = free = next(name for name in names if name not in nics)
            nics[free] = replace(nic, label=free)
    paths = dict(one.paths)
    for (start, end), path in other.paths.items():
        pair = labels.get(start, start), labels.get(end, end)
        pair = pair if pair in paths or pair[::-1] not in paths else pair[::-1]
        known = paths.get(pair)
        paths[pair] = path if known is None else _better(known, path)
    return Machine(
        host=one.host or other.host,
        gpus=tuple(sorted(gpus.values(), key=lambda gpu: gpu.index)),
        nics=tuple(nics.values()),
        paths=paths,
        sources=tuple(dict.fromkeys((*one.sources, *other.sources))),
    )


def _better(known: DevicePath, path: DevicePath) -> DevicePath:
    if known.kind == path.kind:
        return _filled(known, path)
    if known.kind in _OWN_LINKS or path.kind in _OWN_LINKS:
        return known if known.kind in _OWN_LINKS else path
    return path if (known.kind, path.kind) in (("PHB", "NODE"), ("PCIE", path.kind)) else known


def _filled(known: _Told, told: _Told) -> _Told:
    """What is known, and where it says nothing, what the other source says."""
    changes: dict[str, Any] = {}
    for name in known.__struct_fields__:
        ours, theirs = getattr(known, name), getattr(told, name)
        if isinstance(ours, Pcie) and isinstance(theirs, Pcie):
            changes[name] = _filled(ours, theirs)
        elif ours is None or (name in ("nvlinks_down", "bonded") and theirs):
            changes[name] = theirs
    return replace(known, **changes)


_HEAD = 1 << 16
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")


class _Found(Struct):
    machines: list[Machine] = field(default_factory=list)
    graphs: list[GraphBandwidth] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    benchmarks: list[Benchmark] = field(default_factory=list)
    inspector: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def read_fabric(files: Iterable[Path], named: Sequence[Path]) -> Fabric:
    """What the files tell together. Those that were found cost only themselves if they are bad. Raises InputError for
    one of `named` that is of no use."""
    found = _Found()
    for path in files:
        try:
            _read(path, found)
        except InputError as error:
            found.problems.append((str(path), problem_of(error)))
    for path in named:
        if not path.is_file():
            raise FileError(
                path,
                "is no file; give a topology matrix, an NCCL log, an XML or a doctor.json; of this machine: "
                "traceops doctor",
            )
        if not path.stat().st_size:
            raise FileError(path, "is empty")
        if not _read(path, found):
            raise FileError(
                path,
                "holds no topology matrix, no NCCL lines (NCCL_DEBUG=INFO), no topology XML, no results of nccl-tests, "
                "no lines of NCCL Inspector and nothing of traceops doctor",
            )
    log = read_nccl_log(found.logs) if found.logs else None
    machines = [_named(machine, log) for machine in found.machines]
    machines += log.machines if log is not None else ()
    if log is not None and log.connections_left_out:
        problem = reason("fabric", "connections_left_out", count=log.connections_left_out)
        found.problems.append((log.files[0], problem))
    inspector = read_inspector(found.inspector, found.problems) if found.inspector else None
    references, problems = tuple(found.references), tuple(found.problems)
    graphs, benchmarks = tuple(found.graphs), tuple(found.benchmarks)
    return Fabric(merge_machines(machines), log, references, problems, graphs, benchmarks, inspector)


def _begin(path: Path) -> bytes:
    """The first bytes of its text. Raises FileError for what cannot be read as text."""
    try:
        with open_regular(path) as file:
            begin = file.read(_HEAD)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    if begin.startswith(GIT_LFS):
        raise FileError(path, "is a pointer of Git LFS, not the file: git lfs pull")
    if path.name.endswith(_ARCHIVES):
        raise FileError(path, "is an archive; unpack it, and give the files in it that are of one job")
    return text_head(str(path), _HEAD) if is_dressed(begin, path.name) else begin


def _read(path: Path, found: _Found) -> bool:
    """Whether the file told anything. Raises InputError for one that should have and is damaged."""
    begin = _begin(path)
    head = begin.decode(errors="replace")
    if is_inspector(begin):
        found.inspector.append(str(path))
        if head.lstrip().startswith("{"):  # else a paste of several things
            return True
    # A log may begin like JSON too, with what a trainer prints.
    if path.suffix == ".json" or (head.lstrip().startswith("{") and _is_of_doctor(head)):
        return _read_json(path, head, found)
    if head.lstrip("\ufeff \t\r\n").startswith("<"):
        from traceops.fabric.readers.nccl_xml import read_graph_xml, read_topology_xml, xml_kind

        if (kind := xml_kind(head)) is not None:
            machines = read_topology_xml(str(path)) if kind == "topology" else ()
            graphs = read_graph_xml(str(path)) if kind == "graph" else ()
            found.machines += machines
            found.graphs += graphs
            return bool(machines or graphs)
    told = str(path) in found.inspector
    cut: list[str] = []
    if looks_like_topo_matrix(head):
        found.machines += read_topo_matrices(str(path), problems=cut)
        found.problems += [(str(path), problem) for problem in cut]
        told = True
    elif looks_like_rocm_topo(head):
        found.machines += read_rocm_topo(str(path))
        told = True
    if holds_nccl_lines(str(path)):
        found.logs.append(str(path))
        told = True
    if holds_nccl_tests(str(path)):
        unfinished: list[str] = []
        found.benchmarks += (benchmarks := read_nccl_tests(str(path), unfinished))
        found.problems += [(str(path), problem) for problem in unfinished]
        told = told or bool(benchmarks or unfinished)
    return told


def _is_of_doctor(head: str) -> bool:
    return '"measured"' in head or '"references"' in head


def _read_json(path: Path, head: str, found: _Found) -> bool:
    """What the doctor wrote: doctor.json, or the reference that a run took along."""
    if not _is_of_doctor(head) and path.name != "doctor.json":
        return False
    references = references_in(path)
    found.references += references
    return bool(references)
