"""Machines from the text of ``nvidia-smi topo -m``, of any driver version and as people paste it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traceops.core.errors import FileError
from traceops.fabric.model import Gpu, Machine, Nic, Path, Quote
from traceops.fabric.nics import is_bonded, nic_kind, with_numa
from traceops.fabric.readers.topo_lines import CORES, GPU, KINDS, NVLINKS, Matrix, Row, matrices_in
from traceops.traces.text_lines import lines as text_of
from traceops.traces.text_lines import text_lines

_NO_NIC = re.compile(r"(?:GPU|CPU|MIG|NVSW|NVS)\d|NVSwitch", re.IGNORECASE)


def read_topo_matrices(path: str, text: str | None = None, problems: list[str] | None = None) -> tuple[Machine, ...]:
    """The machines whose matrices are in a file, or in `text`, in its order; a host that was asked twice once.

    Of a matrix that is cut off, what is there is used: a GPU without its row is known from the header. NICs get
    their names from the NIC legend and their NUMA nodes from their paths. One of
    ``topo -mp`` does not say how two GPUs reach each other: it leaves NVLink out. problems: where that is said. Raises
    InputError where the file cannot be read or holds no matrix.
    """
    numbered = text_lines(path) if text is None else text_of(text.encode(errors="surrogateescape"), 1)
    machines: list[Machine] = []
    matrices = matrices_in(numbered)
    if problems is not None and any(matrix.pci_only for matrix in matrices):
        problems.append("`nvidia-smi topo -mp` leaves NVLink out, so paths between GPUs are not known; give `topo -m`")
    for matrix in matrices:
        machine = _machine(path, matrix)
        if machine is not None and not any(_is_told(machine, by) for by in machines):
            machines = [by for by in machines if not _is_told(by, machine)] + [machine]
    if not machines:
        raise FileError(path, "holds no matrix that could be read; save the whole output of `nvidia-smi topo -m`")
    return tuple(machines)


def looks_like_topo_matrix(head: str) -> bool:
    """Whether a text has a matrix's header and a row of paths below it."""
    numbered = text_of(head.encode(errors="surrogateescape"), 1)
    return any(_machine("", matrix) is not None for matrix in matrices_in(numbered))


def _machine(path: str, matrix: Matrix) -> Machine | None:
    """None where no row tells a path, as in the matrices of ``topo -p2p``."""
    gpus, nics = [], []
    paths: dict[tuple[str, str], Path] = {}
    for label in dict.fromkeys(matrix.labels):
        row = matrix.rows.get(label)
        if row is not None:
            _add_paths(paths, matrix.labels, label, row, path, pci_only=matrix.pci_only)
        if gpu := GPU.fullmatch(label):
            cpus, numa = _affinity(matrix, row)
            gpus.append(Gpu(int(gpu[1]), numa=numa, cpus=cpus))
        elif not _NO_NIC.match(label):
            name = matrix.names.get(label) or (None if label.startswith("NIC") else label)
            nics.append(Nic(label, name, nic_kind(name), bonded=is_bonded(name)))
    if not paths and not (matrix.rows and (len(matrix.labels) == 1 or matrix.pci_only)):
        return None
    known = {gpu.label for gpu in gpus} | {nic.label for nic in nics}
    paths = {pair: found for pair, found in paths.items() if known.issuperset(pair)}
    return Machine(matrix.host, tuple(gpus), with_numa(nics, gpus, paths), paths, (path,) if path else ())


def _add_paths(
    paths: dict[tuple[str, str], Path], labels: Sequence[str], label: str, row: Row, path: str, *, pci_only: bool
) -> None:
    quote = Quote(path, row.line, row.text)
    for other, word in zip(labels, row.words, strict=False):
        nvlinks = NVLINKS.fullmatch(word)
        kind = "NV" if nvlinks else KINDS.get(word)
        if kind is None or other == label or (pci_only and GPU.fullmatch(label) and GPU.fullmatch(other)):
            continue
        found = Path(kind, int(nvlinks[1]) if nvlinks else None, quote=quote)
        back = paths.get((other, label))
        is_symmetric = back is not None and (back.kind, back.count) == (found.kind, found.count)
        if not is_symmetric:  # as a rule a matrix is
            paths[label, other] = found


def _affinity(matrix: Matrix, row: Row | None) -> tuple[str | None, int | None]:
    """A GPU's near cores and NUMA node from the columns after the paths."""
    if row is None:
        return None, None
    words = row.words[len(matrix.labels) :]
    columns = matrix.columns or ["CPU Affinity", "NUMA Affinity"]
    if len(words) < len(columns) and "\t" in row.tail and words:
        words = _tabbed(row.tail, len(words))
    elif len(words) < len(columns) and words and not re.search("[,-]", words[0]):
        words = ["", *words]  # a list of cores is what is missing: a node's number has no range
    told = dict(zip(columns, words, strict=False))
    cpus = told.get("CPU Affinity", "")
    return (cpus if CORES.fullmatch(cpus) else None), _one_node(told.get("NUMA Affinity", ""))


def _tabbed(tail: str, count: int) -> list[str]:
    """The last `count` words of a line with the empty cells between them, as tabs tell."""
    cells = [cell.strip() for cell in tail.rstrip().split("\t")]
    first = len(cells)
    while first > 0 and count > 0:
        first -= 1
        count -= len(cells[first].split())
    while first > 0 and not cells[first - 1]:  # the cell before the first word is empty: so is a column
        first -= 1
    return cells[first:]


def _one_node(text: str) -> int | None:
    """``1``; of ``0,2-17``, the nodes of a superchip's CPU and GPU memory, 0; None of several (``0-1``)."""
    if not CORES.fullmatch(text):
        return None
    single = [part for part in text.split(",") if part.isdigit()]
    return int(single[0][:6]) if len(single) == 1 else None


def _is_told(machine: Machine, by: Machine) -> bool:
    """Whether another matrix says the same and more: the same again, or with NVLink what ``topo -mp`` says without."""
    if (machine.host, machine.gpus, machine.nics) != (by.host, by.gpus, by.nics):
        return False
    pairs = machine.paths.keys() | by.paths.keys()
    ours, theirs = ([of.path(*pair) for pair in pairs] for of in (machine, by))
    hides = any(path is not None and path.kind == "NV" for path in ours)
    return all(
        a is None or (b is not None and ((a.kind, a.count) == (b.kind, b.count) or (b.kind == "NV" and not hides)))
        for a, b in zip(ours, theirs, strict=True)
    )
