"""%%traceops in IPython."""

import json

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

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
