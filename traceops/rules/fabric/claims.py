"""What is claimed of the fabric: typed facts, whose sentences lie in words/fabric.ini. Bandwidths are GB/s one way."""

from __future__ import annotations

from traceops.core.claims import Claim
from traceops.core.rule import Bounds


class FabricBounds(Bounds, frozen=True):
    """From where on links, rings and tests of them are below what they should be, as words/fabric.ini says."""

    words = "fabric"

    exposed_pct: float = 20.0
    planned_share: float = 0.6
    mesh_share: float = 1 / 3
    any_link_gbs: float = 12.0
    slow_share: float = 0.5
    measured_share: tuple[float, float] = (0.5, 0.1)
    expected_share: float = 0.3
    late_ms: float = 2.0


BOUNDS = FabricBounds()


class FabricClaim(Claim, frozen=True):
    family = "fabric"


class AcrossNuma(FabricClaim, frozen=True, kw_only=True):
    """Pairs of GPUs of which no link but that between the processors leads from one to the other. gpus: all pairs, and
    the hosts. weight: what makes it more than information. way: which NCCL took, by `took`."""

    pair: str | None = None
    count: int
    gpus: str
    nodes: tuple[int, ...] = ()
    weight: str
    way: str
    took: tuple[str, ...] = ()


class UnusedLinks(FabricClaim, frozen=True, kw_only=True):
    """GPUs of one host that talk `through` something slower than they have. device: its `link`, by its name alone.
    because: what keeps them from it. settings: 'NAME was set to VALUE', of the log."""

    through: str
    ways: tuple[str, ...]
    has: str
    device: str | None = None
    link: str | None = None
    path: str | None = None
    because: str
    settings: tuple[str, ...] = ()


class Sockets(FabricClaim, frozen=True, kw_only=True):
    """Data over TCP sockets, or a network's plugin that did not start. case: which; remark: what follows. ways: those
    in use beside or in place of it. faster: devices that are there."""

    case: str
    remark: str | None = None
    ways: tuple[str, ...] = ()
    faster: tuple[str, ...] = ()
    inside_too: bool = False
    settings: tuple[str, ...] = ()


class FarNic(FabricClaim, frozen=True, kw_only=True):
    """A GPU that sends or receives through a NIC although others are nearer. path: to it, `best` to those; across: NUMA
    nodes. usable: NCCL could take these."""

    gpu: str
    hosts: str | None = None
    does: str
    nic: str
    near: tuple[str, ...]
    path: str
    best: str
    across: bool = False
    usable: bool


class NarrowLink(FabricClaim, frozen=True, kw_only=True):
    """A width or speed below what most siblings have. one: the amount, where it is of one device."""

    metric: str
    device: str | None = None
    one: str | None = None
    count: int
    devices: tuple[str, ...]
    host: str | None = None
    usual: str
    made_so: bool = False


class LinksDown(FabricClaim, frozen=True, kw_only=True):
    """NVLinks that are down. one: the number, where it is of one GPU."""

    gpu: str | None = None
    one: int | None = None
    count: int
    gpus: tuple[str, ...]


class Rings(FabricClaim, frozen=True, kw_only=True):
    """NCCL's rings against the links between their GPUs. found: channels of its search, where it uses fewer."""

    gpus: int
    host: str | None = None
    gbs: float
    pct: float
    limit: float
    channels: int
    found: int | None = None
    over: str | None = None
    links: str
    per_gpu: int | None = None
    settings: tuple[str, ...] = ()


class SlowRings(FabricClaim, frozen=True, kw_only=True):
    """Rings that are slow whatever joins their GPUs, where no topology shows what does."""

    gbs: float
    slowest: float
    channels: int
    over: str | None = None
    settings: tuple[str, ...] = ()


class OneSided(FabricClaim, frozen=True, kw_only=True):
    """Links that are narrower one way than the other. planned: what NCCL's rings carry there."""

    links: str
    host: str | None = None
    count: int
    pairs: tuple[str, ...]
    more: int | None = None
    planned: float | None = None


class NcclTest(FabricClaim, frozen=True, kw_only=True):
    """One run of nccl-tests: the operation, the number of GPUs where it is known, the hosts."""

    family = "fabric"
    op: str | None = None
    gpus: int | None = None
    hosts: tuple[str, ...] = ()


class WrongValues(NcclTest, frozen=True, kw_only=True):
    """Values that came out wrong, at messages of these sizes. more: further sizes."""

    wrong: int
    sizes: tuple[str, ...] = ()
    more: int | None = None


class SlowTest(NcclTest, frozen=True, kw_only=True):
    """Bus bandwidth against what the links give or NCCL expects. source: which, by `link`."""

    gbs: float
    message_size: str
    pct: float
    limit: float
    source: str
    link: str


class FallingTest(NcclTest, frozen=True, kw_only=True):
    """Large messages that are slower than smaller ones."""

    best: float
    best_size: str
    last: float
    last_size: str


class LateTest(NcclTest, frozen=True, kw_only=True):
    """Small messages that take milliseconds."""

    ms: float
    message_size: str
