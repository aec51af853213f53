"""Reads the table that ``nvidia-smi`` alone prints, of drivers from 340 on, and its words on GPUs that it lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.fabric.model import normal_bus_id
from traceops.machine.smi import GpuProcess, Smi, SmiGpu

_NO_NUMBERS = "ERR! in place of its numbers"
_HEADER = re.compile(r"NVIDIA-SMI +\d[\d.]{0,20} +Driver Version: *([\d.]{1,20})(?: +CUDA Version: *([\d.]{1,8}))?")
_NAME = re.compile(r"(\d{1,3}) +(\S.{0,80}?) +(On|Off|N/A|WDDM|TCC|MCDM|ERR!)")
_PLACE = re.compile(r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]) +(?:On|Off|N/A|ERR!)")
_MEMORY = re.compile(r"(\d{1,9})MiB */ *(\d{1,9})MiB")
_POWER = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)W */ *(\d{1,5}(?:\.\d{1,3})?)W")
_USE = re.compile(r"(?:(\d{1,3})%|N/A|ERR!) +(Default|E\. Process|E\. Thread|Prohibited)")
_STATE = re.compile(r"\bP(\d{1,2})\b")
_HEAT = re.compile(r"\b(\d{1,3})C\b")
_PROCESS = re.compile(
    r"(\d{1,3}) +(?:(?:N/A|\d{1,3}) +(?:N/A|\d{1,3}) +)?(\d{1,10}) +(C|G|C\+G|M|M\+C) +(\S.{0,300}?) +"
    r"(\d{1,9})?(?:MiB|N/A)"
)
_MODES = {"E. Process": "Exclusive_Process", "E. Thread": "Exclusive_Thread"}
_MIG = {"Enabled": True, "Enabled*": True, "Disabled": False, "Disabled*": False}
_LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(\d{1,3})?:? ?"
    r"([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])?: {0,4}(\S.{0,60})",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"^[ \t]{0,20}(NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
    r"|Failed to initialize NVML: \S[^\n]{0,80}?)\.?(?: Make sure[^\n]{0,100})?[ \t]{0,20}$",
    re.M,
)
CUT = "..."
_ERROR = "ERR!"
_GIB = 1024
_MOST_CELL = 400


class LostGpu(Struct, frozen=True):
    """A GPU that nvidia-smi could not reach, by its number or its PCIe address, and what it said of it."""

    index: int | None
    bus_id: str | None
    said: str

    @property
    def label(self) -> str:
        if self.index is None:
            return f"the GPU at {self.bus_id}" if self.bus_id else "a GPU"
        return f"GPU{self.index}" + (f" at {self.bus_id}" if self.bus_id else "")


class SmiTable(Struct, frozen=True):
    """What one table tells. cut: names of GPUs are cut off in it. half: GPUs of which a part is missing. unread: GPUs
    of which nvidia-smi read errors in place of numbers; they are not among the others. The memory of a GPU whose name
    is cut off is a part of its name: RTX 3090 and 3060 look alike without it."""

    smi: Smi
    cut: bool
    half: int
    unread: tuple[LostGpu, ...] = ()


def tables(text: str) -> list[SmiTable]:
    """The tables of a text in their order. One without its head counts, as people paste it."""
    found: list[SmiTable] = []
    reading = _TableReading()
    for line in text.splitlines():
        if head := _HEADER.search(line):
            found += reading.end()
            reading = _TableReading(head[1], head[2])
        elif "|" in line:
            reading.read(line)
    return [*found, *reading.end()]


def of_one_machine(found: Sequence[SmiTable]) -> SmiTable | None:
    """The last of the tables; None where there is none, or they differ in more than what changes by the moment. Nodes
    of one cluster have the same models at the same addresses: what is set or broken on one of them tells."""
    if len({_lasting(table) for table in found}) != 1:
        return None
    errors = [[gpu.uncorrectable for gpu in table.smi.gpus] for table in found]
    fewer = any(now < before for one in errors for before, now in zip(one, errors[-1], strict=True))
    return None if fewer else found[-1]


def _lasting(table: SmiTable) -> SmiTable:
    """A table without what changes by the moment, and without counts of errors, which grow."""
    moment: dict[str, Any] = {"used": None, "power_draw": None, "temperature": None, "utilization": None}
    gpus = (replace(gpu, idle=False, processes=(), uncorrectable=0, **moment) for gpu in table.smi.gpus)
    return replace(table, smi=replace(table.smi, gpus=tuple(gpus)))


def lost_gpus(text: str) -> tuple[LostGpu, ...]:
    """GPUs that nvidia-smi says it cannot reach, each once."""
    found = _LOST.finditer(text)
    lost = (
        LostGpu(int(one[1]) if one[1] else None, normal_bus_id(one[2]), one[3].strip().rstrip(".")) for one in found
    )
    return tuple(dict.fromkeys(lost))


def failure(text: str) -> str | None:
    """Why nvidia-smi printed nothing else, in its words; None where it does not say so."""
    found = _FAILED.findall(text)
    return found[-1] if found else None


class _TableReading:
    """A table while it is read."""

    def __init__(self, driver: str | None = None, cuda: str | None = None) -> None:
        self._driver, self._cuda = driver, cuda
        self._gpus: dict[int, SmiGpu] = {}
        self._open: SmiGpu | None = None
        self._last: int | None = None
        self._half = 0
        self._cut = False
        self._fails = False  # the open one's name or errors could not be read
        self._unread: list[LostGpu] = []

    def read(self, line: str) -> None:
        cells = [cell.strip() for cell in line[line.index("|") :].strip().strip("|").split("|")]
        if len(cells) == 1:
            one = _PROCESS.fullmatch(cells[0][:_MOST_CELL])
            if one and (gpu := self._gpus.get(int(one[1]))) is not None:
                process = GpuProcess(int(one[2]), one[3], one[4], int(one[5]) if one[5] else None)
                self._gpus[gpu.index] = replace(gpu, processes=(*gpu.processes, process))
        elif len(cells) == 3:
            self._row(*(cell[:_MOST_CELL] for cell in cells))

    def end(self) -> Iterator[SmiTable]:
        self._half += self._open is not None
        if self._gpus or self._unread:
            smi = Smi(self._driver, self._cuda, tuple(self._gpus.values()))
            yield SmiTable(smi, self._cut, self._half, tuple(self._unread))

    def _row(self, left: str, middle: str, right: str) -> None:
        """The rows of a GPU: its name, what it uses, and from driver 450 on its MIG."""
        name, place, use = _NAME.fullmatch(left), _PLACE.fullmatch(middle), _USE.fullmatch(right)
        if name is not None and place is not None:
            self._half += self._open is not None
            self._open, self._last = _named(name, place, right), None
            self._fails = _ERROR in (name[2], right)
        elif self._open is not None and right.startswith(_ERROR) and (self._fails or right.endswith(_ERROR)):
            self._unread.append(LostGpu(self._open.index, self._open.bus_id, _NO_NUMBERS))
            self._open = None
        elif self._open is not None and use is not None:
            gpu, self._open = _using(self._open, left, middle, use), None
            self._cut |= CUT in gpu.name
            self._gpus[gpu.index] = gpu
            self._last = gpu.index
        elif self._last is not None and not left and not middle and right in _MIG:
            self._gpus[self._last] = replace(self._gpus[self._last], mig=_MIG[right], mig_pending=right.endswith("*"))
            self._last = None


def _named(name: re.Match[str], place: re.Match[str], errors: str) -> SmiGpu:
    return SmiGpu(
        int(name[1]), name[2], bus_id=normal_bus_id(place[1]),
        persistence={"On": True, "Off": False}.get(name[3]),
        ecc=True if errors.isdigit() else {"Off": False}.get(errors),
        uncorrectable=int(errors[:15]) if errors.isdigit() else 0,
    )  # fmt: skip


def _using(gpu: SmiGpu, left: str, middle: str, use: re.Match[str]) -> SmiGpu:
    memory, power, state, heat = (
        pattern.search(cell) for pattern, cell in
        ((_MEMORY, middle), (_POWER, left), (_STATE, left), (_HEAT, left))
    )  # fmt: skip
    cut = CUT in gpu.name
    name = f"{gpu.name} ({int(memory[2]) / _GIB:.0f} GiB)" if cut and memory else gpu.name
    return replace(
        gpu,
        name=name,
        used=int(memory[1]) if memory else None,
        memory=int(memory[2]) if memory else None,
        power_draw=float(power[1]) if power else None,
        power_limit=float(power[2]) if power and not cut else None,  # no telling who is its equal
        temperature=int(heat[1]) if heat else None,
        idle=state is None or int(state[1]) > 2,
        utilization=int(use[1]) if use[1] else None,
        compute_mode=_MODES.get(use[2], use[2]),
    )


# Reads the GPUs that ``nvidia-smi -L`` lists, also where torch.utils.collect_env or vLLM's shows them.

_LISTED = re.compile(r"GPU (\d{1,4}): (\S.{0,199}?) \(UUID: ([^)]{1,80})\)\s*$")
_BARE = re.compile(r"GPU (\d{1,4})[:：] (\S.{0,199}?)\s*$")  # collect_env leaves the UUIDs out
_SLICE = re.compile(r"\s{1,8}MIG \S{1,40} +Device +\d{1,3}:")
_MODELS = re.compile(r"GPU models and configuration *:\s*(.{0,200})$")


class ListedGpu(Struct, frozen=True):
    """mig: slices of it are listed below it."""

    index: int
    name: str
    uuid: str | None = None
    mig: bool = False


def the_same_gpus(lists: Sequence[list[ListedGpu]]) -> tuple[ListedGpu, ...]:
    """The GPUs of the last list; none where two lists tell of different GPUs. One without UUIDs may be of the same."""
    for one in lists:
        known = all(gpu.uuid for gpu in (*one, *lists[-1]))
        own, last = ([(gpu.index, gpu.name, known and gpu.uuid) for gpu in each] for each in (one, lists[-1]))
        if own != last:
            return ()
    return tuple(lists[-1]) if lists else ()


def lists_of_gpus(text: str) -> list[list[ListedGpu]]:
    """All lists of a text."""
    lists: list[list[ListedGpu]] = [[]]
    bare = False  # inside of collect_env's
    for line in text.splitlines():
        if (begin := _MODELS.search(line)) is not None:
            lists.append([])
            bare, line = True, begin[1]
        match = _LISTED.match(line) or (_BARE.match(line) if bare else None)
        if match is not None:
            gpu = ListedGpu(int(match[1]), match[2], match[3] if match.re is _LISTED else None)
            if any(gpu.index <= other.index for other in lists[-1]):
                lists.append([])
            lists[-1].append(gpu)
        elif lists[-1] and _SLICE.match(line):
            last = lists[-1][-1]
            lists[-1][-1] = ListedGpu(last.index, last.name, last.uuid, mig=True)
        elif line.strip():
            bare = False
    return [one for one in lists if one]
