"""The facts about a host that decide whether a setting makes sense there."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.machine.interfaces import Interface
from traceops.machine.rdma import Rdma


@dataclass(frozen=True)
class HostContext:
    """What settings depend on; None for what is not known.

    gpus: how many there are. uuids: theirs. nccl and torch: versions in use (``2.28.9``, ``2.11.0+cu130``).
    """

    interfaces: tuple[Interface, ...] | None = None
    rdma: tuple[Rdma, ...] | None = None
    gpus: int | None = None
    uuids: tuple[str, ...] = ()
    nccl: str | None = None
    torch: str | None = None
