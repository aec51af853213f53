"""Which way NCCL goes between the ranks that hang together: what its log and the topology beside it add to a root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Quote
from traceops.fabric.talks import Talk, job_ranks, members, ranks_in, talks
from traceops.hangs import words
from traceops.hangs.model import Root
from traceops.hangs.roots import NETWORK

# The causes that this gives, by which the rule has its advice.
P2P, WAY_KNOWN, GLOO = "p2p", "way_known", "gloo"
_LINKS = ("NV", "XGMI", "C2C")  # made for P2P; over PCIe and between processors it is what often breaks
_ACROSS = "SYS"
_INSIDE = ("P2P", "SHM")
_MOST_QUOTES = 2
_EARLY = 32  # a way that carried more operations of the group than these works


def with_way(root: Root, fabric: Fabric | None) -> Root:
    """The root with the way that NCCL's log names between its ranks, if it is a collective that none finished.

    P2P over PCIe that never finishes one of the first collectives is a cause of its own; across sockets, of medium
    confidence. P2P that works is none: so there has to be the hang first, and early. Where ranks also send over a
    network, nothing tells which of the two it is.
    """
    if root.rule != NETWORK or fabric is None or len(root.ranks) < 2:
        return root
    between = _between(root.ranks, fabric)
    if not between:
        return root
    proof = [*root.evidence, ("NCCL goes by", ", ".join(sorted({talk.way for talk in between})))]
    proof += _quotes("NCCL", [talk.connection.quote for talk in between])
    over_pcie = [talk for talk in between if _is_over_pcie(talk)]
    if root.sequence is not None and root.sequence > _EARLY:
        proof.append(("came over it before", f"the operations of the group up to #{root.sequence - 1}"))
        over_pcie = []
    if not over_pcie or any(talk.connection.transport not in _INSIDE for talk in between):
        return replace(root, cause=WAY_KNOWN, evidence=tuple(proof))
    across = [talk for talk in over_pcie if talk.path is not None and talk.path.kind == _ACROSS]
    shown = across or over_pcie
    paths = [talk.path for talk in shown if talk.path is not None]
    proof += _quotes("topology", [path.quote for path in paths if path.quote is not None])
    return replace(
        root,
        cause=P2P,
        confidence="medium" if across and root.confidence == "low" else root.confidence,
        statement=words.by_p2p(root.statement, _pair(shown[0]), shown[0].way, paths[0].kind),
        evidence=tuple(proof),
    )


def over_gloo(root: Root) -> Root:
    """A collective of gloo that none finished: it goes over TCP, whatever NCCL's variables say."""
    return replace(root, cause=GLOO) if root.rule == NETWORK and root.cause is None else root


def _between(ranks: Sequence[int], fabric: Fabric) -> list[Talk]:
    """NCCL's connections with both ends among these ranks of the job."""
    job, wanted = job_ranks(fabric), set(ranks)
    found = []
    for talk in talks(fabric):
        ends = ranks_in(job, members(talk))
        if ends and wanted.issuperset(ends):
            found.append(talk)
    return found


def _is_over_pcie(talk: Talk) -> bool:
    path = talk.path
    return talk.connection.transport == "P2P" and path is not None and path.kind not in _LINKS


def _pair(talk: Talk) -> tuple[str, str]:
    one, other = sorted((gpu for gpu in talk.gpus if gpu is not None), key=lambda gpu: gpu.index)
    return one.label, other.label


def _quotes(what: str, quotes: Sequence[Quote]) -> list[tuple[str, str]]:
    """Lines of files, equal ones once."""
    told = {quote.text: quote for quote in reversed(quotes)}
    lines = sorted(told.values(), key=lambda quote: (quote.path, quote.line))[:_MOST_QUOTES]
    return [(f"{what}, {Path(quote.path).name}:{quote.line}", " ".join(quote.text.split())) for quote in lines]
