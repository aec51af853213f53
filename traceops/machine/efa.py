"""Looks for NCCL's plugin for EFA (aws-ofi-nccl) where the loader finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traceops.machine.files import entries

_NAME = "libnccl-net"
_INSTALLED = (
    "opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64", "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu", "opt/aws-ofi-nccl/lib", "opt/aws-ofi-nccl/install/lib",
)  # fmt: skip


@dataclass(frozen=True)
class Plugin:
    """NCCL's network plugin. loadable: the loader finds it. installed: the folder it is in where it does not."""

    loadable: bool
    installed: str | None = None


def read_plugin(environ: Mapping[str, str], root: Path) -> Plugin:
    """Looks in LD_LIBRARY_PATH, the loader's cache and the folders of Amazon's installer."""
    folders = [folder.lstrip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if any(_inside(root / folder) for folder in folders) or _cached(root):
        return Plugin(True)
    return Plugin(False, next((f"/{folder}" for folder in _INSTALLED if _inside(root / folder)), None))


def _inside(folder: Path) -> bool:
    return any(entry.name.startswith(_NAME) for entry in entries(folder))


def _cached(root: Path) -> bool:
    try:
        return _NAME.encode() in (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False
