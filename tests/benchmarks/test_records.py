"""What benchmarks keep is whole: tables of cases, public inputs, pages of results, figures in the docs."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from datetime import date

import pytest
from changed import replace
from started import environment

from benchmarks import ROOT
from benchmarks.crashes.cases import RECORDED
from benchmarks.crashes.runs import recorded_outcomes, rows
from benchmarks.field.inputs import INPUTS
from benchmarks.field.score import Scored, files_of, first_sentence, markdown, score, totals, verdict
from benchmarks.figures import BEGIN, END, PAGE, Figure, block, commits_since, measured_at, replaced
from benchmarks.gpu_traces.truth import EXPECTED
from benchmarks.harm import sizes
from benchmarks.harm.__main__ import Outcome, Result, examine, print_kinds, report, run
from benchmarks.harm.cases import Case, at_random_moments
from benchmarks.harm.cases import load as load_programs
from benchmarks.harm.lanes import reason_to_skip, side_by_side
from benchmarks.observed.registry import ONE_GPU
from benchmarks.pairs.cases import CASES
from benchmarks.records import patterns, read_records
from benchmarks.speed.stages import STAGES, table
from benchmarks.verdicts.examples import said_of
from benchmarks.verdicts.kinds import HEADLINES, Kind, kinds
from benchmarks.verdicts.page import NO_EXAMPLE, entry_name, examples_in, page, quoted
from benchmarks.verdicts.reasons import REASONS
from traceops.core.rule import JudgedBy
from traceops.rules.registry import BY_ID, RULES


@dataclass(frozen=True)
class Row:
    name: str
    right: str


@pytest.mark.parametrize("records", [EXPECTED, CASES, ONE_GPU], ids=["gpu_traces", "pairs", "observed"])
def test_no_two_records_have_one_name(records):
    names = [one.name for one in records]
    assert len(names) > 20 and sorted(set(names)) == sorted(names)


def test_patterns_compile_and_a_trace_has_one_of_what_is_right():
    for one in EXPECTED:
        assert one.right
        for pattern in (one.right, one.abstains, one.never):
            re.compile(pattern)


def test_every_program_of_a_record_is_there():
    pairs = {case.program for case in CASES}
    missing = [name for name in pairs if not (ROOT / f"benchmarks/pairs/programs/{name}.py").is_file()]
    alone = [one.command[0].replace("{one_gpu}", "benchmarks/observed/programs") for one in ONE_GPU]
    assert not missing and all((ROOT / path).is_file() for path in alone)


def test_a_pattern_that_records_share_is_named_once(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"name": "one", "right": "{NO_EVENTS}|x{2}"}\n')
    (row,) = read_records(path, Row)
    assert row == Row("one", patterns()["NO_EVENTS"] + "|x{2}")
    path.write_text('{"name": "one", "right": "{NO_SUCH}"}\n')
    with pytest.raises(KeyError, match="NO_SUCH"):
        read_records(path, Row)


STARVES = "x: 1 ranks\n▲ Rank 0 waits for its host to launch kernels for 3 ms of each 5 ms step (TO-I001).\n"
ONE = replace(
    INPUTS[0], right="waits for its host", abstains="Not judged", never="✔", paths=("trace.json",), held=False
)


def test_there_are_many_inputs_of_many_kinds_half_of_them_set_aside():
    assert len(INPUTS) >= 80 and len({one.kind for one in INPUTS}) >= 12
    for wave in (1, 3, 4):
        some = [one for one in INPUTS if one.wave == wave]
        assert abs(2 * sum(one.held for one in some) - len(some)) <= 1
    later = [one for one in INPUTS if one.wave == 2]
    assert len(later) >= 15 and not any(one.held for one in later)
    assert len({one.name for one in INPUTS}) == len(INPUTS)
    asked = {(one.origin, one.paths, one.command) for one in INPUTS}  # one log is read for both
    assert len(asked) == len(INPUTS)


def test_an_input_says_where_it_is_from_what_is_true_and_what_may_be_said():
    for one in INPUTS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(@[0-9a-f]{40}|#\S+)", one.origin)
        assert re.fullmatch(r"[0-9a-f]{64}", one.sha256) and all(one.paths)
        assert len(one.truth) > 20 and (one.right or one.abstains)
        for pattern in (one.right, one.abstains, one.never):
            re.compile(pattern)


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        (STARVES, "right"),
        (STARVES.replace("waits for its host", "waits\n  for its host"), "right"),
        ("● Nothing serious found in what could be judged. Not judged: 60 %.", "abstains"),
        ("✖ Rank 3 died.", "wrong"),
        (f"{STARVES}✔ all is well", "wrong"),
        ("", "wrong"),
        ("▲ waits for its host\nTraceback (most recent call last)\nthis is a mistake in traceops; report it", "wrong"),
    ],
)
def test_what_is_said_is_right_abstains_or_wrong(output, outcome):
    assert score(ONE, output).outcome == outcome


def test_the_table_says_why_something_is_wrong_and_counts_the_half_that_was_set_aside():
    rows = [score(ONE, STARVES), replace(score(replace(ONE, held=True), "✔ fine")), Scored(ONE, "not at hand")]
    table = markdown(rows)
    assert "**wrong**: it says '✔'" in table and "| right |" in table
    assert totals(rows)[1] == "Set aside: 1 inputs of 1 kinds: 1 wrong."
    assert verdict(STARVES).startswith("▲ Rank 0")


def test_a_file_that_is_not_the_one_that_was_judged_is_not_scored(tmp_path):
    here = replace(ONE, sha256=hashlib.sha256(b"{}").hexdigest())
    assert files_of(here, tmp_path, fetch=False) is None
    path = tmp_path / here.name / "trace.json"
    path.parent.mkdir()
    path.write_bytes(b"{}")
    assert files_of(here, tmp_path, fetch=False) == [path]
    path.write_bytes(b"[]")
    assert files_of(here, tmp_path, fetch=False) is None


def test_what_the_first_sentence_names_is_counted_where_it_is_judged():
    said = verdict("▲ 1 message of trouble: “it failed”. Read: 1 log.\nNot evaluated: TO-H001, x\n")
    assert first_sentence(said) == "▲ 1 message of trouble: “it failed”. "
    assert first_sentence("✖ Rank 3 died. [TO-H004, error] exit code: 1") == "✖ Rank 3 died. "
    rows = [Scored(ONE, "right", named=named) for named in (True, False, None)]
    assert totals(rows)[-1] == "The first sentence names the root: 1 of 2."
    assert markdown(rows).count("(root not named)") == 1


def test_there_are_many_programs_and_ways_to_end_them() -> None:
    cases = load_programs()
    assert len(cases) >= 200 and {case.way for case in cases} == {"capture", "run", "command"}
    listed = " ".join((ROOT / "docs" / "capture.md").read_text().split())
    assert [case.name for case in cases if case.listed not in listed] == []
    drawn = list(at_random_moments(cases, 100, 0))
    assert len({case.after_s for case in drawn}) > 90 and all(case.signal_number for case in drawn)


def test_a_program_finds_what_the_harness_itself_imports(monkeypatch, tmp_path) -> None:
    (tmp_path / "only_there.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    code = "import only_there, os, traceops\nassert 'PYTHONUNBUFFERED' not in os.environ"
    assert run(Case("x", code), traced=False).code == 0


def test_a_program_is_the_same_under_the_capture() -> None:
    source = "import json, sys\nopen('kept', 'w').write('x')\nprint(json.V, sys.argv)\nsys.exit(7)"
    case = Case("x", source, words=("--lr", "1"), files={"json.py": "V = 5"})
    theirs, ours = (run(case, traced=traced) for traced in (False, True))
    assert (theirs.code, theirs.stdout) == (7, b"5 ['main.py', '--lr', '1']\n") and set(theirs.files) == {
        "main.py", "json.py", "kept",
    }  # fmt: skip
    assert theirs.differences(ours) == []


@pytest.mark.parametrize(
    ("name", "code", "stdout"),
    [
        ("C's exit in a window", 9, b"out\n"),
        ("os.fork in a window", 0, None),
        ("a program that is not there", 2, b""),
        ("a dispatch mode of its own", 0, b"400\n"),
    ],
)
def test_an_end_that_was_another_under_the_capture(name: str, code: int, stdout: bytes | None) -> None:
    [case] = [case for case in load_programs() if case.name == name]
    ended = run(case, traced=True)
    assert ended.code == code and b"Traceback" not in ended.stderr
    assert stdout in (None, ended.stdout)


def test_sizes_are_many_and_a_trace_of_many_steps_takes_no_more_memory_than_it_may() -> None:
    """In a process of its own: what a process needed before it became another counts for that."""
    assert len(list(sizes.cases())) >= 80
    command = [sys.executable, "-m", "benchmarks.harm.sizes", "--only", "trace steps", "--mb", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout.endswith("MB\n") and "1 sizes, " in done.stdout
    assert "too much memory" not in done.stdout


def test_every_difference_is_named() -> None:
    one = Outcome(0, b"a", b"", {"weights": "1", "log": "2"})
    other = replace(one, code=1, stderr=b"x", files={"weights": "3", "log": "2"})
    assert one.differences(other) == ["exit code 1, not 0", "stderr b'x', not b''", "files: weights"]


def _cores(*_: object) -> int:
    return len(os.sched_getaffinity(0))


def test_lanes_run_programs_with_cores_of_their_own_and_results_keep_the_order() -> None:
    cases = [Case(f"ends with {code}", f"import sys; sys.exit({code})") for code in range(4)]
    results = list(side_by_side(examine, cases, 2, math.inf))
    assert [(case, result and result.found) for case, result in results] == [(case, []) for case in cases]
    most = min(2, len(os.sched_getaffinity(0)))
    assert {cores for _, cores in side_by_side(_cores, cases, 2, math.inf)} == {most}


def test_a_program_without_an_end_is_ended_and_no_case_begins_behind_the_deadline() -> None:
    endless = Case("endless", "import os, time\nos.fork()\nwhile True: time.sleep(1)")
    ended = run(endless, traced=False, limit_s=1.0)
    assert "ended by the harness, as it took too long" in ended.differences(ended)
    assert list(side_by_side(examine, [endless], 1, time.monotonic())) == [(endless, None)]


def test_a_difference_beside_others_counts_when_it_shows_again_alone() -> None:
    differs, same = Result(["exit code 1, not 0"], 1.0, 0.0), Case("ends")
    traced_alone = Case("knows the capture", "import os, sys; sys.exit('TRACEOPS_CAPTURE' in os.environ)")
    assert report(same, differs, math.inf, again=True) and not report(same, differs, 0.0, again=True)
    assert not report(same, differs, math.inf, again=False)
    assert not report(traced_alone, differs, math.inf, again=True)


def test_the_end_counts_each_kind_of_case(capsys: pytest.CaptureFixture[str]) -> None:
    signal, fault = (Case(file, file=file) for file in ("signals", "faults"))
    print_kinds([signal, fault], [(signal, Result([], 1.0, 0.0)), (fault, None)], 0)
    kinds = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert (kinds["aimed signals"], kinds["faults"]) == ("1 of 1", "0 of 1")


def test_a_case_that_needs_a_tool_that_is_missing_is_skipped() -> None:
    assert "no-such-tool" in reason_to_skip(Case("x", way="command", command=("no-such-tool",)))
    assert reason_to_skip(Case("x", way="command", command=("python", "main.py"))) == ""


CRASHES = ROOT / "benchmarks" / "crashes" / "RESULTS.md"


def test_each_is_told_as_planted_and_as_the_page_says() -> None:
    found = recorded_outcomes()
    assert [(one.planted.name, one.verdict, one.missing) for one in found] == [
        (planted.name, "right", "") for planted in RECORDED
    ]
    table = "\n".join(rows(found, most=400))
    assert table in CRASHES.read_text(), "run: python -m benchmarks.crashes.runs recorded"


SENTENCES = (ROOT / "benchmarks" / "verdicts" / "sentences.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in SENTENCES.split("\n## ")[1:])
QUOTES = re.findall(r"^  - (?:opens|finding): (.*)$", SENTENCES, re.MULTILINE)


def section(kind: Kind) -> str:
    if kind in HEADLINES:
        return SECTIONS["Openings"]
    return SECTIONS[f"{kind.of}: {BY_ID[kind.of].title}"]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: f"{kind.of} {kind.variant}".strip())
def test_every_kind_of_sentence_has_an_entry(kind: Kind) -> None:
    """With an example below it, or with the reason why there is none."""
    [line, below] = re.findall(rf"^- {re.escape(entry_name(kind))}(.*)\n?(.*)", section(kind), re.MULTILINE)[0]
    assert line == f": {NO_EXAMPLE} {REASONS[kind]}" if line else below.startswith(("  - opens: ", "  - finding: "))


def test_the_page_has_every_rule_that_a_command_judges_and_no_other() -> None:
    judged = {f"{rule.id}: {rule.title}" for rule in RULES if rule.judged_by is not JudgedBy.NOBODY}
    assert set(SECTIONS) - {"Openings"} == judged


def test_the_count_at_the_top_is_that_of_the_entries() -> None:
    entries = re.findall(r"^- (.*)$", SENTENCES, re.MULTILINE)
    without = [entry for entry in entries if f": {NO_EXAMPLE}" in entry]
    assert len(without) == len(REASONS)
    assert f"{len(entries)} kinds of sentences, {len(entries) - len(without)} of them with an example" in SENTENCES
    assert len(entries) == len(kinds())


@pytest.mark.parametrize("run", ["slow_gpu4", "expert_skew2", "crash_logs/set_aside", "topology"])
def test_examples_are_what_is_said_today(run: str) -> None:
    said = {quoted(one.text) for one in said_of(f"tests/data/{run}", ROOT / "tests" / "data" / run)}
    shown = [quote for quote in QUOTES if f"(`tests/data/{run}" in quote]
    assert shown
    for quote in shown:
        assert quote.split(" ", 1)[1].rpartition(" (`")[0] in said, "run: python -m benchmarks.verdicts.page"


@pytest.mark.parametrize(
    "wrong",
    [
        r"\bthe other rank wait\b",
        r"\b[Rr]ank \d+ (?:wait|have|are|run|launch)\b",
        r"\b[Rr]anks \d+(?:–\d+)?(?:, \d+)* (?:waits|has|is|runs)\b",
        r"(?<![\d.,–])\b1 (?:ranks|links|findings|steps|things|hosts|pairs|channels|micro-batches)\b",
        r"\.\.(?![./])",
        r" [,;](?:\s|$)",
        r"\b[Aa] (?:8|11|18|8\d)(?![\d.,])",
        r"\bNone\b|(?<!Loss is )\bnan\b|…\.",
        r"\b[Rr]ank \d+ \w+ .{0,60}for up to",
    ],
)
def test_no_example_has_this_fault(wrong: str) -> None:
    assert not [quote for quote in QUOTES if re.search(wrong, quote)]


# What is longer, and what each part of it is needed for.
_LONG = {
    "Nothing serious found in what could be judged": "what was found, what was not judged and why, what to do",
    "It looks slower, though that is not certain": "the change, its reason, why it is not certain, what makes it so",
}
_MOST = 360  # characters of a sentence and its place


def test_what_is_said_first_is_short() -> None:
    """A cause, what it costs and what cures it: numbers beside those are evidence."""
    said = [re.sub(r"\\(.)", r"\1", quote.split(" ", 1)[1].rpartition(" (`")[0]) for quote in QUOTES]
    assert not [one for one in said if len(one) > _MOST and not one.startswith(tuple(_LONG))]
    assert not [one for one in said if len(one) > 500]


@pytest.mark.parametrize("unit", ["ms", "GiB", "GB/s"])
def test_no_sentence_rounds_one_thing_in_two_ways(unit: str) -> None:
    """'256.86 ms … 256.9 ms', '4.33 GB/s … 4.3 GB/s': one number with fewer digits of another."""
    for quote in QUOTES:
        numbers = set(re.findall(rf"(?<![\d.])(\d+(?:\.\d+)?) {unit}", quote))
        for one, other in itertools.permutations(numbers, 2):
            places = len(one.partition(".")[2])
            assert f"{float(other):.{places}f}" != one, quote


def test_a_page_of_nothing_says_so_everywhere() -> None:
    assert page([]).count(NO_EXAMPLE) == len(kinds())


def test_a_page_is_read_back_as_it_was_written() -> None:
    """So that examples of folders that are not at hand stay."""
    assert page(examples_in(SENTENCES)) == SENTENCES


MOST_COMMITS = 200  # to the code that they are of
OURS, THEIRS = Figure("4 ranks", 1.5, 90.0), Figure("HTA, 4 ranks", 30.0, 900.0)


def test_figures_in_the_docs_are_not_much_older_than_the_code():
    commit, when = measured_at(PAGE.read_text(encoding="utf-8"))
    try:
        since = commits_since(commit)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("no history here")
    assert since <= MOST_COMMITS, f"figures of {when} are {since} commits old: make figures"
    if since:
        warnings.warn(f"figures of {when} are {since} commits older than the code: make figures", stacklevel=1)


def test_figures_replace_those_before_them_and_say_of_which_commit_they_are():
    page = replaced(f"before\n{BEGIN}old\n{END}after\n", block([OURS, THEIRS], "0123abcd", date(2026, 11, 29)))
    assert measured_at(page) == ("0123abcd", date(2026, 11, 29))
    assert "old" not in page and page.startswith("before\n") and page.endswith("after\n")
    assert "20.0 times the CPU time and 10.0 times the memory" in page
    assert "times" not in block([OURS], "0123abcd", date(2026, 11, 29))


def test_figures_have_a_place():
    with pytest.raises(ValueError, match="no marks"):
        replaced("a page", "figures")
    with pytest.raises(ValueError, match="no figures"):
        measured_at(f"{BEGIN}{END}At 0123abcd (2026-11-29)")


def test_a_stage_that_changed_by_three_percent_has_a_sign():
    before = dict.fromkeys(STAGES, 100e6)
    rows = table(before, before | {"load": 103.1e6, "write": 96.9e6, "import": 102.0e6}, 1e6).splitlines()
    signs = {row.split("|")[1].strip(): row.rstrip(" |")[-1] for row in rows[2:]}
    assert signs == {**dict.fromkeys((*STAGES, "all"), "%"), "load": "▲", "write": "▼"}
