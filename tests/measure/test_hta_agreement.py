"""HTA's own code held against our tables, value by value, whichever of its two names it was installed by."""

import csv
import json
from pathlib import Path

import hta
import pytest

from traceops.cli import main
from traceops.measure import hta_tables
from traceops.measure.hta_bridge import DISTRIBUTIONS, installed_hta
from traceops.measure.hta_tables import HtaAgreement, HtaTables, agreement_of_ranks, compare_tables
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping import ranks
from traceops.render.report.terminal import hta_sentence

DATA = Path(__file__).resolve().parents[1] / "data"
HTA_0_6 = tuple(map(int, hta.__version__.split(".")[:2])) >= (0, 6)
RUNS = ["ddp4", "fsdp2_4", "hsdp4", "pipeline4", "slow_gpu4", "slow_hsdp4", "hta/pair", "hta/amd", "hta/ns"]


@pytest.mark.parametrize("run", RUNS)
def test_by_the_definitions_of_the_version_that_is_installed_no_value_differs(run, monkeypatch):
    if HTA_0_6:  # the one definition that changed for these traces
        monkeypatch.setattr(hta_tables, "_QUEUED", (*hta_tables._QUEUED, "cuLaunchKernelEx"))
    found = analyze(DATA / run, with_hta=True, cache=False, jobs=1).hta_agreement
    assert found.differing == 0 and found.tables == ()
    assert found.values > 100 * found.ranks > 0
    assert found.by.split()[0] in DISTRIBUTIONS and found.by.endswith(hta.__version__)


def test_hta_0_6_counts_launches_in_queues_that_0_5_did_not():
    found = analyze(DATA / "ddp4", with_hta=True, cache=False, jobs=1).hta_agreement
    assert found.tables == (("queue_length",) if HTA_0_6 else ())


def test_without_gpu_activity_there_is_nothing_to_compare():
    report = analyze(DATA / "hta/cpu_only", with_hta=True, cache=False)
    assert report.hta_agreement == HtaAgreement(installed_hta())
    assert "no tables to compare" in hta_sentence(report.hta_agreement)


def test_without_htas_own_code_there_is_no_agreement_to_speak_of():
    assert analyze(DATA / "hta/pair", cache=False).hta_agreement is None
    assert agreement_of_ranks([None, None]) is None


def test_what_differs_is_counted_and_named():
    ours = HtaTables(temporal={"a": [1.0, 2.0], "b": ["x", None]}, idle={"a": [1.0]})
    rounded = HtaTables(temporal={"a": [1.0 + 1e-12, 2.0], "b": ["x", None]})
    assert compare_tables(ours, rounded, "HTA 1") == HtaAgreement("HTA 1", ranks=1, values=4)
    theirs = HtaTables(temporal={"a": [1.0, 2.001], "b": ["y", None]}, idle={"a": [1.0, 3.0]}, overlap={"c": [1, 2, 3]})
    one, first = compare_tables(ours, theirs, "HTA 1"), "temporal.a: 2.0, HTA's 2.001"
    assert one == HtaAgreement("HTA 1", 1, values=9, differing=6, tables=("temporal", "overlap", "idle"), first=first)
    both = agreement_of_ranks([one, compare_tables(ours, rounded, "HTA 1"), None])
    assert both == HtaAgreement("HTA 1", 2, 13, 6, ("temporal", "overlap", "idle"), first)
    said = hta_sentence(both)
    assert said.startswith("HTA's own code (HTA 1) gives other tables: of 13 values of 2 ranks compared, 6 differ")
    assert "temporal, overlap, idle" in said


def test_the_line_says_how_many_values_are_the_same():
    said = hta_sentence(HtaAgreement("HolisticTraceAnalysis 0.5.0", 4, 1234))
    assert said == "HTA agrees: 1,234 values of 4 ranks (HolisticTraceAnalysis 0.5.0)"


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """Runs analyze as users do; returns what report.json holds of the check."""
    monkeypatch.setenv("TRACEOPS_HTA", "1")
    monkeypatch.chdir(tmp_path)

    def run(*options, of="ddp4"):
        assert main(["analyze", str(DATA / of), "-o", "out", *options]) == 0
        return json.loads((tmp_path / "out/report.json").read_text())["summary"].get("hta_agreement")

    return run


def test_small_traces_are_checked_last_and_report_json_says_so(checked, monkeypatch, capsys):
    monkeypatch.setattr(hta_tables, "_QUEUED", (*hta_tables._QUEUED, *(["cuLaunchKernelEx"] if HTA_0_6 else [])))
    found = checked()
    assert found["values"] > 100 and found["differing"] == 0
    last = capsys.readouterr().out.split("Report: ")[1]
    assert f"HTA agrees: {found['values']} values of 4 ranks" in " ".join(last.split())


def test_a_difference_is_named_with_both_values(checked, monkeypatch, capsys):
    monkeypatch.setattr(hta_tables, "_same", lambda one, other: False)
    found = checked("--no-cache", "--jobs", "1")
    assert found["differing"] > 0 and "HTA's " in found["first"]
    assert found["first"] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "how", ["--no-hta", "-q", "--format=json", "TRACEOPS_HTA", "traceops.toml", "large", "not installed"]
)
def test_there_are_ways_to_leave_the_check_out(checked, monkeypatch, capsys, how):
    options = [how] if how.startswith("-") else []
    if how == "TRACEOPS_HTA":
        monkeypatch.setenv(how, "0")
    elif how == "traceops.toml":
        Path(how).write_text("[analyze]\nhta = false\n")
    elif how == "large":
        monkeypatch.setattr("traceops.cli.analyze._CHECKED_BYTES", 10)
    elif how == "not installed":
        monkeypatch.setattr("traceops.cli.analyze.find_spec", lambda name: None)
    assert checked(*options) is None
    assert "HTA agrees" not in capsys.readouterr().out


def test_ctrl_c_ends_the_check_and_leaves_the_report(checked, monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("traceops.cli.analyze.summarize_all", interrupted)
    assert checked() is None
    assert "Report: " in capsys.readouterr().out


def test_a_run_without_gpu_activity_is_not_checked_by_default(checked, capsys):
    assert checked(of="hta/cpu_only") is None
    assert "HTA" not in capsys.readouterr().out


def test_what_hta_stumbles_over_leaves_the_report(checked, monkeypatch, capsys):
    def raises(*_):
        raise ValueError("cannot reindex on an axis with duplicate labels")

    monkeypatch.setattr("traceops.cli.analyze.summarize_all", raises)
    assert checked() is None
    assert "HTA could not check the tables: ValueError: cannot reindex" in capsys.readouterr().err


def test_what_only_hta_has_completes_the_page_and_nothing_is_measured_again(checked, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))
    measured = []
    summarize = ranks.summarize
    monkeypatch.setattr(
        ranks, "summarize", lambda file, *options: measured.append(file.rank) or summarize(file, *options)
    )
    assert checked("--jobs", "1", of="hta/pair") is not None
    assert measured == [0, 1]
    rows = list(csv.DictReader((tmp_path / "out/hta_frequent_sequences.csv").read_text().splitlines()))
    assert {row["rank"] for row in rows} == {"0"} and all(row["pattern"].count("|") >= 3 for row in rows)
    page = (tmp_path / "out/summary.html").read_text()
    assert f"{len(rows)} sequences" in page and "hta_frequent_sequences.csv" in page
    assert checked("--no-hta", of="hta/pair") is None
    assert not (tmp_path / "out/hta_frequent_sequences.csv").exists()
    assert "hta_frequent_sequences" not in (tmp_path / "out/summary.html").read_text()


def test_a_report_that_another_process_wrote_meanwhile_is_left(checked, tmp_path, monkeypatch):
    asked = ranks.summarize_all

    def meanwhile(files, options):
        found = asked(files, options)
        page = tmp_path / "out/summary.html"
        page.with_name("new").write_text("of another run")
        page.with_name("new").replace(page)
        return found

    monkeypatch.setattr("traceops.cli.analyze.summarize_all", meanwhile)
    assert checked(of="hta/pair") is None
    assert (tmp_path / "out/summary.html").read_text() == "of another run"
