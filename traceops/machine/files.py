"""Reads the small files of /sys and /proc, of which any may be missing or refused."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from traceops.core.rank_text import runs_of

_MOST_BYTES = 1 << 20


def text(path: Path) -> str | None:
    """What stands in a file, stripped; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip("\x00 \t\r\n")
    except OSError:
        return None


def number(path: Path) -> int | None:
    """The whole number a file begins with; None where there is none."""
    match = re.match(r"-?\d{1,19}\b", text(path) or "")
    return int(match[0]) if match else None


def entries(folder: Path) -> tuple[Path, ...]:
    """What is in a folder, in the order a person counts in (``mlx5_2`` before ``mlx5_10``); () without one."""
    try:
        return tuple(sorted(folder.iterdir(), key=_natural))
    except OSError:
        return ()


def exists(path: Path) -> bool:
    """Whether there is such a file; False also where nobody may look."""
    try:
        return path.exists()
    except OSError:
        return False


def link(path: Path) -> str | None:
    """The last name of what a link leads to, such as a device's driver; None where it is none."""
    try:
        return path.readlink().name
    except OSError:
        return None


def cores(listed: str | None) -> frozenset[int]:
    """The cores of a list like ``0-11,24-35``; empty for no list or one that is none."""
    found: set[int] = set()
    for part in (listed or "").split(","):
        if match := re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part):
            found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def listed(values: frozenset[int]) -> str:
    """The reverse of `cores`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs_of(values))


def _natural(entry: Path) -> tuple[tuple[bool, int, str], ...]:
    parts = re.split(r"(\d+)", entry.name)
    return tuple((part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts)


NO_ANSWER = "no answer"


class Output(Struct, frozen=True):
    """What a program printed; `problem` says why there is nothing, None where there is. timed_out: it gave no answer in
    time."""

    text: str
    problem: str | None = None
    timed_out: bool = False


def output(command: Sequence[str], timeout_s: float) -> Output:
    """Run `command` for at most `timeout_s`, without waiting for one that cannot even be killed."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return Output("", str(error.strerror or error))
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # inside a driver that hangs it does not even die
            process.communicate(timeout=0.5)
        return Output("", f"{NO_ANSWER} within {timeout_s:.0f} s", timed_out=True)
    if process.returncode:
        # nvidia-smi reports its failure on stdout, in the first line.
        told = err.decode(errors="replace").split("\n")[::-1] + out.decode(errors="replace").split("\n")
        return Output("", next((line.strip() for line in told if line.strip()), f"exit code {process.returncode}"))
    return Output(out.decode(errors="replace"))
