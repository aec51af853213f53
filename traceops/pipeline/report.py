"""Everything an analysis found, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceops.core.findings import Check, Finding

if TYPE_CHECKING:
    from traceops.fabric.fabric import Fabric
    from traceops.hangs.model import Diagnosis
    from traceops.measure.hta_agreement import HtaAgreement


@dataclass(frozen=True)
class Report:
    """Everything an analysis found: what every renderer draws from and report.json holds.

    `tables` are the tables behind the figures, one CSV file each: name -> rows with equal keys.
    `inventory` is what the average rank runs in a step: kernels, operators, collectives, blocking_calls.
    `hang` is the diagnosis of a hang, None where the run folder holds no evidence of one.
    `fabric` is the evidence of machines and NCCL, None likewise.
    `hta_agreement` is what came of asking HTA's own code (`--hta`), None without; report.json, which is the same with
    `--hta` and without, does not hold it.
    """

    run: dict[str, Any]
    summary: dict[str, Any]
    ranks: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    collectives: list[dict[str, Any]]
    findings: list[Finding]
    checks: list[Check]
    what_if: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    inventory: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    unprofiled_steps: list[dict[str, Any]] = field(default_factory=list)
    hang: Diagnosis | None = None
    fabric: Fabric | None = None
    hta_agreement: HtaAgreement | None = None
