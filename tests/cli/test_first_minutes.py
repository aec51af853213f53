"""What a newcomer types first: no command, --help, demo, explain, open, completion."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import traceops
from traceops.cli import COMMANDS, build_parser, main
from traceops.cli.open import page_of, serve
from traceops.cli.parser import Parser
from traceops.core.errors import InputError
from traceops.rules.registry import RULES

SUBPARSERS = {name: build_parser([name])._subparsers._group_actions[0].choices[name] for name in COMMANDS}  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_a_command_or_a_script_there_are_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().out
    assert "traceops run -- train.py" in said and "traceops demo" in said
    assert main(["run"]) == 2
    assert "traceops run -- torchrun" in capsys.readouterr().out


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


def test_help_all_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "memory"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help-all"])
        said = capsys.readouterr().out
        assert ended.value.code == 0 and "--grad-accum" in said and "more options" not in said
        assert "--grad-accum" not in SUBPARSERS[name].format_help()


def test_a_rule_is_explained_in_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    for rule in RULES:
        assert main(["explain", rule.id.lower()]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"{rule.id}: {rule.title}") and len(said.splitlines()) <= 75
    assert main(["explain", "TO-S"]) == 0
    assert "TO-S001  " in capsys.readouterr().out
    assert main(["explain", "TO-Z001"]) == 2
    assert "no rule begins with" in capsys.readouterr().err


def test_the_demo_names_the_late_rank_and_what_to_type_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    said = capsys.readouterr().out
    page = Path(said.partition("The page: ")[2].splitlines()[0])
    assert page == Path("reports/demo/summary.html").resolve() and page.is_file()
    assert "Rank 1" in said and said.rstrip().splitlines()[-3].strip().startswith("traceops open reports/demo")


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


def test_what_has_no_page_says_how_to_make_one() -> None:
    Path("profile/y").mkdir(parents=True)
    with pytest.raises(InputError, match="traceops analyze profile/y"):
        page_of("profile/y")
    with pytest.raises(InputError, match=r"profil/y does not exist; did you mean profile/y\?"):
        page_of("profil/y")


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
    assert "did you mean profile/x?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_verbose_and_quiet(name: str) -> None:
    assert {"-v", "--verbose", "-q", "--quiet"} <= set(SUBPARSERS[name]._option_string_actions)


def test_with_verbose_an_error_says_where_it_was_raised(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "nowhere"]) == 3 and "Traceback" not in capsys.readouterr().err
    assert main(["analyze", "nowhere", "-v"]) == 3 and "Traceback" in capsys.readouterr().err


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
