"""What is claimed of links: typed facts, whose sentences lie in words/bandwidth.ini."""

from __future__ import annotations

from traceops.core.claims import Claim


class LowBandwidth(Claim, frozen=True, kw_only=True):
    """Large messages of so many ranks are slow for their link. source: who says what it gives, of one host or `hosts`.

    may_be_apart: whether these ranks may be on several hosts. unnamed: whether they are taken to share one.
    """

    family = "bandwidth"
    kind = "low_bandwidth"
    ops: str
    size: int
    role: str | None = None
    gbs: float
    pct: float
    reference: float
    link: str
    source: str
    device: str | None = None
    hosts: int | None = None
    may_be_apart: bool = False
    unnamed: bool = False


class SlowerGroup(Claim, frozen=True, kw_only=True):
    """A group that takes longer than others for the same. saved: of the step, ms, if the transfer is not hidden."""

    family = "bandwidth"
    kind = "slow_sibling"
    ranks: tuple[int, ...]
    role: str | None = None
    longer: float
    takes: float
    usual: float
    saved: float | None = None
    hidden: bool = False


class ThroughHost(Claim, frozen=True, kw_only=True):
    """GPUs exchange data through their hosts. then: the step with NCCL over `link`."""

    family = "bandwidth"
    kind = "through_host"
    exposed: float
    pct: float
    step: float
    gbs: float | None = None
    link: str | None = None
    then: float | None = None
    shared_gpus: bool = False
