"""A report in MLflow and in W&B: the real packages, offline; each is skipped where it is not installed."""

import json
from pathlib import Path

import pytest

from traceops.core.errors import InputError, UsageError
from traceops.integrations.key_figures import key_figures

REPORT = Path(__file__).parents[2] / "reports" / "example"


@pytest.fixture
def folder(tmp_path):
    report = tmp_path / "report"
    report.mkdir()
    (report / "report.json").write_bytes((REPORT / "report.json").read_bytes())
    (report / "summary.html").write_text("<html></html>")
    return report


def test_the_key_figures_are_the_reports(folder):
    found = key_figures(folder)
    report = json.loads((folder / "report.json").read_text())
    assert found.figures["step_ms"] == report["summary"]["step_time_ms"]["median"]
    assert found.figures["ledger_ms/comm_wait"] == report["summary"]["ledger_ms"]["comm_wait"]
    assert found.figures["findings/error"] == 1.0 and found.worst == "error"
    assert found.findings[0][0] == report["findings"][0]["rule"] == "TO-S001"


def test_a_folder_without_a_report_says_how_to_get_one(tmp_path):
    with pytest.raises(InputError, match="traceops analyze RUN -o"):
        key_figures(tmp_path)


def test_mlflow_gets_metrics_findings_and_the_report(folder, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    from traceops.integrations.mlflow import log_report

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with pytest.raises(UsageError, match="no MLflow run is active"):
        log_report(folder)
    with mlflow.start_run() as run:
        log_report(folder)
    data = mlflow.get_run(run.info.run_id).data
    assert data.metrics["traceops/step_ms"] == key_figures(folder).figures["step_ms"]
    assert data.tags["traceops.worst"] == "error"
    kept = Path(run.info.artifact_uri.removeprefix("file://")) / "traceops"
    assert {"report.json", "summary.html", "findings.json"} <= {path.name for path in kept.iterdir()}


def test_wandb_gets_a_summary_findings_and_the_report(folder, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from traceops.integrations.wandb import log_report

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"no W&B run is active"):
        log_report(folder)
    with wandb.init(project="mine", dir=str(tmp_path)) as run:
        log_report(folder)
        assert run.summary["traceops/step_ms"] == key_figures(folder).figures["step_ms"]
        assert run.summary["traceops/worst"] == "error"
