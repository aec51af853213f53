"""All evidence of one run's fabric together."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.fabric.benchmarks import Benchmark
from traceops.fabric.inspector import Inspector
from traceops.fabric.model import Machine, Reference
from traceops.fabric.nccl import GraphBandwidth, NcclLog


@dataclass(frozen=True)
class Fabric:
    """All evidence of the fabric of one run. problems: files that could not be used, and why.

    graphs: from NCCL_GRAPH_DUMP_FILE, which does not say of which communicator: of the job's first. benchmarks: what
    nccl-tests and rccl-tests measured, as their logs tell it. inspector: what NCCL's Inspector plugin wrote.
    """

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
        return bool(
            self.machines
            or self.log is not None
            or self.references
            or self.graphs
            or self.benchmarks
            or self.inspector is not None
        )
