"""Logs a report to the MLflow run that is active."""

from __future__ import annotations

import os

import mlflow

from traceops.core.errors import UsageError
from traceops.integrations.key_figures import FINDING_COLUMNS, key_figures


def log_report(folder: str | os.PathLike[str], *, prefix: str = "traceops") -> None:
    """Key figures as metrics ``traceops/step_ms``, findings as a table, the report itself as artifacts::

        with mlflow.start_run():
            log_report("reports/mine")

    folder: what ``traceops analyze -o`` wrote. Raises UsageError where no run is active, InputError without a report.
    """
    if mlflow.active_run() is None:
        raise UsageError("no MLflow run is active; call log_report inside mlflow.start_run()")
    found = key_figures(folder)
    mlflow.log_metrics({f"{prefix}/{name}": value for name, value in found.figures.items()})
    mlflow.set_tag(f"{prefix}.worst", found.worst)
    columns = {name: [row[i] for row in found.findings] for i, name in enumerate(FINDING_COLUMNS)}
    mlflow.log_dict(columns, f"{prefix}/findings.json")
    mlflow.log_artifacts(str(found.folder), prefix)
