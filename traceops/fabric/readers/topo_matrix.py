"""Machines from the text of ``nvidia-smi topo -m``, of any driver version and as people paste it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct, field

from traceops.core.claims import reason
from traceops.core.errors import FileError
from traceops.fabric import model
from traceops.traces.text_lines import lines as text_of
from traceops.traces.text_lines import text_lines

KINDS: dict[str, model.PathKind] = {
    "C2C": "C2C", "PIX": "PIX", "PSB": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS",
}  # fmt: skip
_SELF = "X"
_UNKNOWN = ("N/A", "ERR!", "Err")
NVLINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
GPU = re.compile(r"GPU(\d{1,4})", re.ASCII)
_LABEL = re.compile(r"[A-Za-z](?=[\w.:/-]{0,63}\d)[\w.:/-]{0,63}")
_TAIL = re.compile(r"(?:\s|(?<=\d)(?=C))(CPU Affinity|NUMA Affinity|GPU NUMA ID)(?=\s|$)")
# A paste that lost its tabs: ``GPU0GPU1``, ``NIC8NIC9``, and in the rows below ``NODENODE``.
_STUCK = re.compile(r"((?:GPU|NIC)\d{1,4})(?=(?:GPU|NIC|mlx)\d)", re.ASCII)
_STUCK_CELL = re.compile("X|NV\\d\\d?|" + "|".join(KINDS), re.ASCII)
# ``NV120-31``: the last cell and the cores.
_STUCK_CORES = re.compile("(NV(?:1[0-8]|[1-9])|" + "|".join(KINDS) + r")(\d{1,4}[,-][\d,-]{0,4000})", re.ASCII)
_LEGEND = re.compile(r"(NIC\d{1,4})\s{0,8}:\s{0,8}([\w.:+-]{1,80})", re.ASCII)
CORES = re.compile(r"\d[\d,-]{0,4000}", re.ASCII)
# Who a line is of, before it: mpirun's tag, ``[default0]:`` of torchrun, ``[pod/a/b]`` of kubectl; ``node1:`` of pdsh,
# ``trainer-1 |`` of docker compose, ``0:`` of srun -l.
_SPEAKER = re.compile(
    r"(?:(\[\d{1,6},\d{1,6}\]<\w{1,10}>|\[[A-Za-z][\w./,-]{0,199}\]):?|([A-Za-z0-9][\w.-]{0,99})\s{0,40}[:|](?=\s))"
)
_NO_HOST = re.compile(r"\[.{0,99}|\d{1,99}|(?:info|warn|warning|debug|error|stdout|stderr|output)", re.IGNORECASE)
# Whose output follows: ansible, a prompt, ssh.
_HOST_BEFORE = (
    re.compile(r"([\w.-]{1,100}) \| (?:CHANGED|SUCCESS|FAILED)\b"),
    re.compile(r"\[?[\w.-]{1,40}@([\w.-]{1,100})[: ].{0,300}\bnvidia-smi topo\b"),
    re.compile(r".{0,40}\bssh (?:[\w.-]{1,40}@)?([\w.-]{1,100}) .{0,40}\bnvidia-smi topo\b"),
)
_ASKED = re.compile(r"\bnvidia-smi topo (-{1,2}[a-z_]{1,20})")  # what for
_PCI_ONLY = ("-mp", "--matrix_pci")
_RULE = re.compile(r"-{4,200}")  # clush -b and dshbak: the host's name between two rules
_MOST_LABELS = 256
_MOST_CELLS = 1 << 20
_FAR_LINES = 500  # after as many that are none of its own, nothing more of a matrix comes
_MOST_MATRICES = 2048
_SPOKEN_BEFORE = 8  # words of a logger before a matrix's own
_WIDEST = 1 << 14  # of a header
_QUOTED = 300


class Row(Struct):
    """A device's row. words: from its first cell on. tail: the line that ends it, where tabs tell of empty columns."""

    line: int
    text: str
    words: list[str]
    tail: str


class Matrix(Struct):
    """A matrix while it is read. header: its text, where a terminal wrapped it joined. end: the latest line of it.
    pci_only: it was made with ``topo -mp``, which shows the ways over PCIe alone, also where NVLink joins two GPUs."""

    host: str | None
    labels: list[str]
    columns: list[str]
    header: str
    end: int
    rows: dict[str, Row] = field(default_factory=dict)
    last: Row | None = None
    names: dict[str, str] = field(default_factory=dict)
    pci_only: bool = False


def matrices_in(numbered: Iterable[tuple[int, str]]) -> list[Matrix]:
    """Everything that begins with a header, each with the rows and legends that its speaker said after it."""
    found: list[Matrix] = []
    open_: dict[str, Matrix] = {}  # by who speaks
    host: str | None = None
    before = ("", "")
    latest = cells = 0
    pci_only = False
    for number, line in numbered:
        if " topo " in line and (asked := _ASKED.search(line)) is not None:
            pci_only = asked[1] in _PCI_ONLY
        host = _host_before(line, before) or host
        before = (before[1], line)
        if number - latest > _FAR_LINES:
            open_.clear()
        if cells > _MOST_CELLS or not line.strip() or not (open_ or "GPU" in line):
            continue
        speaker, said = _spoken(line, open_)
        matrix = open_.get(speaker)
        if matrix is not None and not matrix.rows and number == matrix.end + 1 and _widen(matrix, said):
            matrix.end = latest = number
            continue
        header = _header(said) or _header_begin(said)
        if header is not None and len(found) < _MOST_MATRICES:
            open_[speaker] = Matrix(_named(speaker) or host, *header, said, number, pci_only=pci_only)
            found.append(open_[speaker])
            latest = number
        elif matrix is not None and (words := _add(matrix, number, said, line)):
            cells += words
            matrix.end = latest = number
    return found


def _host_before(line: str, before: tuple[str, str]) -> str | None:
    if not line.startswith("--") and " | " not in line and "nvidia-smi" not in line:
        return None
    if _RULE.fullmatch(line.rstrip()) and _RULE.fullmatch(before[0].rstrip()) and len(before[1].split()) == 1:
        return before[1].strip()
    match = next((match for pattern in _HOST_BEFORE if (match := pattern.match(line))), None)
    return None if match is None else match[1]


def _spoken(line: str, open_: dict[str, Matrix]) -> tuple[str, str]:
    """Who says a line, '' where nobody is named, and what; a row of a Markdown table without its bars."""
    if line.lstrip().startswith("|"):
        return "", line.replace("|", " ")
    if (match := _SPEAKER.match(line)) is None or _LEGEND.match(line.strip()):
        return "", line
    rest = line[match.end() :]
    speaker = match[1] or match[2]
    if speaker in open_ or GPU.search(rest):
        return speaker, rest
    return "", line


def _named(speaker: str) -> str | None:
    return None if _NO_HOST.fullmatch(speaker) else speaker


def _header(line: str) -> tuple[list[str], list[str]] | None:
    """The labels and the names of the columns after them, where the line is a matrix's header."""
    if not GPU.search(line):
        return None
    tails = list(_TAIL.finditer(line))
    columns = [match[1] for match in tails]
    if tails and _TAIL.sub("", line)[tails[0].start() :].strip():
        return None
    words = _STUCK.sub(r"\1 ", line[: tails[0].start()] if tails else line).split()
    start = next((place for place, word in enumerate(words[:_SPOKEN_BEFORE]) if GPU.fullmatch(word)), None)
    if start is None:
        return None
    labels = words[start:]
    if not all(_LABEL.fullmatch(word) for word in labels[:_MOST_LABELS]) or len(labels) > _MOST_LABELS:
        return None
    if any(_is_cell(word) for word in labels) or len(set(labels)) < len(labels):
        return None
    if not (columns or len(labels) > 1):
        return None
    return labels, columns


def _header_begin(line: str) -> tuple[list[str], list[str]] | None:
    """The same of a header that a terminal broke off inside a word or a column's name."""
    if len(GPU.findall(line)) < 2 or len(line) > _WIDEST:
        return None
    for words in (1, 2, 3):  # ``GPU NUMA I``
        begun = line.rsplit(maxsplit=words)[0]
        if len(begun.split()) > 1 and (header := _header(begun)) is not None:
            return header
    return None


def _add(matrix: Matrix, number: int, said: str, line: str) -> int:
    """A row, the rest of a row or header that was wrapped, or a line of the NIC legend: the words that were taken."""
    commented = _LEGEND.match(said.strip())  # 'NIC0: mlx5_0  -> eth0  (rail 0)'
    legend = _LEGEND.fullmatch(" ".join(said.split()[-2:])) or commented
    if legend is not None and (legend is not commented or legend[1] in matrix.labels):
        matrix.names.setdefault(legend[1], legend[2])
        return 2
    words = [cell for word in said.split() for cell in _apart(word)]
    for place, (label, cell) in enumerate(pairwise(words[: _SPOKEN_BEFORE + 1])):
        if label in matrix.labels and (_is_cell(cell) or cell in _UNKNOWN):
            row = Row(number, line.rstrip()[:_QUOTED], words[place + 1 :], said)
            matrix.rows.setdefault(label, row)
            matrix.last = row
            return len(words)
    if not words or matrix.last is None or number != matrix.end + 1:
        return 0
    if len(matrix.last.words) >= len(matrix.labels) + len(matrix.columns):
        return 0
    return _lengthen(matrix.last, said, len(matrix.labels))


def _widen(matrix: Matrix, said: str) -> bool:
    """Whether it is the rest of a header that a terminal wrapped, between words or inside one."""
    for joined in (f"{matrix.header} {said}", matrix.header + said):
        header = _header(joined) or _header_begin(joined)
        wider = header is not None and sum(map(len, header)) > len(matrix.labels) + len(matrix.columns)
        if header is not None and wider and len(joined) < _WIDEST:
            matrix.labels, matrix.columns = header
            matrix.header = joined
            return True
    return False


def _lengthen(row: Row, said: str, cells: int) -> int:
    """The rest of a row that a terminal wrapped, between words or inside one; `cells` come before the cores."""
    first, *words = (cell for word in said.split() for cell in _apart(word))
    joined = row.words[-1] + first
    is_broken = not row.tail[-1:].isspace() and not said[:1].isspace()
    if _is_cell(joined):
        row.words[-1:] = [joined, *words]
    elif _is_cell(first):
        row.words += [first, *words]
    elif not first.strip("0123456789,-"):
        in_list = is_broken and len(row.words) > cells
        row.words[len(row.words) - in_list :] = [joined if in_list else first, *words]
    else:
        return 0
    row.tail = said
    return len(words) + 1


def _apart(word: str) -> list[str]:
    if (cores := _STUCK_CORES.fullmatch(word)) is not None:
        return [cores[1], cores[2]]
    cells = _STUCK_CELL.findall(word)
    return cells if len(cells) > 1 and "".join(cells) == word else [word]


def _is_cell(word: str) -> bool:
    return word == _SELF or word in KINDS or NVLINKS.fullmatch(word) is not None


_NO_NIC = re.compile(r"(?:GPU|CPU|MIG|NVSW|NVS)\d|NVSwitch", re.IGNORECASE)


def read_topo_matrices(
    path: str, text: str | None = None, problems: list[str] | None = None
) -> tuple[model.Machine, ...]:
    """The machines whose matrices are in a file, or in `text`, in its order; a host that was asked twice once. Of a
    matrix that is cut off, what is there is used: a GPU without its row is known from the header. NICs get their names
    from the NIC legend and their NUMA nodes from their paths. One of ``topo -mp`` does not say how two GPUs reach each
    other: it leaves NVLink out. problems: where that is said. Raises InputError where the file cannot be read or holds
    no matrix."""
    numbered = text_lines(path) if text is None else text_of(text.encode(errors="surrogateescape"), 1)
    machines: list[model.Machine] = []
    matrices = matrices_in(numbered)
    if problems is not None and any(matrix.pci_only for matrix in matrices):
        problems.append(reason("fabric", "no_nvlink_in_matrix"))
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


def _machine(path: str, matrix: Matrix) -> model.Machine | None:
    """None where no row tells a path, as in the matrices of ``topo -p2p``."""
    gpus, nics = [], []
    paths: dict[tuple[str, str], model.Path] = {}
    for label in dict.fromkeys(matrix.labels):
        if (row := matrix.rows.get(label)) is not None:
            _add_paths(paths, matrix.labels, label, row, path, pci_only=matrix.pci_only)
        if gpu := GPU.fullmatch(label):
            cpus, numa = _affinity(matrix, row)
            gpus.append(model.Gpu(int(gpu[1]), numa=numa, cpus=cpus))
        elif not _NO_NIC.match(label):
            name = matrix.names.get(label) or (None if label.startswith("NIC") else label)
            nics.append(model.Nic(label, name, model.nic_kind(name), bonded=model.is_bonded(name)))
    if not paths and not (matrix.rows and (len(matrix.labels) == 1 or matrix.pci_only)):
        return None
    known = {gpu.label for gpu in gpus} | {nic.label for nic in nics}
    paths = {pair: found for pair, found in paths.items() if known.issuperset(pair)}
    return model.Machine(matrix.host, tuple(gpus), model.with_numa(nics, gpus, paths), paths, (path,) if path else ())


def _add_paths(
    paths: dict[tuple[str, str], model.Path], labels: Sequence[str], label: str, row: Row, path: str, *, pci_only: bool
) -> None:
    quote = model.Quote(path, row.line, row.text)
    for other, word in zip(labels, row.words, strict=False):
        nvlinks = NVLINKS.fullmatch(word)
        kind = "NV" if nvlinks else KINDS.get(word)
        if kind is None or other == label or (pci_only and GPU.fullmatch(label) and GPU.fullmatch(other)):
            continue
        found = model.Path(kind, int(nvlinks[1]) if nvlinks else None, quote=quote)
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
        # Return the last `count` words of a line, with the empty cells that tabs show between them.
        count = len(words)
        cells = [cell.strip() for cell in row.tail.rstrip().split("\t")]
        first = len(cells)
        while first > 0 and count > 0:
            first -= 1
            count -= len(cells[first].split())
        while first > 0 and not cells[first - 1]:  # the cell before the first word is empty: so is a column
            first -= 1
        words = cells[first:]
    elif len(words) < len(columns) and words and not re.search("[,-]", words[0]):
        words = ["", *words]  # a list of cores is what is missing: a node's number has no range
    told = dict(zip(columns, words, strict=False))
    cpus = told.get("CPU Affinity", "")
    return (cpus if CORES.fullmatch(cpus) else None), _one_node(told.get("NUMA Affinity", ""))


def _one_node(text: str) -> int | None:
    """``1``; of ``0,2-17``, the nodes of a superchip's CPU and GPU memory, 0; None of several (``0-1``)."""
    if not CORES.fullmatch(text):
        return None
    single = [part for part in text.split(",") if part.isdigit()]
    return int(single[0][:6]) if len(single) == 1 else None


def _is_told(machine: model.Machine, by: model.Machine) -> bool:
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


_KINDS: dict[str, model.PathKind] = {"XGMI": "XGMI", "PCIE": "PCIE"}
# ``=== Link Type between two GPUs ===`` of rocm-smi, ``LINK TYPE TABLE:`` of amd-smi, and the other tables' titles.
_TITLE = re.compile(r"={3,200} (.{1,80}?) ={3,200}|([A-Z][A-Z -]{2,60}) TABLE:")
_LINK_TYPES = ("link type between two gpus", "link type")
_GPU = re.compile(r"GPU(\d{1,4})", re.ASCII)
_NUMA = re.compile(r"GPU ?\[?(\d{1,4})\]?\s{0,40}: \(Topology\) Numa Node: (\d{1,6})", re.ASCII)
_MOST_ROCM_LABELS = 1024


class _RocmTables(Struct):
    """labels: of the columns; bus ids in amd-smi's tables. paths: by two GPUs' places."""

    labels: list[str] = field(default_factory=list)
    paths: dict[tuple[int, int], model.Path] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)


def read_rocm_topo(path: str, text: str | None = None) -> tuple[model.Machine, ...]:
    """The machine whose link types are in a file, or in `text`: what runs over XGMI and what over PCIe. NUMA nodes
    where rocm-smi says them. GPUs count in the order of the table, which is the tools' own. Raises InputError where the
    file cannot be read or holds no table of link types."""
    told = _told(path, text_lines(path) if text is None else text_of(text.encode(errors="surrogateescape"), 1))
    if not _tells(told):
        raise FileError(
            path,
            "holds no table of link types; save the whole output of `rocm-smi --showtopo` or of `amd-smi topology`",
        )
    gpus = [
        model.Gpu(told.indices[label], bus_id=model.normal_bus_id(label), numa=told.nodes.get(told.indices[label]))
        for label in told.labels
    ]
    paths = {(f"GPU{one}", f"GPU{other}"): found for (one, other), found in told.paths.items()}
    return (model.Machine(None, tuple(gpus), (), paths, (path,)),)


def looks_like_rocm_topo(head: str) -> bool:
    """Whether a text has a table of link types."""
    return _tells(_told("", text_of(head.encode(errors="surrogateescape"), 1)))


def _tells(told: _RocmTables) -> bool:
    return bool(told.paths) or len(told.labels) == 1  # one GPU has no links


def _told(path: str, numbered: Iterable[tuple[int, str]]) -> _RocmTables:
    told = _RocmTables()
    in_table = False
    for number, line in numbered:
        if title := _TITLE.fullmatch(line.strip()):
            in_table = (title[1] or title[2]).strip().lower() in _LINK_TYPES
        elif numa := _NUMA.fullmatch(line.strip()):
            told.nodes.setdefault(int(numa[1]), int(numa[2]))
        elif in_table and not told.labels:
            words = line.split()
            indices = {word: index for place, word in enumerate(words) if (index := _index(word, place)) is not None}
            if 0 < len(indices) == len(words) <= _MOST_ROCM_LABELS:
                told.labels, told.indices = words, indices
        elif in_table and (words := line.split()) and words[0] in told.indices:
            one = told.indices[words[0]]
            quote = model.Quote(path, number, line.rstrip()[:_QUOTED])
            for other_label, word in zip(told.labels, words[1:], strict=False):
                kind, other = _KINDS.get(word), told.indices[other_label]
                if kind is not None and other != one and (other, one) not in told.paths:
                    told.paths.setdefault((one, other), model.Path(kind, quote=quote))
    return told


def _index(label: str, place: int) -> int | None:
    """A GPU's index: in its label, or, of bus ids, its place."""
    if (match := _GPU.fullmatch(label)) is not None:
        return int(match[1])
    return None if model.normal_bus_id(label) is None else place
