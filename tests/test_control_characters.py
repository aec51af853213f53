"""No control character of a trace, a path or a run's name reaches a terminal or a file, and no name is a formula."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.render.writers.csv import csv_text

DATA = Path(__file__).parent / "data"
_ESC = "\x1b]0;mine\x07\x1b[31m\x9b2J\x7f\u202e\u2067"
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")


@pytest.mark.slow
def test_no_product_and_no_terminal_gets_a_control_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, started in (("a\x1b[31m", 1), ("b", 2)):
        folder = tmp_path / "profile" / name
        shutil.copytree(DATA / "ddp4", folder)
        told = {
            "name": f"run{_ESC}",
            "started_ns": 10**18 + started,
            "environment": {f"NCCL_{_ESC}": f"{_ESC}{started}"},
        }
        (folder / "run.json").write_text(json.dumps(told))
        trace = folder / "rank_1.pt.trace.json.gz"
        text = gzip.decompress(trace.read_bytes()).decode()
        escaped = json.dumps(_ESC)[1:-1]
        text = text.replace('"aten::', f'"=aten{escaped}::').replace('"void ', f'"=void{escaped} ')
        trace.write_bytes(gzip.compress(text.encode()))
        (folder / "rank_9\x1b[2J.pt.trace.json").write_text("{")
    for words in (
        ["analyze", "profile/a\x1b[31m"],
        ["analyze", "profile/b", "-q", "-o", "reports/b\x1b[31m"],
        ["compare", "profile/a\x1b[31m", "profile/b"],
        ["baseline", "save", "profile/b"],
        ["baseline", "show", "unknown*", "--json"],
        ["baseline", "history", "-o", "reports/history"],
        ["view", "profile/a\x1b[31m"],
        ["show", "reports/a\x1b[31m"],
        ["show", "reports/a\x1b[31m", "kernels"],
        ["show", "reports/a\x1b[31m", "kernels", "--json"],
        ["show", "reports/a\x1b[31m", "collectives", "--group", _ESC],
        ["analyze", f"nowhere{_ESC}"],
    ):
        main(words)
    shown = "".join(capfd.readouterr())
    assert shown and not _CONTROL.search(shown), _CONTROL.search(shown)
    products = [path for path in (tmp_path / "reports").rglob("*") if path.is_file() and path.suffix != ".gz"]
    assert len(products) > 25
    for path in products:
        text = path.read_text().replace(plotly(path), "")
        assert not _CONTROL.search(text), (path, _CONTROL.search(text))
        assert not _TURNS.search(text) or path.suffix not in (".html", ".csv"), path
    cells = [cell for path in products if path.suffix == ".csv" for row in csv.reader(path.open()) for cell in row]
    assert any(cell.startswith("'=void") for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]


def plotly(path: Path) -> str:
    """plotly.js in a page, which has such characters in its tables of letters."""
    library = Path(__file__).parents[1] / "templates" / "plotly" / "plotly-cartesian.min.js"
    return library.read_text() if path.suffix == ".html" else "\0"


@pytest.mark.parametrize("cell", ["=cmd|' /C calc'!A0", " =1+1", "\t=1", "+1+1", "@SUM(A1)", "-1+cmd", "＝1+1"])
def test_no_cell_is_a_formula(cell: str) -> None:
    shown = csv_text([{"name": cell, "several": [cell]}])
    assert [value[0] for value in list(csv.reader(shown.splitlines()))[1]] == ["'", "'"]


def test_a_number_stays_one() -> None:
    assert csv_text([{"a": -1, "b": -1.5, "c": None}]) == "a,b,c\n-1,-1.5,\n"
