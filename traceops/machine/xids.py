"""Reads what the NVIDIA driver wrote into the kernel's log: Xids, GPUs that are lost, and those that did not start."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from traceops.fabric.model import normal_bus_id


class Xid(Struct, frozen=True):
    """One kind of error of one GPU. bus_id: as nvidia-smi counts. text: of the last line. count: how many lines."""

    bus_id: str | None
    code: int
    text: str
    count: int


_SHOWN = 200
# Where a log's line begins, or its message after a time, a host or a key; not where a sentence speaks of it.
_SAID = r"(?:\s{0,80}|.{0,300}[\]>:;|=]\s{0,8}\"?)NVRM: "
_XID = re.compile(rf"{_SAID}Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),? ?(.*)")
_FALLEN = re.compile(
    _SAID + r"(?:.{0,200}GPU (?:at )?(?:PCI:)?([0-9a-fA-F:.]{1,40}).{0,200}|\s{0,80})fallen off the bus"
)
_BUS = r"(?:GPU )?(?:at )?(?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F.]{2,4}):? "
_NOT_STARTED = re.compile(rf"{_SAID}{_BUS}(?:RmInitAdapter failed|rm_init_adapter failed)")
_VERSIONS = re.compile(rf"{_SAID}API mismatch: the client\b")
_NONE_STARTED = re.compile(
    _SAID + r"(?:None of the NVIDIA [a-z ]{1,30} were initialized|No NVIDIA [a-z ]{0,30}devices? probed"
    r"|The NVIDIA probe routine failed for \d)"
)
_BOOTS = ("Linux version ", "-- Boot ", "-- Reboot --")
_BOOT = re.compile(
    r"-- Boot [0-9a-f]{32}.{0,40}--$|-- Reboot --$|\[[A-Z][a-z]{2} .{1,30}\] Linux version \d"
    r"|(?:<\d{1,3}>)?\[ *0\.000000\] Linux version \d|.{0,60} kernel: (?:\[ *0\.000000\] )?Linux version \d"
)


class DriverFailure(Struct, frozen=True):
    """kind: ``not_started``: the driver could not start a GPU; ``none_started``: one or more, and does not say which;
    ``versions``: its parts are of different versions. bus_id: of the GPU, None where it is of the driver. text: the
    line."""

    kind: Literal["not_started", "none_started", "versions"]
    bus_id: str | None
    text: str


class DriverWords(Struct, frozen=True):
    """What the driver said between two boots."""

    xids: tuple[Xid, ...] = ()
    failures: tuple[DriverFailure, ...] = ()


class DriverLog(Struct, frozen=True):
    """What a kernel's log holds of the driver: of earlier boots, and of the last one."""

    earlier: DriverWords = DriverWords()
    now: DriverWords = DriverWords()

    @property
    def tells(self) -> bool:
        return self != DriverLog()


def parse_driver_log(log: str) -> DriverLog:
    """The driver's errors in a kernel's log."""
    last = max(_boots(log), default=0)
    earlier, now = log[:last], log[last:]
    return DriverLog(
        *(DriverWords(parse_xids(part), parse_failures(part)) if part else DriverWords() for part in (earlier, now))
    )


def parse_failures(log: str) -> tuple[DriverFailure, ...]:
    """What the driver says that it could not do, once for each GPU."""
    found: dict[tuple[str, str | None], DriverFailure] = {}
    for line in _driver_lines(log):
        if (match := _NOT_STARTED.match(line)) is not None:
            bus_id = normal_bus_id(match[1])
            found.setdefault(("not_started", bus_id), DriverFailure("not_started", bus_id, _shown(line)))
        elif _VERSIONS.match(line) is not None:
            found.setdefault(("versions", None), DriverFailure("versions", None, _shown(line)))
        elif _NONE_STARTED.match(line) is not None:
            found.setdefault(("none_started", None), DriverFailure("none_started", None, _shown(line)))
    return tuple(found.values())


def begins_at_boot(log: str) -> bool:
    """Whether a kernel's log holds the first lines of a boot."""
    return next(_boots(log), None) is not None


def _boots(log: str) -> Iterator[int]:
    """Where boots begin, in no order."""
    for needle in _BOOTS:
        at = log.find(needle)
        while at >= 0:
            begin = log.rfind("\n", 0, at) + 1
            end = log.find("\n", at)
            if _BOOT.match(log[begin : end if end >= 0 else None].rstrip()) is not None:
                yield begin
            at = log.find(needle, at + 1)


def _driver_lines(log: str) -> list[str]:
    lines: list[str] = []
    at = log.find("NVRM: ")
    while at >= 0:
        end = log.find("\n", at)
        lines.append(log[log.rfind("\n", 0, at) + 1 : end if end >= 0 else None])
        at = log.find("NVRM: ", end) if end >= 0 else -1
    return lines


def _shown(line: str) -> str:
    return line[line.index("NVRM: ") :].strip()[:_SHOWN]


_OFF_THE_BUS = "fallen off the bus"


def parse_xids(log: str) -> tuple[Xid, ...]:
    """The Xids of a kernel log by GPU and code, in the order they first came; 79 also for GPUs said to be lost."""
    counts: Counter[tuple[str | None, int]] = Counter()
    last: dict[tuple[str | None, int], str] = {}
    lines = _driver_lines(log)
    for line in lines:
        if match := _XID.match(line):
            key = (normal_bus_id(match[1]), int(match[2]))
            counts[key] += 1
            last[key] = match[3].strip()[:_SHOWN]
    fallen = next((match for line in lines if (match := _FALLEN.match(line))), None)
    if fallen and not any(code == 79 for _, code in counts):
        key = (normal_bus_id((fallen[1] or "").rstrip(".")), 79)
        counts[key], last[key] = 1, _OFF_THE_BUS
    return tuple(Xid(bus_id, code, last[bus_id, code], count) for (bus_id, code), count in counts.items())
