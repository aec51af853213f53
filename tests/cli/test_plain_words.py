"""Help and rules in plain words: none of the habits that make a tired reader read twice."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_words import tics_in

from traceops.cli import build_parser
from traceops.rules.registry import RULES

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
