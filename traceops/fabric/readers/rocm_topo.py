"""Machines from the text of ``rocm-smi --showtopo`` and ``amd-smi topology``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from traceops.core.errors import FileError
from traceops.fabric.bus_ids import normal_bus_id
from traceops.fabric.model import Gpu, Machine, Path, PathKind, Quote
from traceops.traces.text_lines import lines as text_of
from traceops.traces.text_lines import text_lines

_KINDS: dict[str, PathKind] = {"XGMI": "XGMI", "PCIE": "PCIE"}
# ``=== Link Type between two GPUs ===`` of rocm-smi, ``LINK TYPE TABLE:`` of amd-smi, and the other tables' titles.
_TITLE = re.compile(r"={3,200} (.{1,80}?) ={3,200}|([A-Z][A-Z -]{2,60}) TABLE:")
_LINK_TYPES = ("link type between two gpus", "link type")
_GPU = re.compile(r"GPU(\d{1,4})", re.ASCII)
_NUMA = re.compile(r"GPU ?\[?(\d{1,4})\]?\s{0,40}: \(Topology\) Numa Node: (\d{1,6})", re.ASCII)
_MOST_LABELS = 1024
_QUOTED = 300


@dataclass
class _RocmTables:
    """labels: of the columns; bus ids in amd-smi's tables. paths: by two GPUs' places."""

    labels: list[str] = field(default_factory=list)
    paths: dict[tuple[int, int], Path] = field(default_factory=dict)
    nodes: dict[int, int] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)


def read_rocm_topo(path: str, text: str | None = None) -> tuple[Machine, ...]:
    """The machine whose link types are in a file, or in `text`: what runs over XGMI and what over PCIe.

    NUMA nodes where rocm-smi says them. GPUs count in the order of the table, which is the tools' own. Raises
    InputError where the file cannot be read or holds no table of link types.
    """
    told = _told(path, text_lines(path) if text is None else text_of(text.encode(errors="surrogateescape"), 1))
    if not _tells(told):
        raise FileError(
            path,
            "holds no table of link types; save the whole output of `rocm-smi --showtopo` or of `amd-smi topology`",
        )
    gpus = [
        Gpu(told.indices[label], bus_id=normal_bus_id(label), numa=told.nodes.get(told.indices[label]))
        for label in told.labels
    ]
    paths = {(f"GPU{one}", f"GPU{other}"): found for (one, other), found in told.paths.items()}
    return (Machine(None, tuple(gpus), (), paths, (path,)),)


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
        elif in_table:
            _add(told, line, path, number)
    return told


def _add(told: _RocmTables, line: str, path: str, number: int) -> None:
    words = line.split()
    if not told.labels:
        indices = {word: index for place, word in enumerate(words) if (index := _index(word, place)) is not None}
        if 0 < len(indices) == len(words) <= _MOST_LABELS:
            told.labels, told.indices = words, indices
        return
    if not words or words[0] not in told.indices:
        return
    one = told.indices[words[0]]
    for other_label, word in zip(told.labels, words[1:], strict=False):
        kind, other = _KINDS.get(word), told.indices[other_label]
        if kind is not None and other != one and (other, one) not in told.paths:
            quote = Quote(path, number, line.rstrip()[:_QUOTED])
            told.paths.setdefault((one, other), Path(kind, quote=quote))


def _index(label: str, place: int) -> int | None:
    """A GPU's index: in its label, or, of bus ids, its place."""
    match = _GPU.fullmatch(label)
    if match is not None:
        return int(match[1])
    return None if normal_bus_id(label) is None else place
