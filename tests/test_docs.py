"""README and docs: links lead somewhere, the README stays short, and so do the docs together."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from plain_words import prose, tics_in

from benchmarks import ROOT
from traceops.cli import build_parser

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *DOCS,
    *sorted(ROOT.glob("benchmarks/**/*.md")),
    *sorted(ROOT.glob("examples/*.md")),
]


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    names: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", text, re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.append(name if name not in names else f"{name}-{names.count(name)}")
    return set(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        there = "://" in link or (
            target.exists() and (target.suffix != ".md" or not anchor or anchor in anchors(target))
        )
        broken += [] if there else [link]
    assert not broken


def test_the_readme_is_short_and_says_first_that_it_is_for_one_gpu_too() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "one GPU" in text.split("**")[1]


def test_the_docs_can_be_read() -> None:
    """Diaries and tables of measurements belong to benchmarks/; rules.md is made of the rules."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS) if page.name != "rules.md"]
    assert sum(len(page.split()) for page in pages) <= 46_500


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS if f"(docs/{page.name}" not in text] == []


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *DOCS],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_no_page_has_the_words_that_we_avoid(page: Path) -> None:
    """rules.md is made of the rules, whose words tests/cli/test_plain_words.py holds."""
    if page.name != "rules.md":
        assert tics_in([prose(page.read_text(encoding="utf-8"))]) == []


def test_a_habit_is_found_with_what_is_around_it() -> None:
    assert tics_in(["It takes 3 ms a step; a step ends there."]) == [
        "'ms a step' in 'It takes 3 ms a step; a step ends there.'"
    ]
    assert tics_in(["The rank's peers: two steps behind-hand, curetage."]) == []
    assert tics_in([prose("`told` is a key, [see](told.md):\n```\nbehind\n```\n")]) == []


def commands_of(page: Path) -> list[list[str]]:
    """The words of each `traceops …` in a page's blocks of shell, without comments, pipes and redirections."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.S | re.M)
    found = []
    for line in "".join(blocks).replace("\\\n", "").splitlines():
        if re.match(r"(?:\$ )?(?:srun .*)?traceops [a-z]", line):
            words = shlex.split(line.removeprefix("$ ").replace("…", "x"), comments=True)
            ends = [at for at, word in enumerate(words) if word in ("|", ">", "<", ";", "2>&1")]
            found.append(words[words.index("traceops") + 1 : min(ends, default=len(words))])
    return found


COMMANDS = [(page.name, words) for page in (ROOT / "README.md", *DOCS) for words in commands_of(page)]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=[f"{page} {' '.join(words[:3])}" for page, words in COMMANDS])
def test_every_command_of_the_docs_is_one_that_the_command_line_takes(page: str, words: list[str]) -> None:
    assert build_parser().parse_args(words).command == words[0]


def test_commands_of_the_docs_are_found() -> None:
    assert len(COMMANDS) > 40 and {"run", "analyze", "diagnose", "doctor", "memory"} <= {
        words[0] for _, words in COMMANDS
    }
