"""The tests under one set of variables, and what they showed."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.doctor.assess import Assessment
from traceops.doctor.model import EnvironmentChange, Trial
from traceops.doctor.runs import Scope
from traceops.fabric.model import Measured


@dataclass(frozen=True)
class Configuration:
    """A change and everything that was tested under it. node: the trials of each node by itself. over_all: of the job
    over all nodes, None where there is one node.
    """

    change: EnvironmentChange
    trials: tuple[Trial, ...]
    node: Assessment
    over_all: Assessment | None = None

    def of(self, scope: Scope) -> Assessment:
        """Of the nodes by themselves, or of all together; of one node both are the same."""
        return self.node if scope == "node" or self.over_all is None else self.over_all

    @property
    def failed(self) -> frozenset[str]:
        return self.node.failed | (self.over_all.failed if self.over_all else frozenset())

    @property
    def measured(self) -> tuple[Measured, ...]:
        return tuple(row for trial in self.trials for row in trial.measured)
