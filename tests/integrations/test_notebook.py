"""%%traceops in IPython, and reports in MLflow and W&B, offline; skipped where a package is not installed."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from started import environment

from traceops.core.errors import InputError, UsageError
from traceops.integrations.key_figures import key_figures

_CELL = """
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(STEPS):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = InteractiveShell.instance()
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_a_cell_is_profiled_and_told_of(shell, tmp_path, capsys):
    shell.run_line_magic("load_ext", "traceops")
    shell.run_cell_magic("traceops", "--out first --quick", _CELL.replace("STEPS", "8"))
    run = json.loads((tmp_path / "first" / "run.json").read_text())
    assert run["ranks"][0]["steps"] == 8 and run["profiled_steps"] == [4, 5]
    assert run["ranks"][0]["step_ends"] == {"SGD.step": 8}
    assert (tmp_path / "first" / "report" / "summary.html").exists()
    assert "Report: first/report/summary.html" in capsys.readouterr().out
    shell.run_cell_magic("traceops", "--out second --quick", _CELL.replace("STEPS", "8"))  # a cell after it
    assert json.loads((tmp_path / "second" / "run.json").read_text())["steps"] == 8
    assert json.loads((tmp_path / "first" / "run.json").read_text())["steps"] == 8


_LAUNCHED = """
import multiprocessing, os, sys, types
from IPython.core.interactiveshell import InteractiveShell

def notebook_launcher(function, num_processes):  # as accelerate's does it, without accelerate
    def rank(number):
        os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(num_processes))
        function()
    forked = multiprocessing.get_context("fork")
    ranks = [forked.Process(target=rank, args=(number,)) for number in range(num_processes)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * num_processes

sys.modules["accelerate"] = types.SimpleNamespace(notebook_launcher=notebook_launcher)
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "traceops")
shell.run_cell_magic("traceops", "--out mine --quick", '''
def train():
    import torch
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
from accelerate import notebook_launcher
notebook_launcher(train, num_processes=2)
''')
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_the_processes_that_a_notebook_launcher_forks_are_the_ranks(tmp_path, monkeypatch):
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCHED], cwd=tmp_path, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    ranks = json.loads((tmp_path / "mine" / "run.json").read_text())["ranks"]
    assert [(rank["rank"], rank["steps"], rank["status"]) for rank in ranks] == [(0, 8, "finished"), (1, 8, "finished")]
    assert [window["steps"] for rank in ranks for window in rank["windows"]] == [[4, 5], [4, 5]]
    assert "Report: mine/report/summary.html" in done.stdout


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
