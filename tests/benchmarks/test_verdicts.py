"""sentences.md has an entry for every sentence that a verdict can be, and what it quotes reads well."""

from __future__ import annotations

import itertools
import re

import pytest

from benchmarks import ROOT
from benchmarks.verdicts.examples import said_of
from benchmarks.verdicts.kinds import HEADLINES, Kind, kinds
from benchmarks.verdicts.page import NO_EXAMPLE, entry_name, examples_in, page, quoted
from benchmarks.verdicts.reasons import REASONS
from traceops.core.rule import JudgedBy
from traceops.rules.registry import BY_ID, RULES

PAGE = (ROOT / "benchmarks" / "verdicts" / "sentences.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
QUOTES = re.findall(r"^  - (?:opens|finding): (.*)$", PAGE, re.MULTILINE)


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
    entries = re.findall(r"^- (.*)$", PAGE, re.MULTILINE)
    without = [entry for entry in entries if f": {NO_EXAMPLE}" in entry]
    assert len(without) == len(REASONS)
    assert f"{len(entries)} kinds of sentences, {len(entries) - len(without)} of them with an example" in PAGE
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
    assert page(examples_in(PAGE)) == PAGE
