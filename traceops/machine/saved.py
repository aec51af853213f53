"""Finds what programs printed about a host in files that somebody saved: nvidia-smi, the kernel's log, bug reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import combinations
from pathlib import Path

from traceops.core.errors import InputError
from traceops.fabric.model import Machine
from traceops.machine.bug_report import is_bug_report
from traceops.machine.saved_gpus import Difference, difference, gpus_of, told_gpus
from traceops.machine.saved_programs import Outputs, read_programs
from traceops.machine.saved_text import by_host, saved_text


@dataclass(frozen=True)
class Apart:
    """Two files whose GPUs cannot be those of one machine at one time. why: what differs, as `difference` says."""

    file: str
    other: str
    why: Difference


@dataclass(frozen=True)
class SavedOutputs:
    """What files hold of one host's programs. name: the host's, or the file's.

    host: as the files name it, None where they do not. files: where the outputs were found. apart: why another file
    is not taken for one of this host.
    """

    name: str
    outputs: Outputs
    host: str | None = None
    files: tuple[str, ...] = ()
    apart: Apart | None = None

    def difference(self, machine: Machine) -> Difference | None:
        """Why the host cannot be this machine, at one time; None where nothing speaks against it."""
        theirs = gpus_of(machine)
        told = (difference(one, theirs) for one in told_gpus(self.outputs))
        return next((why for why in told if why is not None), None)


@dataclass(frozen=True)
class _Part:
    """What a file holds of one host. name: the host's, None where nobody says it."""

    path: Path
    name: str | None
    outputs: Outputs


@dataclass
class _SavedFound:
    parts: list[_Part] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def read_outputs(
    paths: Iterable[Path],
) -> tuple[tuple[SavedOutputs, ...], frozenset[Path], tuple[tuple[str, str], ...]]:
    """Hosts that the files tell of, the files that did, and what could not be used of which file.

    Files of different programs are of one host, unless they name several hosts, or their GPUs differ; where a
    program's output is there twice, each folder is a host, and where it is twice in a folder, each file.
    """
    found = _SavedFound()
    for path in paths:
        _read(path, found)
    told = frozenset(part.path for part in found.parts)
    return tuple(_hosts(found)), told, tuple(found.problems)


def _read(path: Path, found: _SavedFound) -> None:
    try:
        text, problem = saved_text(path)
    except InputError:  # who reads the fabric says what is wrong with it
        return
    if problem is not None:
        found.problems.append((str(path), problem))
    whole = is_bug_report(text)  # of one host, with rules and prefixes of its own
    for host, said in [(None, text)] if whole else by_host(text):
        outputs, unusable = read_programs(said)
        found.problems += [(str(path), what) for what in unusable]
        if outputs.programs:
            found.parts.append(_Part(path, host, outputs))


def _hosts(found: _SavedFound) -> Iterable[SavedOutputs]:
    """The parts in groups of one host each."""
    names = dict.fromkeys(part.name for part in found.parts if part.name is not None)
    if len(names) < 2:  # those that name no host are of the only one
        return _groups(found.parts, next(iter(names), None))
    hosts: list[SavedOutputs] = []
    for name in (*names, None):
        hosts += _groups([part for part in found.parts if part.name == name], name)
    return hosts


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
    apart = _apart(parts)
    if apart is None:
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
