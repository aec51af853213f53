"""All evidence of one run's fabric together."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from traceops.core.facts import Fact
from traceops.core.findings import SEVERITIES, Evidence, Severity
from traceops.core.words import STEP, StepWords
from traceops.fabric.model import Machine, Measured, Quote, Reference
from traceops.fabric.nccl import Benchmark, GraphBandwidth, Inspector, NcclLog


class Fabric(Struct, frozen=True):
    """All evidence of the fabric of one run. problems: files that could not be used, and why. graphs: from
    NCCL_GRAPH_DUMP_FILE, which does not say of which communicator: of the job's first. benchmarks: what nccl-tests and
    rccl-tests measured, as their logs tell it. inspector: what NCCL's Inspector plugin wrote."""

    machines: tuple[Machine, ...] = ()
    log: NcclLog | None = None
    references: tuple[Reference, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    graphs: tuple[GraphBandwidth, ...] = ()
    benchmarks: tuple[Benchmark, ...] = ()
    inspector: Inspector | None = None

    @property
    def tells(self) -> bool:
        """Whether any file told anything."""
        return any((self.machines, self.log, self.references, self.graphs, self.benchmarks, self.inspector))


_MOST_HOSTS = 4


class Circumstances(Struct, frozen=True):
    """device: name of the GPUs as the traces say. slow: how severe TO-C001 found the measured bandwidth, None if well.
    exposed_pct: of the step that is transfer which nothing hides. hung: ranks wait in a collective. lost_ms: a step,
    against the reference; saved: the evidence of that. measured: between GPUs, by the doctor. words: what to call the
    step."""

    device: str | None = None
    slow: Severity | None = None
    exposed_pct: float | None = None
    hung: bool = False
    lost_ms: float | None = None
    saved: tuple[Evidence, ...] = ()
    measured: tuple[Measured, ...] = ()
    words: StepWords = STEP


def quoted(quotes: Iterable[Quote], fact: Fact = Fact.IT_SAYS, most: int = 3) -> list[Evidence]:
    """Lines of files as evidence, equal texts once."""
    once = {quote.text: quote for quote in reversed(list(quotes))}
    return [
        Evidence(fact, quote.text, file=quote.path, line=quote.line) for quote in list(reversed(once.values()))[:most]
    ]


def hosts_text(hosts: Iterable[str | None], before: str) -> str:
    """`` on a``, `` of a, b and 998 more hosts``; empty where no host is named."""
    if not (named := list(dict.fromkeys(host for host in hosts if host))):
        return ""
    shown = named if len(named) <= _MOST_HOSTS else named[: _MOST_HOSTS - 1]
    more = f" and {len(named) - len(shown)} more hosts" if len(shown) < len(named) else ""
    return f" {before} {', '.join(shown)}{more}"


def at_least(severity: Severity, other: Severity | None) -> Severity:
    """The more severe of two."""
    return severity if other is None else max(severity, other, key=SEVERITIES.index)


# Environment variables with which one rank alone looks for no network. It has nobody to talk to, but NCCL and gloo look
# for a network all the same: what is wrong with that need not concern it.

SET = {"NCCL_NET_PLUGIN": "none", "NCCL_IB_DISABLE": "1"}
UNSET = ("NCCL_SOCKET_IFNAME", "NCCL_NET", "GLOO_SOCKET_IFNAME")
