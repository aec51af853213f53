"""What a terminal shows: plain words, in lines that fit it, with signs it has; and what a typo likely meant."""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from plain_words import tics_in

import traceops
from tests.started import environment
from traceops.cli import COMMANDS, build_parser, main
from traceops.cli.parser import HelpFormatter
from traceops.core.text import broken_at_words, json_for, show_our_signs, width_of
from traceops.render.printer import Printer, table_lines
from traceops.rules.registry import RULES
from traceops.words.catalogue import sections, texts

EXAMPLE = Path(__file__).resolve().parents[2] / "reports" / "example"
HEADER = ("rank", "caused wait ms", "kernel", "bar")
ROWS = [("0", "95.65", "void a_kernel<float, 4>(float const*, int)", "█" * 20), ("10", "0", "copy", "")]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("command", [(), *((command,) for command in COMMANDS), ("show", "x", "collectives")])
def test_help_fits(
    width: int, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and any(line.startswith("usage: traceops") for line in lines)


def test_long_lists_of_choices_are_in_the_help_and_not_in_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["run", "--help-all"])
    told = " ".join(capsys.readouterr().out.split())
    assert "--strategy STRATEGY" in told and "one of simple_ddp, simple_ddp_ga" in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analyse", "x"], "did you mean analyze?"),
        (["Doctor"], "did you mean doctor?"),
        (["baseline", "sve"], "did you mean save?"),
        (["show", "x", "rank"], "did you mean ranks?"),
        (["analyze", "x", "--otput", "y"], "unrecognized arguments: --otput y; did you mean --output?"),
        (["baseline", "save", "x", "--comit=1"], "did you mean --commit?"),
        (["run", "--stratgy", "pytorch_ddp"], "did you mean --strategy?"),
        (["run", "--strategy", "pytroch_ddp"], "did you mean pytorch_ddp?"),
        (["analyze", "x", "--fail-on", "warn"], "did you mean warning?"),
        *(([command, "x", "--quite"], "did you mean --qui") for command in ("compare", "diagnose", "view", "show")),
    ],
)  # fmt: skip
def test_what_is_misspelt_gets_a_suggestion(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    shown = capsys.readouterr()
    assert ended.value.code == 2 and not shown.out and said in shown.err


def test_what_is_like_nothing_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["xyzzy"], ["analyze", "x", "--xyzzy"], ["analyze", "x", "y\x1b[31m", "--api-key=abc123def"]):
        with pytest.raises(SystemExit):
            main(words)
    shown = capsys.readouterr().err
    assert "did you mean" not in shown and "\x1b" not in shown and "abc123def" not in shown


def test_the_width_is_the_terminals_or_80_or_what_columns_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with (tmp_path / "log").open("w") as file:
        assert width_of(file) == 80 and width_of(io.StringIO()) is None
        monkeypatch.setenv("COLUMNS", "132")
        assert width_of(file) == 132 and width_of(io.StringIO()) is None
        Printer(file).line(("word " * 60, ""), hanging=2)
        monkeypatch.setenv("COLUMNS", "none")
        Printer(file).line(("word " * 60, ""), hanging=2)
    first, *rest = (tmp_path / "log").read_text().splitlines()
    assert 120 < len(first) <= 132 and max(map(len, rest[2:])) <= 80 and rest[-1].startswith("  word")


def test_a_word_that_is_too_wide_stays_whole() -> None:
    assert broken_at_words("see " + "x" * 30 + " there", 20) == ["see", "x" * 30, "there"]


def test_a_table_that_fits_stays_and_a_wide_one_loses_its_bars_first() -> None:
    (whole,) = table_lines(HEADER, ROWS, (2, 3), 120, bars=3)
    assert len(whole.header) == 1 and len(whole.rows) == 2 and "█" * 20 in whole.rows[0]
    (cut,) = table_lines(HEADER, ROWS, (2, 3), 80, bars=3)
    assert max(map(len, (*cut.header, *cut.rows))) <= 80 and "█" in cut.rows[0]
    (without,) = table_lines(HEADER, ROWS, (2, 3), 60, bars=3)
    assert "█" not in "".join(without.rows) and max(map(len, without.rows)) <= 60


@pytest.mark.parametrize("width", [20, 24, 40, 60])
def test_no_table_is_wider_than_the_terminal_nor_loses_a_word(width: int) -> None:
    parts = table_lines(HEADER, ROWS, (2, 3), width, bars=3)
    lines = [line for part in parts for line in (*part.header, *part.rows)]
    assert max(map(len, lines)) <= width
    together = "".join("".join(lines).split())
    for word in ("95.65", "caused", "voida_kernel"[:4], "copy", "10"):
        assert word in together


def test_a_table_in_parts_keeps_its_names_whole() -> None:
    header = ("strategy", *(f"figure{n}" for n in range(12)))
    rows = [("bucket_ddp_async", *["1234567"] * 12), ("pytorch_zero3", *["7"] * 12)]
    parts = table_lines(header, rows, (0,), 80)
    assert len(parts) == 2
    for part in parts:
        assert [line.split()[0] for line in part.rows] == ["bucket_ddp_async", "pytorch_zero3"]
    narrow = table_lines(header, rows, (0,), 30)
    assert max(len(line) for part in narrow for line in part.rows) <= 30


def test_a_stream_of_ascii_gets_signs_that_it_has() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    show_our_signs(stream)
    stream.write("✖ 53.8 → 22.0 ms · ranks 0–3, ≥ 10 µs … 名\udc80")
    stream.flush()
    assert raw.getvalue() == b"x 53.8 -> 22.0 ms | ranks 0-3, >= 10 us ... ??"


def test_help_in_ascii_is_as_wide_as_what_is_shown_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """'…' was counted as one column where '...' is shown."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("LC_ALL", "C")
    show_our_signs(stream)
    made = HelpFormatter("traceops", width=24)
    lines = [*made._split_lines("one … two " * 9, 24), *made._fill_text("one … two " * 9, 24, "").split("\n")]
    assert max(map(len, lines)) <= 24 and all(line.isascii() for line in lines)


def test_json_means_the_same_in_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    text = json.dumps({"a": "– 名 😀 \x01"}, ensure_ascii=False)
    shown = json_for(stream, text)
    assert shown.isascii() and json.loads(shown) == json.loads(text)
    assert json_for(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), text) == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "ascii_only"),
    [({"PYTHONIOENCODING": "ascii"}, True), ({"LC_ALL": "C"}, True), ({"LC_ALL": "C.UTF-8"}, False)],
)
def test_a_locale_of_ascii_gets_ascii(setting: dict[str, str], ascii_only: bool) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON"))}
    env |= {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TERM": "dumb", "NO_COLOR": "1", **setting}
    command = [sys.executable, "-m", "traceops", "show", str(EXAMPLE)]
    done = subprocess.run(command, env=env, capture_output=True, check=True)
    assert done.stdout.isascii() == ascii_only and b"Rank 1's input comes late" in done.stdout
    assert b"\x1b" not in done.stdout and not done.stderr
    assert max(map(len, done.stdout.decode().splitlines())) <= 80


def test_an_error_is_not_behind_forty_lines_of_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    for words in (["run", "--nporc", "4", "--", "t.py"], ["show"]):
        with pytest.raises(SystemExit):
            main(words)
        said = capsys.readouterr().err.splitlines()
        assert len(said) <= 4 and said[0].startswith(f"usage: traceops {words[0]} ")
    with pytest.raises(SystemExit):
        main(["run", "--nproc", "x"])
    assert capsys.readouterr().err.startswith("usage: traceops run --help lists its options\n")


@pytest.mark.parametrize(("last", "code"), [("raise InputError('no such run')", 3), ("return 1", 1)])
def test_messages_that_nobody_reads_do_not_change_the_exit_code(tmp_path: Path, last: str, code: int) -> None:
    """`traceops analyze … 2>&1 | head -1`: a note into the closed pipe let a gate pass with 0, an error became 1."""
    program = (
        "import sys\nfrom traceops.cli import main, diagnose\nfrom traceops.core.errors import InputError\n"
        f"def told(args):\n    print('a note', file=sys.stderr)\n    {last}\n"
        "diagnose.main = told\nsys.exit(main(['diagnose', 'x']))\n"
    )
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", program], stdout=writer, stderr=writer, env=environment())
    os.close(writer)
    os.close(reader)
    assert process.wait() == code


def test_a_broken_pipe_elsewhere_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: object) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("traceops.cli.diagnose.main", broken)
    assert main(["diagnose", "x"]) == 70


_AVOIDED = re.compile(
    r"\b(whom|thereof|of which|to be had|all the same|knows? nothing of|whoever|mend(s|ed)?|anew)\b", re.I
)


def helps(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every text that the parser and those of its subcommands show."""
    yield from (text for text in (parser.description, parser.epilog) if text)
    yield from (group.description for group in parser._action_groups if group.description)
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            yield action.help
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from helps(sub)


def test_help_has_none_of_the_words_that_we_avoid() -> None:
    assert tics_in(helps(build_parser())) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_rules_have_none_of_the_words_that_we_avoid(rule) -> None:  # type: ignore[no-untyped-def]
    texts = (rule.title, rule.fires, rule.advice, *(advice for _, advice in rule.by_cause))
    assert [text for text in texts if _AVOIDED.search(text)] == []


DDP4 = Path(__file__).resolve().parents[1] / "data" / "ddp4"
LOADED = "import json, sys\nprint(json.dumps(sorted(sys.modules)))"


def loaded_by(folder: Path, *arguments: str) -> set[str]:
    """All modules that a command has imported at its end, in an interpreter of its own."""
    code = f"import sys\nfrom traceops.cli import main\ntry: main({list(arguments)!r})\nexcept SystemExit: pass\n"
    done = subprocess.run([sys.executable, "-c", code + LOADED], cwd=folder, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def analysing(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("out")
    loaded = loaded_by(folder, "analyze", str(DDP4), "-o", str(folder / "report"))
    assert (folder / "report" / "summary.html").is_file() and "jinja2" in loaded
    return loaded


@pytest.mark.parametrize(
    "package",
    [
        "torch", "pandas", "hta", "plotly", "networkx", "scipy", "pyarrow", "fsspec", "rich", "asyncio",
        "traceops.capture.session", "traceops.hangs.diagnose", "traceops.hangs.model", "traceops.render.hang.html",
    ],
)  # fmt: skip
def test_analysing_a_local_run_imports_only_what_it_needs(analysing: set[str], package: str) -> None:
    assert package not in analysing


def test_json_needs_no_templates(tmp_path: Path) -> None:
    one = str(DDP4 / "rank_0.pt.trace.json.gz")
    loaded = loaded_by(tmp_path, "analyze", one, "-o", "out", "--format", "json", "-q")
    assert (tmp_path / "out" / "report.json").is_file()
    assert not {"jinja2", "traceops.render.report.html"} & loaded


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    loaded = loaded_by(tmp_path, "--help")
    assert "traceops.cli.reading_options" in loaded
    assert not {"torch", "pandas", "numpy", "jinja2", "rich", "msgspec", "traceops.capture.session"} & loaded


SOURCES = {path: path.read_text() for path in Path(traceops.__file__).parent.rglob("*.py")}
WORDINGS = [
    (path, *found.groups())
    for path, source in SOURCES.items()
    for found in [re.search(r'^_text = Wording\("(\w+)", "(\w+)"\)', source, re.MULTILINE)]
    if found
]


def constants(tree: ast.AST) -> set[str]:
    """Every text that stands in the code."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def constants_of(sources: Iterable[str]) -> set[str]:
    return set[str]().union(*(constants(ast.parse(source)) for source in sources))


@pytest.mark.parametrize(("path", "family", "section"), WORDINGS, ids=lambda value: getattr(value, "stem", value))
def test_sentences_that_code_asks_for_are_in_the_catalogue(path: Path, family: str, section: str) -> None:
    calls = (node for node in ast.walk(ast.parse(SOURCES[path])) if isinstance(node, ast.Call))
    asked = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_text"]
    keys = set[str]().union(*(constants(one) for one in asked))
    if path.stem != "containment":  # whose keys are its callers'
        assert asked and keys <= set(sections(family)[section])


def test_names_of_chores_are_in_the_catalogue() -> None:
    asked = {key for source in SOURCES.values() for key in re.findall(r'contain(?:\.made)?\("(\w+)"', source)}
    assert asked == set(sections("launch")["chores"]) - {"failed"}


@pytest.mark.parametrize("family", ["launch", "cli"])
def test_no_sentence_of_the_catalogue_is_left_over(family: str) -> None:
    for section, own in sections(family).items():
        known = constants_of(SOURCES[path] for path, *of in WORDINGS if of == [family, section])
        parts = set(re.findall(r"\{(\w+):part\}", " ".join(own.values())))
        left = {key for key in own if "." not in key} - known - parts
        assert section in ("chores", "errors", "refused") or not left, (section, left)


@pytest.mark.parametrize("family", ["launch", "train"])
def test_refusals_are_in_the_catalogue_and_needed(family: str) -> None:
    asked = set[str]()
    for source in SOURCES.values():
        calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and len(node.args) == 3)
        for call in calls:
            if constants(call.args[0]) | constants(call.args[2]) == {family, "refused"}:
                asked |= constants(call.args[1])
    assert asked == set(sections(family)["refused"])


def test_what_the_capture_notes_is_in_the_catalogue_and_needed() -> None:
    sources = [source for path, source in SOURCES.items() if "capture" in path.parts]
    asked = {key for source in sources for key in re.findall(r'\btext\(\s*"(\w+)"', source)}
    assert asked <= set(texts("capture"))
    assert set(texts("capture")) <= constants_of(sources)
