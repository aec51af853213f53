"""Finds what programs printed about a host in files that somebody saved: nvidia-smi, the kernel's log, bug reports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.errors import InputError
from traceops.core.files import LARGEST_DOCUMENT
from traceops.fabric.model import Gpu, Machine, normal_bus_id
from traceops.machine.saved_programs import Outputs, is_bug_report, read_programs
from traceops.machine.smi import SmiGpu
from traceops.machine.smi_table import ListedGpu
from traceops.traces.text_lines import whole_text

# The text of a file that somebody saved, in parts of one host each: pdsh, clush, ansible and syslog name them.

_MARKS = (
    b"NVSMI LOG", b"NVIDIA-SMI ", b"Volatile Uncorr. ECC", b"CUDA used to build PyTorch",
    b"GPU models and configuration", b"the device handle for", b"NVIDIA-SMI has failed", b"Failed to initialize NVML",
    b"Fabric", b"<nvidia_smi_log", b"NVRM: ", b"fallen off the bus", b"Linux version", b"(UUID: ", b"GPU0",
)  # fmt: skip
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,40}[A-Za-z]")
# ``node1: `` of pdsh and clush, ``0: `` of srun -l; not the driver's own tag in a log without times.
_SPEAKER = re.compile(r"^(?!NVRM:|nvidia[\w-]*:|GPU\d)([A-Za-z0-9][\w.-]{0,99}):(?: |$)")
_SPOKEN_SHARE = 0.9
_SAMPLE = 1 << 18  # characters
_MOST_SPEAKERS = 4096
_RULED = re.compile(r"^-{4,200}\n([\w.\[\],-]{1,200})(?: \(\d{1,6}\))?\n-{4,200}$", re.M)
_ANSIBLE = re.compile(r"^([\w.-]{1,100}) \| (?:CHANGED|SUCCESS|FAILED)\b.{0,40}>>$", re.M)
_SYSLOG = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,25}) ([\w.-]{1,100}) kernel: ", re.M
)
_REPORT = re.compile(r"^(?:=+NVSMI LOG=+\s*$|<\?xml |<nvidia_smi_log)", re.M)
_UUID = re.compile(r"^[ \t]{0,40}(?:GPU UUID {0,60}: |<uuid>)([\w-]{1,80})", re.M)
CUT_OFF = "what comes after the place where the archive is cut off or damaged"


def saved_text(path: Path) -> tuple[str, str | None]:
    """A file's text, unpacked, and what is wrong with it; empty where it lacks every mark of what is looked for."""
    data, problem = whole_text(str(path), LARGEST_DOCUMENT)
    if len(data) > LARGEST_DOCUMENT or not any(mark in data for mark in _MARKS):
        return "", problem and CUT_OFF
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    return (_ESCAPE.sub("", text) if "\x1b[" in text else text), problem and CUT_OFF


def by_host(text: str) -> list[tuple[str | None, str]]:
    """What is of one host each, and its name; None where nobody says whose it is."""
    for split in (_by_speaker, _by_heading, _by_syslog):
        if len(parts := split(text)) > 0:
            return [(host, part) for host, said in parts for part in _reports(said)]
    return [(None, part) for part in _reports(text)]


def _by_speaker(text: str) -> list[tuple[str | None, str]]:
    first = [line for line in text[:_SAMPLE].splitlines() if line.strip()]
    if not first or sum(_SPEAKER.match(line) is not None for line in first) < _SPOKEN_SHARE * len(first):
        return []
    lines = [line for line in text.splitlines() if line.strip()]
    if any("NVRM: " in line and _SPEAKER.match(line) is None for line in lines):  # the kernel's own words
        return []
    said: dict[str | None, list[str]] = {}
    for line in lines:
        if (match := _SPEAKER.match(line)) is not None and len(said) < _MOST_SPEAKERS:
            said.setdefault(match[1], []).append(line[match.end() :])
    return [(None if host is None or host.isdigit() else host, "\n".join(words)) for host, words in said.items()]


def _by_heading(text: str) -> list[tuple[str | None, str]]:
    heads = list(_RULED.finditer(text)) or list(_ANSIBLE.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    said: dict[str | None, str] = {}
    for head, end in zip(heads, ends, strict=True) if heads else ():
        said[head[1]] = said.get(head[1], "") + text[head.end() : end]
    return list(said.items())


def _by_syslog(text: str) -> list[tuple[str | None, str]]:
    """The log of several hosts, as a central syslog keeps it; of one alone the text stays whole."""
    hosts = Counter(match[1] for match in _SYSLOG.finditer(text))
    if len(hosts) < 2:
        return [(host, text) for host in hosts]
    said: dict[str | None, list[str]] = {host: [] for host in hosts}
    for line in text.splitlines():
        if (match := _SYSLOG.match(line)) is not None:
            said[match[1]].append(line)
    return [(host, "\n".join(words)) for host, words in said.items()]


def _reports(text: str) -> Iterator[str]:
    """The outputs of nvidia-smi -q apart that are of other GPUs; of the same ones the text stays whole."""
    starts = [match.start() for match in _REPORT.finditer(text)]
    ends = [*starts[1:], len(text)]
    first: dict[frozenset[str], int] = {}
    last: dict[frozenset[str], int] = {}
    for start, end in zip(starts, ends, strict=True) if starts else ():
        if gpus := frozenset(_UUID.findall(text, start, end)):
            first.setdefault(gpus, start)
            last[gpus] = end
    if len(first) < 2 or any(one & other for one in first for other in first if one != other):
        yield text
        return
    for gpus, begin in first.items():
        yield text[begin : last[gpus]]


class ToldGpus(Struct, frozen=True):
    """count: of all GPUs of the host, None where the output may tell of some only. By index where it tells that."""

    count: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    uuids: Mapping[int, str] = field(default_factory=dict)
    bus_ids: frozenset[str] = frozenset()


class Difference(Struct, frozen=True):
    """What differs between two outputs. ours and theirs: how many GPUs, where told. gpu: of which GPU it is told."""

    kind: Literal["count", "model", "uuid", "bus_id"]
    ours: int | None = None
    theirs: int | None = None
    gpu: int | None = None


def told_gpus(outputs: Outputs) -> tuple[ToldGpus, ...]:
    """What each program's output tells."""
    told: list[ToldGpus] = []
    if outputs.smi is not None:
        gpus = outputs.smi.smi.gpus
        count = outputs.smi.listed or len(gpus)
        told.append(_told(gpus if len(gpus) == count else (), count))
    if outputs.table is not None and (table := outputs.table.table) is not None:
        # A truncated name differs from the whole one of the same GPU.
        cut = table.half or table.unread or table.cut
        whole = _told(table.smi.gpus, len(table.smi.gpus))
        told.append(ToldGpus(bus_ids=whole.bus_ids) if cut else whole)
    if outputs.listed is not None:
        told.append(_told(outputs.listed))
    if outputs.nvlink is not None:
        told.append(_told([ListedGpu(*named) for named in outputs.nvlink.named]))
    if outputs.p2p is not None:
        told.append(ToldGpus(len({index for pair in outputs.p2p for index in pair})))
    return tuple(told)


def _told(gpus: Sequence[SmiGpu | ListedGpu | Gpu], count: int | None = None) -> ToldGpus:
    return ToldGpus(
        count,
        {gpu.index: _name(gpu.name) for gpu in gpus if gpu.name},
        {gpu.index: gpu.uuid for gpu in gpus if gpu.uuid},
        frozenset(gpu.bus_id for gpu in gpus if not isinstance(gpu, ListedGpu) and gpu.bus_id),
    )


def with_bus_ids(machine: Machine, outputs: Outputs) -> Machine:
    """A matrix has no bus ids: those that nvidia-smi tells of the same GPUs, where it tells one for each."""
    if any(gpu.bus_id for gpu in machine.gpus):
        return machine
    listed = [outputs.smi.smi.gpus] if outputs.smi is not None else []
    if outputs.table is not None and (table := outputs.table.table) is not None:
        listed.append(table.smi.gpus)
    for gpus in listed:
        buses = {gpu.index: bus for gpu in gpus if (bus := normal_bus_id(gpu.bus_id))}
        if len(gpus) == len(set(buses.values())) and buses.keys() == {gpu.index for gpu in machine.gpus}:
            return replace(machine, gpus=tuple(replace(gpu, bus_id=buses[gpu.index]) for gpu in machine.gpus))
    return machine


def difference(one: ToldGpus, other: ToldGpus) -> Difference | None:
    """Why the two cannot be of one machine at one time; None where nothing speaks against it."""
    if one.count and other.count and one.count != other.count:
        return Difference("count", one.count, other.count)
    for index in sorted({*one.names, *one.uuids}):
        if other.count and index >= other.count:
            return Difference("count", None, other.count, index)
        if one.names.get(index, "") != other.names.get(index, one.names.get(index, "")):
            return Difference("model", gpu=index)
        ours, theirs = one.uuids.get(index), other.uuids.get(index)
        if ours and theirs and ours.lower() != theirs.lower():
            return Difference("uuid", gpu=index)
    beyond = [index for index in {*other.names, *other.uuids} if one.count and index >= one.count]
    if beyond:
        return Difference("count", one.count, None, min(beyond))
    if one.bus_ids and other.bus_ids and not (one.bus_ids <= other.bus_ids or other.bus_ids <= one.bus_ids):
        return Difference("bus_id")
    return None


def _name(name: str) -> str:
    return re.sub(r"^nvidia ", "", " ".join(name.lower().split()))


class Apart(Struct, frozen=True):
    """Two files whose GPUs cannot be those of one machine at one time. why: what differs, as `difference` says."""

    file: str
    other: str
    why: Difference


class SavedOutputs(Struct, frozen=True):
    """What files hold of one host's programs. name: the host's, or the file's. host: as the files name it, None where
    they do not. files: where the outputs were found. apart: why another file is not taken for one of this host."""

    name: str
    outputs: Outputs
    host: str | None = None
    files: tuple[str, ...] = ()
    apart: Apart | None = None

    def difference(self, machine: Machine) -> Difference | None:
        """Why the host cannot be this machine, at one time; None where nothing speaks against it."""
        # A matrix has all GPUs of its host; NCCL's log may have only those of a job.
        if any(gpu.bus_id for gpu in machine.gpus):
            theirs = ToldGpus(bus_ids=frozenset(found for gpu in machine.gpus if (found := normal_bus_id(gpu.bus_id))))
        else:
            theirs = _told(machine.gpus, len(machine.gpus))
        told = (difference(one, theirs) for one in told_gpus(self.outputs))
        return next((why for why in told if why is not None), None)


class _Part(Struct, frozen=True):
    """What a file holds of one host. name: the host's, None where nobody says it."""

    path: Path
    name: str | None
    outputs: Outputs


def read_outputs(
    paths: Iterable[Path],
) -> tuple[tuple[SavedOutputs, ...], frozenset[Path], tuple[tuple[str, str], ...]]:
    """Hosts that the files tell of, the files that did, and what could not be used of which file. Files of different
    programs are of one host, unless they name several hosts, or their GPUs differ; where a program's output is there
    twice, each folder is a host, and where it is twice in a folder, each file."""
    parts, problems = list[_Part](), list[tuple[str, str]]()
    for path in paths:
        try:
            text, problem = saved_text(path)
        except InputError:  # what reads the fabric reports what is wrong with it
            continue
        if problem is not None:
            problems.append((str(path), problem))
        whole = is_bug_report(text)  # of one host, with rules and prefixes of its own
        for host, said in [(None, text)] if whole else by_host(text):
            outputs, unusable = read_programs(said)
            problems += [(str(path), what) for what in unusable]
            if outputs.programs:
                parts.append(_Part(path, host, outputs))
    names = list(dict.fromkeys(part.name for part in parts if part.name is not None))
    if len(names) < 2:  # parts that name no host are of the only one
        hosts = _groups(parts, names[0] if names else None)
    else:
        named = ((name, [part for part in parts if part.name == name]) for name in (*names, None))
        hosts = [host for name, own in named for host in _groups(own, name)]
    return tuple(hosts), frozenset(part.path for part in parts), tuple(problems)


def _groups(parts: Sequence[_Part], name: str | None) -> list[SavedOutputs]:
    """Parts of a host, or those of which nobody says the host: then folders and files are taken for hosts."""
    if not parts:
        return []
    if _fit(parts):
        return _together(name or parts[0].path.name, parts)
    folders: dict[Path, list[_Part]] = {}
    for part in parts:
        folders.setdefault(part.path.parent, []).append(part)
    groups: list[SavedOutputs] = []
    for folder, inside in folders.items():
        if len(folders) > 1 and _fit(inside):
            groups += _together(folder.name, inside)
        else:
            groups += [_saved(_name_of(part, inside), [part]) for part in inside]
    return groups


def _together(name: str, parts: Sequence[_Part]) -> list[SavedOutputs]:
    """Parts of different programs as one host; each by itself where their GPUs are not those of one."""
    if (apart := _apart(parts)) is None:
        return [_saved(name, parts)]
    hosts = [_saved(_name_of(part, parts), [part]) for part in parts]
    return [replace(one, apart=apart) if apart.file in one.files else one for one in hosts]


def _name_of(part: _Part, beside: Sequence[_Part]) -> str:
    """The host's name, or the file's, with its place there where it has several."""
    same = [other for other in beside if other.path == part.path]
    if part.name is not None and sum(other.name == part.name for other in beside) == 1:
        return part.name
    if part.name is not None and len(same) == 1:
        return f"{part.name} ({part.path.name})"
    place = next(at for at, other in enumerate(same, 1) if other is part)
    return part.path.name if len(same) == 1 else f"{part.path.name} ({place})"


def _saved(name: str, parts: Sequence[_Part]) -> SavedOutputs:
    outputs = reduce(Outputs.with_those_of, (part.outputs for part in parts))
    hosts = {part.name for part in parts if part.name is not None}
    files = tuple(dict.fromkeys(str(part.path) for part in parts))
    return SavedOutputs(name, outputs, hosts.pop() if len(hosts) == 1 else None, files)


def _fit(parts: Sequence[_Part]) -> bool:
    """Whether no program's output is there twice."""
    programs = [program for part in parts for program in part.outputs.programs]
    return len(programs) == len(set(programs))


def _apart(parts: Sequence[_Part]) -> Apart | None:
    """The first two files whose GPUs cannot be of one machine."""
    told = [(str(part.path), gpus) for part in parts for gpus in told_gpus(part.outputs)]
    for (path, gpus), (other, others) in combinations(told, 2):
        if path != other and (why := difference(others, gpus)) is not None:
            return Apart(other, path, why)
    return None
