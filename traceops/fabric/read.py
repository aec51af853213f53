"""Reads what was saved of the fabric: topology matrices, NCCL's logs, XML dumps, measurements of others and ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceops.core.errors import FileError, InputError, problem_of
from traceops.core.regular_file import open_regular
from traceops.fabric.benchmarks import Benchmark
from traceops.fabric.fabric import Fabric
from traceops.fabric.merge import merge_machines
from traceops.fabric.model import Machine, Reference
from traceops.fabric.nccl import GraphBandwidth
from traceops.fabric.own_topology import with_bus_ids
from traceops.fabric.readers.inspector import is_inspector, read_inspector
from traceops.fabric.readers.nccl_log import holds_nccl_lines, read_nccl_log
from traceops.fabric.readers.nccl_tests import holds_nccl_tests, read_nccl_tests
from traceops.fabric.readers.rocm_topo import looks_like_rocm_topo, read_rocm_topo
from traceops.fabric.readers.topo_matrix import looks_like_topo_matrix, read_topo_matrices
from traceops.fabric.reference import references_in
from traceops.traces.packed import GIT_LFS
from traceops.traces.text_lines import is_dressed, text_head

_HEAD = 1 << 16
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2", ".tar.zst")


@dataclass
class _Found:
    machines: list[Machine] = field(default_factory=list)
    graphs: list[GraphBandwidth] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    benchmarks: list[Benchmark] = field(default_factory=list)
    inspector: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def read_fabric(files: Iterable[Path], named: Sequence[Path]) -> Fabric:
    """What the files tell together. Those that were found cost only themselves if they are bad.

    Raises InputError for one of `named` that is of no use.
    """
    found = _Found()
    for path in files:
        try:
            _read(path, found)
        except InputError as error:
            found.problems.append((str(path), problem_of(error)))
    for path in named:
        if not path.is_file():
            raise FileError(path, "is no file; give a topology matrix, an NCCL log, an XML or a doctor.json")
        if not path.stat().st_size:
            raise FileError(path, "is empty")
        if not _read(path, found):
            raise FileError(
                path,
                "holds no topology matrix, no NCCL lines (NCCL_DEBUG=INFO), no topology XML, no results of nccl-tests, "
                "no lines of NCCL Inspector and nothing of traceops doctor",
            )
    log = read_nccl_log(found.logs) if found.logs else None
    machines = [*with_bus_ids(found.machines, log), *(log.machines if log is not None else ())]
    if log is not None and log.connections_left_out:
        found.problems.append((log.files[0], f"{log.connections_left_out:,} connections of NCCL's log are left out"))
    inspector = read_inspector(found.inspector, found.problems) if found.inspector else None
    references, problems = tuple(found.references), tuple(found.problems)
    return Fabric(
        merge_machines(machines), log, references, problems, tuple(found.graphs), tuple(found.benchmarks), inspector
    )  # fmt: skip


def _read(path: Path, found: _Found) -> bool:
    """Whether the file told anything. Raises InputError for one that should have and is damaged."""
    try:
        with open_regular(path) as file:
            begin = file.read(_HEAD)
    except OSError as error:
        raise FileError(path, f"cannot be read ({error.strerror or error})") from error
    if begin.startswith(GIT_LFS):
        raise FileError(path, "is a pointer of Git LFS, not the file: git lfs pull")
    if path.name.endswith(_ARCHIVES):
        raise FileError(path, "is an archive; unpack it, and give the files in it that are of one job")
    if is_dressed(begin, path.name):
        begin = text_head(str(path), _HEAD)
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

        kind = xml_kind(head)
        if kind is not None:
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
