"""Looks for NCCL's plugin for EFA (aws-ofi-nccl) where NCCL loads a plugin from.

NCCL opens libnccl-net.so, or what NCCL_NET_PLUGIN names: NVIDIA/nccl@5067397:src/plugin/net.cc. The plugin may be
installed as libnccl-net-ofi.so alone, which it does not open by itself: aws/aws-ofi-nccl@2daf7d3:src/Makefile.am.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from traceops.machine.files import entries, exists

_DEFAULT = "libnccl-net.so"
_PREFIX = "libnccl-net"
_INSTALLED = (
    "opt/amazon/ofi-nccl/lib", "opt/amazon/ofi-nccl/lib64", "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "opt/amazon/ofi-nccl/lib/aarch64-linux-gnu", "opt/amazon/aws-ofi-nccl/lib", "opt/aws-ofi-nccl/lib",
    "opt/aws-ofi-nccl/install/lib",
)  # fmt: skip
_SYSTEM = ("lib", "usr/lib", "lib64", "usr/lib64")  # where the loader looks without being told


@dataclass(frozen=True)
class Plugin:
    """NCCL's network plugin. loadable: NCCL finds it. installed: the folder it is in where NCCL does not.

    settings: what NCCL would need to be told besides that folder (``NCCL_NET_PLUGIN=ofi``). turned_off: by
    NCCL_NET_PLUGIN=none.
    """

    loadable: bool
    installed: str | None = None
    settings: tuple[str, ...] = ()
    turned_off: bool = False


def read_plugin(environ: Mapping[str, str], root: Path) -> Plugin:
    """Looks in LD_LIBRARY_PATH, the loader's own places and the folders of Amazon's installer."""
    chosen = environ.get("NCCL_NET_PLUGIN", "")
    if chosen.strip().lower() == "none":
        return Plugin(False, turned_off=True)
    names = [name for one in chosen.split(",") if one for name in (one, f"{_PREFIX}-{one}.so")] or [_DEFAULT]
    paths = [folder.lstrip("/") for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    if _found(root, (*paths, *_SYSTEM), names) or any(_cached(root, name) for name in names):
        return Plugin(True)
    for folder in (*paths, *_INSTALLED):
        inside = {entry.name for entry in entries(root / folder)}
        if inside & set(names):
            return Plugin(False, f"/{folder}")
        if any(name.startswith(_PREFIX) for name in inside):
            return Plugin(False, f"/{folder}", () if _DEFAULT in inside else ("NCCL_NET_PLUGIN=ofi",))
    return Plugin(False)


def _found(root: Path, folders: Sequence[str], names: Sequence[str]) -> bool:
    paths = [name.lstrip("/") for name in names if "/" in name]
    return any(exists(root / path) for path in paths) or any(
        exists(root / folder / name) for folder in folders for name in names if "/" not in name
    )


def _cached(root: Path, name: str) -> bool:
    try:
        return f"{name}\0".encode() in (root / "etc/ld.so.cache").read_bytes()
    except OSError:
        return False
