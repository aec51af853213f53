"""traceops.load: short, with frames, figures and a page, without torch."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import traceops
from traceops.integrations.loaded_run import LoadedRun
from traceops.measure.ledger import BUCKETS
from traceops.render.writers.html import scoped_css

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "reports" / "example"
FRAMES = ("findings", "ranks", "steps", "collectives", "kernels", "operators", "ledger", "what_if", "roles", "checks")


@pytest.fixture(scope="module")
def run() -> LoadedRun:
    return traceops.load(EXAMPLE)


def test_it_is_told_in_three_lines(run: LoadedRun) -> None:
    lines = repr(run).splitlines()
    assert lines[0] == "slow_loader4: 4 ranks (0–3), NVIDIA H200, step 53.82 ms"
    assert lines[1].startswith("error: Rank 1's input comes late") and len(lines) == 3
    assert repr(run.report) == "<Report 'slow_loader4': 4 ranks, 53.82 ms per step; findings: 1 error, 1 info>"


def test_a_notebook_shows_the_first_screen_and_leaves_the_rest_of_its_page_alone(run: LoadedRun) -> None:
    shown = run._repr_html_()
    assert len(shown) < 120_000 and "Rank 1&#39;s input comes late" in shown and "TO-I002" in shown
    assert "<script" not in shown and "<html" not in shown and "http" not in shown
    assert set(re.findall(r'href="#([^"]+)"', shown)) <= set(re.findall(r' id="([^"]+)"', shown))
    assert "dataloader_next 30.2 ms on rank 1, 0 on others" in shown
    (style,) = re.findall(r"<style>(.*?)</style>", shown, re.DOTALL)
    assert style.strip().startswith(".traceops-report {") and style.count("{") == style.count("}")
    assert not re.search(r"(?:^|[\s,}])(?:html|body|:root)\s*[,{]", style)


def test_a_style_sheet_counts_inside_its_element_only() -> None:
    sheet = ":root { top: 0; }\nbody { margin: 0; }\n@media print { :root, td { color: red; } }\n.body { top: 0 }"
    inside = "& { top: 0; }\n& { margin: 0; }\n@media print { &, td { color: red; } }\n.body { top: 0 }"
    assert scoped_css(sheet, ".x") == f".x {{\n{inside}\n}}\n"


@pytest.mark.parametrize("name", FRAMES)
def test_each_column_of_a_frame_is_documented(run: LoadedRun, name: str) -> None:
    pytest.importorskip("pandas")
    page = (ROOT / "docs" / "notebook.md").read_text()
    section = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
    frames = {"findings": run.findings.frame, "ranks": lambda: run.all_ranks}
    columns = list(frames.get(name, lambda: getattr(run, name))().columns)
    documented = [word for line in section.splitlines() if line.startswith("| `") for word in _names(line)]
    assert sorted(documented) == sorted(columns)


def _names(line: str) -> list[str]:
    return re.findall(r"`(\w+)`", line.split("|")[1])


def test_frames_hold_what_the_report_does(run: LoadedRun) -> None:
    pandas = pytest.importorskip("pandas")
    steps = run.steps
    assert len(steps) == 12 and str(steps["kernels"].dtype) == "Int64"
    assert (steps[[f"{bucket}_ms" for bucket in BUCKETS]].sum(axis=1) - steps["duration_ms"]).abs().max() < 1e-6
    assert run.ranks.set_index("rank")["caused_wait_ms"].idxmax() == 1
    assert run.ranks["peak_memory_bytes"].isna().all() and pandas.isna(run.ledger["rank"][0])
    assert "Share of all such waiting" in run.all_ranks.attrs["columns"]["late_share"]
    assert len(run.ranks.columns) == 10 and set(run.ranks.columns) < set(run.all_ranks.columns)
    assert list(run.findings.frame()["rule"]) == [one.rule for one in run.findings] == ["TO-S001", "TO-I002"]
    assert run.finding("TO-S001")[0].evidence and run.finding("TO-S002") == ()


def test_an_empty_frame_has_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    value = json.loads((EXAMPLE / "report.json").read_text())
    value |= {"what_if": [], "findings": [], "inventory": None}
    (tmp_path / "report.json").write_text(json.dumps(value))
    run = traceops.load(tmp_path)
    assert run.what_if.empty and "saved_pct" in run.what_if.columns
    assert run.kernels.empty and str(run.kernels["ms_per_step"].dtype) == "float64"


def test_figures_are_those_of_the_page(run: LoadedRun) -> None:
    objects = pytest.importorskip("plotly.graph_objects")
    ledger = run.figure("ledger")
    assert isinstance(ledger, objects.Figure) and len(ledger.data[0].x) == 4
    assert isinstance(run.figure("what_if"), objects.Figure)
    with pytest.raises(KeyError) as caught:
        run.figure("leger")
    assert "did you mean ledger?" in str(caught.value) and all(name in str(caught.value) for name in run.figures)


@pytest.mark.parametrize(("package", "use"), [("pandas", "ranks"), ("plotly", "figure")])
def test_without_an_extra_the_error_names_it(
    run: LoadedRun, package: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (f"traceops.integrations.{package}", "plotly.graph_objects"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install {package} .*\\[frames\\]"):
        run.ranks if use == "ranks" else run.figure("ledger")


def test_the_whole_page_is_written(run: LoadedRun, tmp_path: Path) -> None:
    assert run.save_html(tmp_path / "same.html").read_bytes() == (EXAMPLE / "summary.html").read_bytes()
    made = run.save_html(tmp_path / "anew.html", plotlyjs="cdn").read_text()
    assert "Rank 1&#39;s input comes late" in made and 'id="checks"' in made
    assert "This page was made from report.json" in made


def test_completion_shows_what_is_there(run: LoadedRun) -> None:
    assert {*FRAMES, "figure", "figures", "finding", "save_html", "report"} <= set(dir(run))
    assert "load" in dir(traceops) and not [name for name in dir(run) if name.startswith("_")]


def test_a_report_that_was_just_made_is_taken_too(run: LoadedRun) -> None:
    again = traceops.load(run.report)
    assert repr(again) == repr(run)


def test_a_folder_of_several_runs_is_none(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    with pytest.raises(traceops.core.errors.InputError, match=r"2 runs: first, second"):
        traceops.load(tmp_path)


def test_torch_pandas_and_plotly_are_left_alone_until_they_are_asked_for() -> None:
    code = (
        f"import sys, traceops; run = traceops.load({str(EXAMPLE)!r}); repr(run); run._repr_html_(); run.figures; "
        "print([name for name in ('torch', 'pandas', 'plotly', 'IPython') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_of_the_examples_runs_and_prints_what_it_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("plotly")
    monkeypatch.chdir(path.parent)
    namespace: dict[str, object] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec("".join(cell["source"]), namespace)  # its own code, which is in this repository
            outputs = (o for o in cell["outputs"] if o["output_type"] == "stream")
            assert printed.getvalue() == "".join("".join(output["text"]) for output in outputs)
    assert path.stem != "slow_run" or namespace["late"] == 1


def test_two_runs_in_one_notebook_link_to_their_own_findings(run: LoadedRun, tmp_path: Path) -> None:
    value = json.loads((EXAMPLE / "report.json").read_text())
    value["run"]["name"] = "other"
    (tmp_path / "report.json").write_text(json.dumps(value))
    ids = [set(re.findall(r' id="([^"]+)"', shown._repr_html_())) for shown in (run, traceops.load(tmp_path))]
    assert ids[0] and ids[1] and not ids[0] & ids[1]


def test_one_object_answers_compares_and_reads_events(run: LoadedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    assert run.answer.headline and run.answer.actions
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert run.open().is_file() and shown[0].endswith("summary.html")
    slow, fast = (traceops.load(ROOT / "tests" / "data" / name) for name in ("slow_loader4", "ddp4"))
    events = slow.events(1)
    assert len(events) > 1000 and {"name", "ts_ns", "dur_ns"} <= set(events.columns)
    assert "dataloader_next" in " ".join(map(str, events["name"].unique()))
    with pytest.raises(KeyError, match="rank 9 has no trace"):
        slow.events(9)
    found = fast.compare(slow)
    assert found.verdict == "regression" == traceops.compare(fast._found.path, slow._found.path).verdict
    assert traceops.diagnose.__name__ == "diagnose" and {"compare", "diagnose"} <= set(dir(traceops))
