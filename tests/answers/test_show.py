"""`traceops show`: small answers about a report or traces, the same from both, and errors that list what there is."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import jsonschema
import msgspec
import pytest
from changed import replace

from traceops.answers.answering import answer
from traceops.answers.asked import QUESTIONS, Asked
from traceops.answers.opening import Opened, open_run
from traceops.cli import main
from traceops.cli.show import describe_answer
from traceops.core.documents import json_text
from traceops.core.errors import InputError, UsageError
from traceops.render.files import write_report
from traceops.report import tables
from traceops.schemas import schema_path

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "data" / "slow_loader4"
EXAMPLE = ROOT / "reports" / "example"
SCHEMA = json.loads(schema_path("show").read_text())
ALL = [Asked(question.name, rule="TO-S001" if question.name == "finding" else "") for question in QUESTIONS]


@pytest.fixture(scope="module")
def from_traces() -> Opened:
    return open_run(RUN)


@pytest.fixture(scope="module")
def from_report(from_traces: Opened, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("report")
    write_report(from_traces.report, folder, ("json", "csv"))
    return open_run(folder)


@pytest.mark.parametrize("asked", ALL, ids=lambda asked: asked.question)
def test_a_report_answers_as_its_traces_do(asked: Asked, from_traces: Opened, from_report: Opened) -> None:
    given, again = answer(from_traces, asked), answer(from_report, asked)
    assert (given.run.read_from, again.run.read_from) == ("traces", "report")
    assert replace(again, run=given.run) == given
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json_text(given)))
    assert describe_answer(given)


def test_tables_are_read_back_as_they_were(from_traces: Opened, from_report: Opened) -> None:
    assert not from_report.problems
    assert replace(from_report.report.tables, hta={}) == replace(from_traces.report.tables, hta={})
    assert from_report.report.tables.kernels and from_report.report.tables.critical_path


def test_without_its_tables_a_report_json_answers_from_its_inventory(tmp_path: Path) -> None:
    alone = tmp_path / "report.json"
    alone.write_bytes((EXAMPLE / "report.json").read_bytes())
    rows = answer(open_run(alone), Asked("kernels", top=1)).rows
    assert rows[0].name.startswith("nvjet") and rows[0].ms_per_step > 1 and rows[0].worst_rank is None


def test_a_damaged_table_hides_no_other(tmp_path: Path) -> None:
    for name in ("report.json", "kernels.csv", "arrivals.csv"):
        (tmp_path / name).write_bytes((EXAMPLE / name).read_bytes())
    (tmp_path / "kernels.csv").write_text("name,kind\na,b\n")
    found = open_run(tmp_path)
    (problem,) = found.problems
    assert str(tmp_path / "kernels.csv") in problem and "required field `count`" in problem
    assert found.report.tables.arrivals and not found.report.tables.kernels
    assert answer(found, Asked("collectives")).rows[0].last_rank == 1


def test_a_table_of_an_earlier_version_lacks_columns_that_have_a_default(tmp_path: Path) -> None:
    class Row(msgspec.Struct, kw_only=True):
        rank: int
        ranks: tuple[int, ...]
        name: str
        share: float | None
        later: int | None = None

    old = b"rank,ranks,name,share\n3,0 1,'=x,\n4,,,0.5\n"
    first, second = tables._rows(old, Row)
    assert first == Row(rank=3, ranks=(0, 1), name="=x", share=None)
    assert second == Row(rank=4, ranks=(), name="", share=0.5)
    with pytest.raises(ValueError, match="required field `rank`"):
        list(tables._rows(b"ranks,name,share\n0,x,\n", Row))


def show(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["show", str(EXAMPLE), *words, "--json"]) == 0
    value: dict[str, object] = json.loads(capsys.readouterr().out)
    return value


def test_what_narrows_an_answer_down(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = show(capsys, "ranks", "--worst", "3")
    assert ranks["total"] == 4 and [row["rank"] for row in ranks["rows"]] == [1, 2, 0]
    assert ranks["ordered_by"] == "caused_wait_ms"
    by = show(capsys, "ranks", "--by", "compute_ms")["rows"]
    assert [row["compute_ms"] for row in by] == sorted((row["compute_ms"] for row in by), reverse=True)
    steps = show(capsys, "steps", "--rank", "1,3", "--step", "4")["rows"]
    assert [(row["rank"], row["step"]) for row in steps] == [(1, 4), (3, 4)]
    for group in ("default_pg", "data", "FAULT"):
        assert len(show(capsys, "collectives", "--group", group)["rows"]) == 6
    kernels = show(capsys, "kernels", "--kind", "comm", "--top", "10")["rows"]
    assert kernels and {row["kind"] for row in kernels} == {"comm"}
    ledger = show(capsys, "ledger", "--rank", "1")["rows"]
    assert sum(row["pct_of_step"] for row in ledger) == pytest.approx(100, abs=0.1)
    assert [row["rule"] for row in show(capsys, "findings", "--severity", "error")["rows"]] == ["TO-S001"]


def test_one_finding_has_its_evidence_and_a_rule_without_one_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    found = show(capsys, "finding", "to-s001")
    assert found["check"]["status"] == "fired" and found["rows"][0]["evidence"][0]["value"] == pytest.approx(
        30.475, abs=1e-3
    )
    clear = show(capsys, "finding", "TO-S002")
    assert clear["rows"] == [] and clear["check"]["status"] == "clear" and clear["check"]["reason"]


def test_a_remark_that_is_asked_for_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict said "TO-V006 says how", and no command did: advice of remarks stood on the page alone."""
    assert main(["show", str(EXAMPLE), "finding", "TO-I002"]) == 0
    assert "→ Load " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["finding", "TO-S011"], ["TO-S001", "TO-I002", "checks"]),
        (["finding", "TO-S009"], ["rules of stragglers: TO-S001, TO-S002, TO-S003;", "TO-I002"]),
        (["ranks", "--rank", "9"], ["rank 9", "0–3"]),
        (["steps", "--step", "9"], ["step 9", "3–5"]),
        (["collectives", "--group", "tensr"], ["'tensr'", "default_pg (data)"]),
        (["collectives", "--op", "alltoall"], ["'alltoall'", "allreduce"]),
        (["kernels", "--kind", "com_"], ["did you mean comm?", "memory"]),
        (["ranks", "--by", "idle_pc"], ["did you mean idle_pct?", "wait_ms"]),
        (["checks", "TO-X"], ["TO-X"]),
    ],
)
def test_an_error_lists_what_there_is(words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(EXAMPLE), *words]) == 2
    shown = capsys.readouterr()
    assert not shown.out and all(part in shown.err for part in said)


def test_the_summary_answers_as_the_first_screen_does(from_report: Opened) -> None:
    summary = answer(from_report, Asked())
    said = {line.label: line.text for line in summary.first_screen}
    assert set(said) == {"Do", "Confidence", "Coverage"}
    assert summary.card.rule == "TO-S001" and summary.card.proof == "dataloader_next 30.2 ms on rank 1, 0 on others"
    assert [(cost.when, round(cost.ms, 1)) for cost in summary.costs] == [("now", 53.8), ("then", 23.3)]


def test_an_unknown_question_is_refused(from_report: Opened) -> None:
    with pytest.raises(UsageError, match="summary, findings"):
        answer(from_report, Asked("wether"))


def test_the_text_says_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(EXAMPLE)]) == 0
    shown = capsys.readouterr()
    lead = json.loads((EXAMPLE / "report.json").read_bytes())["findings"][0]
    assert (lead["rule"], lead["facts"]["rank"]) == ("TO-S001", 1)
    assert lead["headline"] in shown.out and "idle_input" in shown.out and not shown.err
    assert main(["show", str(EXAMPLE), "kernels", "--top", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("ncclDevKernel") and lines[2] == "1 of 53, most ms_per_step first"
    assert "\ufffd" not in "".join(lines)  # 34 999 µs has a narrow space


def test_sizes_that_read_alike_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(EXAMPLE), "collectives"]) == 0
    shown = capsys.readouterr().out
    assert "33.604 MB" in shown and "33.587 MB" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_traces_are_analysed_and_that_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    one = RUN / "rank_0.pt.trace.json.gz"
    assert main(["show", str(one), "ledger", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["run"]["read_from"] == "traces"
    assert "reading the traces of" in shown.err
    assert main(["show", "nowhere", "ledger", "--json"]) == 3
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("traceops show: nowhere does not exist")


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `traceops diagnose` wrote of a real hang."""
    folder = tmp_path_factory.mktemp("hung")
    with tarfile.open(ROOT / "tests" / "data" / "hangs" / "hang_exit.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.12 and 3.13 warn without one
        archive.extractall(folder / "evidence")
    assert main(["diagnose", str(folder / "evidence"), "-o", str(folder / "report"), "-q"]) == 0
    return folder / "report"


def test_a_diagnosis_is_asked_as_a_report_is(hung: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked in ALL:
        value = json.loads(json_text(answer(open_run(hung), asked)))
        jsonschema.Draft202012Validator(SCHEMA).validate(value)
    found = open_run(hung / "hang.json")
    said = answer(found, Asked("hang", ranks=(3,)))
    assert said.sentence.startswith("Rank 3 died") and [row.rank for row in said.rows] == [3]
    assert said.roots[0].rule == "TO-H004" and said.roots[0].evidence
    summary = answer(found, Asked("summary"))
    assert summary.card.headline.startswith("Rank 3 died") and summary.card.rule == "TO-H004" and summary.card.actions
    assert answer(found, Asked("finding", rule="TO-H004")).rows[0].ranks == (3,)
    capsys.readouterr()
    assert main(["show", str(hung), "hang"]) == 0 and main(["show", str(hung), "ranks"]) == 0
    shown = capsys.readouterr().out
    assert "Rank 3 died" in shown and "no ranks are known of this run" in shown


def test_a_report_with_a_hang_opens_with_it(hung: Path, tmp_path: Path) -> None:
    value = json.loads((EXAMPLE / "report.json").read_text())
    value["hang"] = json.loads((hung / "hang.json").read_text())["hang"]
    (tmp_path / "report.json").write_text(json.dumps(value))
    found = open_run(tmp_path)
    summary = answer(found, Asked())
    assert summary.headline.sentence.startswith("Rank 3 died") and summary.card.rule == "TO-H004"
    assert answer(open_run(EXAMPLE), Asked("hang")).sentence is None


def test_what_is_no_hang_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "hang.json").write_text('{"hang": 1}')
    with pytest.raises(InputError, match=r"hang.json is no hang.json of traceops"):
        open_run(tmp_path)


WITH_FIRST_STEPS = Path(__file__).parents[1] / "data" / "last_pass_gloo2"


def write(folder, name, later_s, pid):
    """The run again, `later_s` later, by processes of other numbers."""
    for rank, path in enumerate(sorted(WITH_FIRST_STEPS.glob("*.json.gz"))):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            event["ts"] += later_s * 1e6
            event["pid"] = pid + rank
        (folder / f"{name}_rank_{rank}.json").write_text(json.dumps(trace))


def test_windows_of_other_jobs_are_no_earlier_windows(tmp_path, capsys):
    """Two jobs of a window each were 'the last of 2 capture windows', and '1 earlier capture window left out'."""
    write(tmp_path, "a", 0, 700)
    write(tmp_path, "b", 60, 800)
    assert open_run(tmp_path).problems == ("1 capture window of other jobs left out",)
    assert main(["view", str(tmp_path), "-o", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr().out
    assert "1 capture window of other jobs left out" in told and "one of" not in told
    write(tmp_path, "c", 90, 800)
    assert open_run(tmp_path).problems == ("1 other capture window left out", "1 capture window of other jobs left out")
