"""What the doctor knows when it chooses what to try."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class Situation(Struct, frozen=True):
    """What is known when alternatives are chosen.

    environ: variables of all nodes, those of node 0 before the others'. world: ranks of all nodes. interfaces: network
    interfaces that are up, without loopback. hcas: InfiniBand and RoCE devices. transports: ways NCCL took
    (``P2P/CUMEM``, ``SHM``, ``NET/Socket``). failed: stages that did not come out right. slow: far below what the link
    gives. costly: variables of the environment that cost speed. hung: whether a stage that failed did so by hanging.
    """

    backend: str
    world: int
    nodes: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    transports: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()
    slow: bool = False
    costly: tuple[str, ...] = ()
    hung: bool = False

    @property
    def broken(self) -> bool:
        return bool(self.failed)

    @property
    def inside_only(self) -> bool:
        """Whether ranks of one node had met, and connected without a network, before it failed."""
        return self.nodes == 1 and bool(self.transports) and not self.takes("NET")

    def takes(self, transport: str) -> bool:
        """Whether NCCL went this way; where it never came to that, it may have."""
        return not self.transports or any(one.startswith(transport) for one in self.transports)
