"""What a newcomer types first: no command, --help, demo, explain, open, completion; and `traceops mcp`."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import traceops
from traceops.answers.asked import QUESTIONS
from traceops.answers.opening import Recent
from traceops.cli import COMMANDS, build_parser, main
from traceops.cli.open import page_of, serve
from traceops.cli.parser import Parser
from traceops.cli.run import report_reach
from traceops.core.errors import InputError
from traceops.rules.registry import RULES
from traceops.schemas import schema_path
from traceops.words.catalogue import texts

SUBPARSERS = {name: build_parser([name])._subparsers._group_actions[0].choices[name] for name in COMMANDS}  # type: ignore[union-attr]


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_a_folder")
def test_without_a_command_or_a_script_there_are_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().out
    assert "traceops run -- train.py" in said and "traceops demo" in said
    assert main(["run"]) == 2
    assert "traceops run -- torchrun" in capsys.readouterr().out


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize("name", COMMANDS)
def test_help_begins_with_examples_and_is_short(name: str) -> None:
    parser: Parser = SUBPARSERS[name]
    lines = parser.format_help().splitlines()
    assert all("traceops " in line for line in lines[:2])
    assert len(lines) <= 75, len(lines)
    shown = {word.rstrip(",") for line in lines for word in line.split() if word.startswith("--")}
    there = set(parser._option_string_actions)
    assert set(SUBPARSERS[name]._command.shown) <= there
    assert set(SUBPARSERS[name]._command.shown) <= shown


@pytest.mark.usefixtures("in_a_folder")
def test_help_all_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "memory"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help-all"])
        said = capsys.readouterr().out
        assert ended.value.code == 0 and "--grad-accum" in said and "more options" not in said
        assert "--grad-accum" not in SUBPARSERS[name].format_help()


@pytest.mark.usefixtures("in_a_folder")
def test_a_rule_is_explained_in_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    for rule in RULES:
        assert main(["explain", rule.id.lower()]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{rule.id}: {rule.title}") and len(said.splitlines()) <= 75
    assert main(["explain", "TO-S"]) == 0
    assert "TO-S001  " in capsys.readouterr().out
    assert main(["explain", "TO-Z001"]) == 2
    assert "no rule begins with" in capsys.readouterr().err


@pytest.mark.usefixtures("in_a_folder")
def test_the_demo_names_the_late_rank_and_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    page = Path(said.partition("The page: ")[2].splitlines()[0])
    assert page == Path("reports/demo/summary.html").resolve() and page.is_file()
    assert "Rank 1" in said and said.rstrip().splitlines()[-3].strip().startswith("traceops open reports/demo")


@pytest.mark.usefixtures("in_a_folder")
def test_a_page_is_served_to_whoever_has_the_token_alone() -> None:
    folder = Path("reports/x")
    folder.mkdir(parents=True)
    (folder / "summary.html").write_text("the page")
    (folder / "timeline.pftrace.gz").write_bytes(b"trace")
    Path("profile/x").mkdir(parents=True)
    for path in ("reports/x", "profile/x", "reports/x/summary.html"):
        assert page_of(path) == folder / "summary.html"
    server = serve(page_of("reports/x"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert server.server_address[0] == "127.0.0.1"
        assert urllib.request.urlopen(server.address).read() == b"the page"
        root, token = server.address.rsplit("/", 2)[:2]
        for wrong in (f"{root}/summary.html", f"{root}/{token[:-1]}/summary.html", f"{root}/{token}/../../secret"):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(wrong)
        other = urllib.request.Request(server.address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(other)
        timeline = f"{root}/{token}/timeline.pftrace.gz"
        assert b"postMessage" in urllib.request.urlopen(f"{timeline}?perfetto").read()
        assert urllib.request.urlopen(timeline).read() == b"trace"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("in_a_folder")
def test_what_has_no_page_says_how_to_make_one() -> None:
    Path("profile/y").mkdir(parents=True)
    with pytest.raises(InputError, match="traceops analyze profile/y"):
        page_of("profile/y")
    with pytest.raises(InputError, match=r"profil/y does not exist; did you mean profile/y\?"):
        page_of("profil/y")


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = "COMP_WORDS=(traceops {words}); COMP_CWORD={at}; _traceops; echo ${{COMPREPLY[@]}}"
    for words, at, found in (("ana", 1, "analyze"), ("compare --thr", 2, "--threshold")):
        told = subprocess.run(
            ["bash", "-c", f"{script}\n{ask.format(words=words, at=at)}"], capture_output=True, text=True, check=True
        )
        assert told.stdout.split() == [found], told
    assert main(["completion", "fish"]) == 0
    assert "-l threshold" in capsys.readouterr().out


@pytest.mark.usefixtures("in_a_folder")
def test_files_of_traceops_lead_to_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(Path(__file__).parents[1] / "data" / "ddp4", "profile/x/rank_0")
    Path("profile/x/run.json").write_text("{}")
    for path in ("profile/x", "profile/x/run.json", "reports/x", "reports/x/summary.html", "reports/x/report.json"):
        assert main(["analyze", path, "-q"]) == 0, path
        assert Path(capsys.readouterr().out.strip()) == Path("reports/x/summary.html"), path
    assert main(["analyze", "reports/x"]) == 0
    assert "reports/x is a report; its run is analysed" in capsys.readouterr().err
    assert main(["show", "reports/x/summary.html", "-q"]) == 0
    assert main(["analyze", "profile/xx"]) == 3
    assert "the newest run there is profile/x" in capsys.readouterr().err


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_verbose_and_quiet(name: str) -> None:
    assert {"-v", "--verbose", "-q", "--quiet"} <= set(SUBPARSERS[name]._option_string_actions)


@pytest.mark.usefixtures("in_a_folder")
def test_an_error_of_the_input_has_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "nowhere", "-v"]) == 3
    assert capsys.readouterr().err == "traceops analyze: nowhere does not exist\n"


@pytest.mark.usefixtures("in_a_folder")
def test_an_interrupt_during_imports_ends_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    root = str(Path(traceops.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "traceops", "analyze", "nowhere"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), root))}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "reports" / "example"
ONE = ROOT / "tests" / "data" / "slow_loader4" / "rank_0.pt.trace.json.gz"


@pytest.mark.slow
def test_an_agent_gets_the_answers_of_show_and_errors_that_list_what_there_is() -> None:
    pytest.importorskip("mcp.client.client")
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters

    schema = json.loads(schema_path("show").read_text())
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "traceops", "mcp"], env=dict(os.environ), cwd=ROOT
    )

    async def ask() -> None:
        async with Client(command) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {question.name.replace("-", "_") for question in QUESTIONS}
            assert sum(len(tool.description) for tool in tools.values()) <= 1200  # about 300 tokens
            for tool in tools.values():
                assert tool.annotations.read_only_hint
                assert "run" in tool.input_schema["required"]

            async def call(name: str, **arguments: Any) -> Any:
                done = await client.call_tool(name, {"run": str(EXAMPLE), **arguments})
                assert not done.is_error, done.content
                jsonschema.Draft202012Validator(schema).validate(done.structured_content)
                assert json.loads(done.content[0].text) == done.structured_content
                return done.structured_content

            summary = await call("summary")
            assert summary["headline"]["sentence"].startswith("Rank 1's input comes late")
            assert (await call("finding", rule="TO-S001"))["rows"][0]["evidence"]
            assert [row["rank"] for row in (await call("ranks", top=2))["rows"]] == [1, 2]
            assert len((await call("collectives", group="data"))["rows"]) == 6
            assert {row["kind"] for row in (await call("kernels", kind="comm"))["rows"]} == {"comm"}
            for name in ("findings", "ledger", "what_if", "steps", "roles", "checks"):
                assert (await call(name))["rows"]
            wrong = await client.call_tool("collectives", {"run": str(EXAMPLE), "group": "tensr"})
            assert wrong.is_error and "groups: default_pg (data)" in wrong.content[0].text
            gone = await client.call_tool("summary", {"run": "nowhere"})
            assert gone.is_error and "nowhere does not exist" in gone.content[0].text

    asyncio.run(ask())


def test_without_the_sdk_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == "mcp":
            raise ImportError(f"No module named {name!r}")
        return original(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "traceops.cli.mcp", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert main(["mcp"]) == 2
    assert "traceops's extra [mcp]" in capsys.readouterr().err


@pytest.mark.slow
def test_traces_are_analysed_once_and_nothing_beside_them_is_written(tmp_path: Path) -> None:
    trace = tmp_path / ONE.name
    shutil.copy(ONE, trace)
    with Recent() as recent:
        found = recent.open(str(trace))
        assert (found.path, found.read_from) == (str(trace), "traces") and found.report.ranks
        assert recent.open(str(trace)) is found
        assert [file.name for file in tmp_path.iterdir()] == [ONE.name]
        folder = found.folder
        os.utime(trace, ns=(1, 1))
        shutil.copy(EXAMPLE / "report.json", trace.with_name("report.json"))
        first = recent.open(str(trace.with_name("report.json")))
        trace.with_name("report.json").write_text(trace.with_name("report.json").read_text() + " ")
        assert recent.open(str(trace.with_name("report.json"))) is not first
        with pytest.raises(InputError, match="nowhere does not exist"):
            recent.open("nowhere")
    assert folder is not None and not folder.exists()


def test_run_says_that_too_few_steps_were_timed_to_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for nodes, said in ((1, "0 steps were timed without the profiler"), (2, "")):  # rank 0 may be on the other node
        (tmp_path / "run.json").write_text(f'{{"nnodes": {nodes}}}')
        report_reach(tmp_path, on_gpus=False)
        shown = capsys.readouterr().err
        assert said in shown and bool(shown) == bool(said)


def test_explain_shows_what_a_rule_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert texts("examples", "rules").keys() == texts("examples", "runs").keys() <= {rule.id for rule in RULES}
    assert main(["explain", "TO-S001"]) == 0 and "In a recorded run: Rank 1's input" in capsys.readouterr().out


DATA = Path(__file__).parents[1] / "data"
RUNS = texts("examples", "runs")
SENTENCES = DATA.parents[1] / "benchmarks" / "verdicts" / "sentences.md"


def test_the_other_examples_of_rules_are_sentences_of_the_verdicts_page() -> None:
    said = re.sub(r"\\(.)", r"\1", SENTENCES.read_text())
    others = {rule: text for rule, text in texts("examples", "rules").items() if not (DATA / RUNS[rule]).exists()}
    assert others and [rule for rule, text in others.items() if text not in said] == []


@pytest.mark.parametrize("run", sorted({run for run in RUNS.values() if (DATA / run).exists()}))
def test_examples_of_rules_are_what_a_run_gets(run: str, tmp_path: Path, kept_summaries: None) -> None:
    path = DATA / run
    if path.name.endswith(".tar.xz"):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path, filter="data")
        path = next(iter(tmp_path.iterdir()))
    folder = path.parent.name if path.is_file() else ""
    command = {"topology": ["doctor", "--from"], "doctor": ["doctor", "--from"], "": ["analyze"]}.get(
        folder, ["diagnose"]
    )
    main([*command, str(path), "-o", str(tmp_path / "out"), "--format", "json", "-q"])
    (report,) = (tmp_path / "out").glob("*.json")
    said = {(one["rule"], one["headline"]) for one in json.loads(report.read_text())["findings"]}
    expected = {(rule, text) for rule, text in texts("examples", "rules").items() if RUNS[rule] == run}
    assert expected <= said


def test_a_script_that_scale_is_to_train_needs_its_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "--", "train.py", "--lr", "3"]) == 2
    said = capsys.readouterr().err
    assert "--nproc 1,2,4 --global-batch-size" in said and "-- train.py --lr 3" in said


@pytest.mark.parametrize(
    ("words", "completed"), [("show traces le", "ledger"), ("show le", ""), ("explain TO-S00", "TO-S001")]
)
def test_questions_and_rules_are_completed(words: str, completed: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    typed = f"COMP_WORDS=(traceops {words}); COMP_CWORD={len(words.split())}; _traceops; echo ${{COMPREPLY[0]}}"
    script = f"{capsys.readouterr().out}\n{typed}"
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.strip() == completed
