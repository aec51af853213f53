"""Help and rules in plain words: none of the habits that make a tired reader read twice."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

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
