"""Finds what programs printed about a host in files that somebody saved: nvidia-smi, the kernel's log, bug reports."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from traceops.core.regular_file import LARGEST_DOCUMENT, open_regular
from traceops.machine.nvlink import named_gpus, parse_nvlink_status, parse_p2p
from traceops.machine.probe import HostFacts
from traceops.machine.programs import Output
from traceops.machine.smi import parse_smi
from traceops.machine.smi_text import listed_gpus
from traceops.machine.xids import parse_xids

_GZIP = b"\x1f\x8b"
_MARKS = (
    b"NVSMI LOG",
    b"<nvidia_smi_log",
    b"NVRM: Xid",
    b"fallen off the bus",
    b"Linux version",
    b"(UUID: ",
    b"GPU0",
)
_BOOT = re.compile(r"^(?:\[ *0\.000000\] |.{0,60} kernel: (?:\[ *0\.000000\] )?)Linux version \d", re.M)
_BUG_REPORT = "NVIDIA bug report log file"
_OTHER_P2P = re.compile(r"-p2p\s+(?!rw?\b|w\b)\w")
NOT_WHOLE = "the output of nvidia-smi -q is cut off, or was made with -d; give the whole output"


@dataclass(frozen=True)
class SavedOutputs:
    """What files hold of one host's programs. name: the host's, or the file's. outputs: by field of HostFacts."""

    name: str
    outputs: Mapping[str, str]

    @property
    def facts(self) -> HostFacts:
        smi, p2p, nvlink, log = (
            Output(self.outputs.get(name, "")) for name in ("smi", "p2p", "nvlink", "log")
        )
        return HostFacts(self.name, smi=smi, p2p=p2p, nvlink=nvlink, log=log)


@dataclass
class _Found:
    files: list[tuple[Path, dict[str, str]]] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def read_outputs(
    paths: Iterable[Path],
) -> tuple[tuple[SavedOutputs, ...], frozenset[Path], tuple[tuple[str, str], ...]]:
    """Hosts that the files tell of, the files that did, and what could not be used of which file.

    Files of different programs are of one host; where a program's output is there twice, each folder is a host, and
    where it is twice in a folder, each file.
    """
    found = _Found()
    for path in paths:
        _read(path, found)
    told = frozenset(path for path, _ in found.files)
    return tuple(_hosts(found.files)), told, tuple(found.problems)


def _read(path: Path, found: _Found) -> None:
    try:
        text = _text(path)
    except (OSError, EOFError, zlib.error):  # who reads the fabric says what is wrong with it
        return
    outputs: dict[str, str] = {}
    smi = parse_smi(text)
    if smi is not None and smi.gpus:
        outputs["smi"] = text
        if 0 < len(smi.gpus) < listed_gpus(text):
            found.problems.append(
                (str(path), f"{NOT_WHOLE}: {len(smi.gpus)} of {listed_gpus(text)} GPUs are whole")
            )
    elif smi is not None or "<nvidia_smi_log" in text:
        found.problems.append((str(path), NOT_WHOLE))
    if named_gpus(text) and any(one.up or one.down for one in parse_nvlink_status(text).values()):
        outputs["nvlink"] = text
    if parse_p2p(text) and not _OTHER_P2P.search(text):
        outputs["p2p"] = text
    if parse_xids(text) or _BOOT.search(text):
        outputs["log"] = _once(text) if _BUG_REPORT in text else text
    if outputs:
        found.files.append((path, outputs))


def _once(report: str) -> str:
    """The driver's lines of a bug report, which holds the kernel's log several times, each once."""
    lines = (line for line in report.splitlines() if "NVRM: " in line)
    return "\n".join({line[line.index("NVRM: ") :].strip(): line for line in lines}.values())


def _text(path: Path) -> str:
    """A file's text, unpacked; empty for one without a mark of what is looked for, and for one that is too large."""
    with open_regular(path) as file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        data = (gzip.GzipFile(fileobj=file) if packed else file).read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT or not any(mark in data for mark in _MARKS):
        return ""
    return data.decode(errors="replace").replace("\r\n", "\n")


def _hosts(files: Sequence[tuple[Path, dict[str, str]]]) -> Iterable[SavedOutputs]:
    """The files in groups of one host each."""
    if not files or _fit(files):
        groups = [(files[0][0].name, files)] if files else []
    else:
        folders: dict[Path, list[tuple[Path, dict[str, str]]]] = {}
        for one in files:
            folders.setdefault(one[0].parent, []).append(one)
        groups = []
        for folder, inside in folders.items():
            whole = len(folders) > 1 and _fit(inside)
            groups += [(folder.name, inside)] if whole else [(one[0].name, [one]) for one in inside]
    for name, members in groups:
        yield SavedOutputs(name, {program: text for _, texts in members for program, text in texts.items()})


def _fit(files: Sequence[tuple[Path, dict[str, str]]]) -> bool:
    """Whether no program's output is there twice."""
    programs = [program for _, outputs in files for program in outputs]
    return len(programs) == len(set(programs))
