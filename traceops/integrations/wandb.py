"""Logs a report to the W&B run that is active."""

from __future__ import annotations

import os

import wandb

from traceops.core.errors import UsageError
from traceops.integrations.key_figures import FINDING_COLUMNS, key_figures


def log_report(folder: str | os.PathLike[str], *, prefix: str = "traceops") -> None:
    """Key figures in the run's summary, findings as a table, the report itself as an artifact::

        with wandb.init(project="mine"):
            log_report("reports/mine")

    folder: what ``traceops analyze -o`` wrote. Raises UsageError where no run is active, InputError without a report.
    """
    if (run := wandb.run) is None:
        raise UsageError("no W&B run is active; call log_report after wandb.init() and before finish()")
    found = key_figures(folder)
    run.summary.update({f"{prefix}/{name}": value for name, value in found.figures.items()})
    run.summary[f"{prefix}/worst"] = found.worst
    run.log({f"{prefix}/findings": wandb.Table(list(FINDING_COLUMNS), [list(row) for row in found.findings])})
    artifact = wandb.Artifact(f"{prefix}-{run.id}", type="traceops-report")
    artifact.add_dir(str(found.folder))
    run.log_artifact(artifact)
