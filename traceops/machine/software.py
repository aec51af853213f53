"""Reads the versions of torch, CUDA and NCCL from files, without loading any of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import mmap
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from traceops.machine.files import exists, text

_WHEEL = re.compile(r"nvidia[-_]nccl[-_](cu\d+)", re.IGNORECASE)
_NEEDS = re.compile(r"nvidia[-_]nccl[-_](cu\d+)\s*\(?==\s*([\d.]+)", re.IGNORECASE)
_LIBRARY = "libnccl.so.2"
_SYSTEM = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/local/lib", "usr/lib")
_SAYS_ITSELF = re.compile(rb"NCCL version (\d{1,2}\.\d{1,3}\.\d{1,3})\+cuda")


class Software(Struct, frozen=True):
    """torch: its version. cuda and hip: what it was built for, None for neither. wheels: NCCL's by CUDA (``cu13``).

    needs: the version of NCCL's wheel that torch asks for. preloaded: NCCL that LD_PRELOAD loads, found: NCCL in
    LD_LIBRARY_PATH, shared: NCCL of the system: paths with versions as far as they tell. compat: CUDA's forward
    compatibility is in the path.
    """

    python: str
    torch: str | None
    cuda: str | None = None
    hip: str | None = None
    wheels: tuple[tuple[str, str], ...] = ()
    needs: str | None = None
    preloaded: tuple[tuple[str, str | None], ...] = ()
    found: tuple[tuple[str, str | None], ...] = ()
    shared: tuple[tuple[str, str | None], ...] = ()
    compat: bool = False

    @property
    def nccl(self) -> str | None:
        """NCCL's version that torch is expected to load."""
        preloaded = [version for _, version in self.preloaded if version]
        shared = [version for _, version in (self.found or self.shared) if version] if not self.wheels else []
        known = [*preloaded, *(version for _, version in self.wheels), *([self.needs] if self.needs else []), *shared]
        return known[0] if known else None


def read_software(environ: Mapping[str, str], root: Path) -> Software:
    """What is installed for this Python and what the loader's variables would put in its place."""
    torch = _version("torch")
    cuda, hip = _built_for()
    folders = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    preloaded = [part for part in re.split(r"[\s:]+", environ.get("LD_PRELOAD", "")) if "libnccl" in part]
    inside = [str(Path(folder) / _LIBRARY) for folder in folders if exists(root / folder.lstrip("/") / _LIBRARY)]
    wheels = tuple(sorted(_wheels()))
    system = [str(Path("/") / folder / _LIBRARY) for folder in _SYSTEM if exists(root / folder / _LIBRARY)]
    return Software(
        platform.python_version(),
        torch,
        cuda,
        hip,
        wheels,
        _needed(),
        tuple((path, library_version(root / path.lstrip("/"))) for path in preloaded),
        tuple((path, library_version(root / path.lstrip("/"))) for path in inside),
        # a wheel of torch has its own NCCL and never looks there; torch that was built with the system's does
        tuple((path, library_version(root / path.lstrip("/"))) for path in system[:1] if not wheels and cuda),
        any("compat" in folder for folder in folders),
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _built_for() -> tuple[str | None, str | None]:
    """CUDA and HIP from torch's version.py, which is read and not run: torch takes seconds to load."""
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec else None
    return parse_torch_version(text(Path(next(iter(places))) / "version.py") or "") if places else (None, None)


def parse_torch_version(source: str) -> tuple[str | None, str | None]:
    """The CUDA and HIP that a torch/version.py names."""
    found = []
    for name in ("cuda", "hip"):
        match = re.search(rf"^{name}(?:\s*:[^=\n]+)?\s*=\s*['\"]([\w.]+)['\"]", source, re.MULTILINE)
        found.append(match[1] if match else None)
    return found[0], found[1]


def _wheels() -> set[tuple[str, str]]:
    found = set()
    for one in importlib.metadata.distributions():
        match = _WHEEL.fullmatch(one.metadata["Name"] or "")
        if match:
            found.add((match[1], one.version))
    return found


def _needed() -> str | None:
    try:
        lines = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((match[2] for line in lines if (match := _NEEDS.match(line))), None)


def library_version(path: Path) -> str | None:
    """The version of a libnccl: from the name it links to, else from the text it prints."""
    try:
        name = re.search(r"libnccl\.so\.(\d+\.\d+\.\d+)", path.resolve().name)
        if name:
            return name[1]
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = _SAYS_ITSELF.search(content)
            return match[1].decode() if match else None
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return None
