"""Reads what a text holds of the programs that show a host's GPUs, and reports what of it cannot be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from traceops.machine import smi_table
from traceops.machine.platform import Links, named_gpus, p2p_matrices, parse_nvlink_status
from traceops.machine.smi import Smi, SmiGpu, fabric_states, listed_gpus, parse_parts, parse_smi, waiting
from traceops.machine.xids import DriverLog, begins_at_boot, parse_driver_log

_TITLE = "NVIDIA bug report log file"
_RULE = "____"
_JOURNAL = re.compile(r"\s{0,8}journalctl -b -(\d)")
_FILE = re.compile(r"\s{0,8}(?:\*\*\* )?/var/log/\S{1,80}\s{0,8}$")  # of any boots
_REBOOT = "-- Reboot --"


def is_bug_report(text: str) -> bool:
    return _TITLE in text


def driver_log(report: str) -> str:
    """The driver's lines, each once: those of earlier boots, and after a line as of journalctl those of this one. What
    only files of /var/log have is of an earlier boot where the journal of this one is there."""
    now: dict[str, str] = {}
    before: dict[str, str] = {}
    filed: dict[str, str] = {}
    section, journal = now, False
    for line in report.splitlines():
        if line.startswith(_RULE):
            section = now
        elif (match := _JOURNAL.match(line)) is not None:
            section = now if match[1] == "0" else before
            journal |= match[1] == "0"
        elif _FILE.match(line) is not None:
            section = filed
        elif "NVRM: " in line:
            section.setdefault(line[line.index("NVRM: ") :].strip(), line)
    filed = {said: line for said, line in filed.items() if said not in now and said not in before}
    (before if journal else now).update(filed)
    earlier = [line for said, line in before.items() if said not in now]
    return "\n".join([*earlier, *([_REBOOT] if earlier else []), *now.values()])


# Reads what ``python -m torch.utils.collect_env``, and vLLM's program of that name, print of torch.

_NCCL = re.compile(r"^[ \t>]{0,20}\[(?:pip3?|conda)\] nvidia-nccl-(cu\d{1,3})(?:==| +)([\d.]{1,20})", re.M)
_VARIABLES = re.compile(r"^vLLM Build Flags", re.M)
_SET = re.compile(r"^([A-Z][A-Z0-9_]{2,60})=(.*)$", re.M)
_MOST, _MOST_VALUE = 200_000, 4000
_UNKNOWN = ("", "n/a", "none", "could not collect", "no cuda")


@dataclass(frozen=True)
class TorchEnvironment:
    """None for what is not told. cuda and hip: what torch was built for. sees_gpus: as torch says itself. wheels: of
    NCCL, by CUDA (``cu13``). variables: what is set, of the families that vLLM prints."""

    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    driver: str | None = None
    sees_gpus: bool | None = None
    wheels: tuple[tuple[str, str], ...] = ()
    variables: Mapping[str, str] | None = field(default=None, hash=False)


_BUILT = "CUDA used to build PyTorch"
_FIELDS = ("PyTorch version", _BUILT, "ROCM used to build PyTorch", "Nvidia driver version")


def parse_environment(text: str) -> TorchEnvironment | None:
    """The last one of a text; None where there is none."""
    if (at := text.rfind(_BUILT)) < 0:
        return None
    begin = text.rfind(_FIELDS[0], 0, at)
    text = text[max(begin, 0) :][:_MOST]
    told: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        told.setdefault(name.strip(), value.strip())

    def known(name: str) -> str | None:
        value = told.get(name, "")
        return None if value.lower() in _UNKNOWN else value

    version, cuda, hip, driver = map(known, _FIELDS)
    sees_gpus = {"true": True, "yes": True, "false": False, "no": False}.get(told.get("Is CUDA available", "").lower())
    wheels = tuple(sorted(set(_NCCL.findall(text))))
    vllm = _VARIABLES.search(text)  # what vLLM prints at the end
    variables = {name: value[:_MOST_VALUE].strip() for name, value in _SET.findall(text, vllm.end())} if vllm else {}
    return TorchEnvironment(version, cuda, hip, driver, sees_gpus, wheels, variables or None)


_OTHER_P2P = re.compile(r"-p2p\s+(?!rw?\b|w\b)\w")
ONLY_TROUBLE = "of nvidia-smi -q a part is there: only trouble in it is told; give the whole output"
NOT_WHOLE = "the output of nvidia-smi -q is cut off, or was made with -d or -i; give the whole output"
SOME_WHOLE = NOT_WHOLE + ": {} of {} GPUs are whole"
SEVERAL_LINKS = "`nvidia-smi nvlink -s` of several machines in one file, unnamed; give each in a file of its own"
NOT_WHOLE_TABLE = "the table of nvidia-smi is cut off: {} of its GPUs has no second row, and is not judged"
SEVERAL_TABLES = (
    "tables of nvidia-smi that differ in one file, unnamed: of several machines, or of before and after a change; give "
    "each in a file of its own"
)
SEVERAL_LISTS = "lists of different GPUs (nvidia-smi -L) in one file, unnamed; give each in a file of its own"
SEVERAL_P2P = "matrices of direct access that differ; give the one of `nvidia-smi topo -p2p r` alone"


@dataclass(frozen=True)
class SmiOutput:
    """nvidia-smi -q. listed: GPUs that it says there are; 0 where it does not say."""

    smi: Smi
    listed: int


@dataclass(frozen=True)
class TableOutput:
    """nvidia-smi alone. table: None where it only names GPUs that it could not reach, or failed, and why."""

    table: smi_table.SmiTable | None
    lost: tuple[smi_table.LostGpu, ...] = ()
    failed: str | None = None


@dataclass(frozen=True)
class LinkOutput:
    """nvidia-smi nvlink -s. named: index, name and UUID of each GPU."""

    links: Mapping[int, Links]
    named: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True)
class Outputs:
    """What programs printed about one host; None where nothing holds it. parts: GPUs of which nvidia-smi -q -d tells a
    part, where that is trouble of one of them. fabric: states of GPUs that wait for it, from a piece of nvidia-smi -q,
    which never tells that none does."""

    smi: SmiOutput | None = None
    table: TableOutput | None = None
    listed: tuple[smi_table.ListedGpu, ...] | None = None
    environment: TorchEnvironment | None = None
    nvlink: LinkOutput | None = None
    p2p: Mapping[tuple[int, int], str] | None = None
    log: DriverLog | None = None
    fabric: tuple[str, ...] | None = None
    parts: tuple[SmiGpu, ...] | None = None

    @property
    def programs(self) -> tuple[str, ...]:
        """Which fields hold something."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) is not None)

    def with_those_of(self, other: Outputs) -> Outputs:
        """Both; the other's where both have a program's."""
        return replace(self, **{name: getattr(other, name) for name in other.programs})


def read_programs(text: str) -> tuple[Outputs, tuple[str, ...]]:
    """What a text holds, each program's output parsed once, and what of it cannot be used."""
    problems: list[str] = []
    of_links: list[str] = []
    smi = parse_smi(text)
    parts = None if smi is None or smi.gpus else _parts(text)
    nvlink = _links(text, of_links)
    read = Outputs(
        smi=_smi(text, smi, problems, parts=parts is not None), table=_table(text, smi, problems),
        listed=_list(text, problems, said=bool(of_links)), environment=parse_environment(text), nvlink=nvlink,
        p2p=_p2p(text, problems), log=_log(text), parts=parts,
        fabric=None if smi is not None and smi.gpus else tuple(waiting(fabric_states(text))) or None,
    )  # fmt: skip
    return read, (*problems, *of_links)


def _parts(text: str) -> tuple[SmiGpu, ...] | None:
    """The GPUs of an output that is cut off, where one of them is in trouble."""
    parts = parse_parts(text)
    for gpu in parts:
        trouble = gpu.uncorrectable or gpu.broken or gpu.pending or gpu.recovery or gpu.compute_mode == "Prohibited"
        if trouble or any(one.endswith("slowdown") for one in gpu.reasons):
            return parts
    return None


def _smi(text: str, smi: Smi | None, problems: list[str], *, parts: bool) -> SmiOutput | None:
    if smi is None or not smi.gpus:
        if smi is not None or "<nvidia_smi_log" in text:
            problems.append(ONLY_TROUBLE if parts else NOT_WHOLE)
        return None
    whole, listed = len(smi.gpus), listed_gpus(text)
    if whole < listed:
        problems.append(SOME_WHOLE.format(whole, listed))
    return SmiOutput(smi, listed)


def _table(text: str, smi: Smi | None, problems: list[str]) -> TableOutput | None:
    found, lost = smi_table.tables(text), smi_table.lost_gpus(text)
    if not found:
        failed = smi_table.failure(text) if smi is None else None
        return TableOutput(None, lost, failed) if lost or failed else None
    if (table := smi_table.of_one_machine(found)) is None:
        problems.append(SEVERAL_TABLES)
        sound = {gpu.bus_id for gpu in found[-1].smi.gpus}  # since, if it is the same machine
        told = dict.fromkeys((*lost, *(gpu for one in found for gpu in one.unread)))
        gone = tuple(gpu for gpu in told if gpu.bus_id not in sound)
        return TableOutput(None, gone) if gone else None
    if table.half and smi is None:
        problems.append(NOT_WHOLE_TABLE.format(table.half))
    return TableOutput(table if table.smi.gpus else None, (*lost, *table.unread))


def _links(text: str, problems: list[str]) -> LinkOutput | None:
    named = named_gpus(text) if "(UUID: " in text else ()
    links = parse_nvlink_status(text) if named else {}
    if not any(one.up or one.down for one in links.values()):
        return None
    if len({index for index, _, _ in named}) < len(named):
        problems.append(SEVERAL_LINKS)
        return None
    return LinkOutput(links, named)


def _list(text: str, problems: list[str], *, said: bool) -> tuple[smi_table.ListedGpu, ...] | None:
    """said: that the text is of several machines."""
    lists = smi_table.lists_of_gpus(text)
    if gpus := smi_table.the_same_gpus(lists):
        return gpus
    if lists and not said:
        problems.append(SEVERAL_LISTS)
    return None


def _p2p(text: str, problems: list[str]) -> Mapping[tuple[int, int], str] | None:
    matrices = p2p_matrices(text) if "GPU0" in text else []
    if not matrices or _OTHER_P2P.search(text):
        return None
    if any(one != matrices[0] for one in matrices):
        problems.append(SEVERAL_P2P)
        return None
    return matrices[0]


def _log(text: str) -> DriverLog | None:
    log = parse_driver_log(driver_log(text) if is_bug_report(text) else text)
    return log if log.tells or begins_at_boot(text) else None
