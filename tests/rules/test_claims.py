"""Every kind of claim has its words: each form of its sentences is filled with sample facts and read."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec
import numpy as np
import pytest
from plain_words import TICS

import traceops
from benchmarks import ROOT
from traceops.core.claims import Claim, filled, reason
from traceops.core.rule import Rule
from traceops.rules import registry
from traceops.words.catalogue import sections

LONGEST = 90
NO_CLAIMS = {"", "words", "reasons", "bounds"}


def kinds(of: type[Claim] = Claim) -> Iterator[type[Claim]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("traceops.rules.") and hasattr(kind, "kind"):
            yield kind
        yield from kinds(kind)


KINDS = sorted(kinds(), key=lambda kind: kind.kind)
FAMILIES = sorted({kind.family for kind in KINDS})


def sample(kind: type[Any], choices: dict[str, str]) -> Any:
    """One with every fact known. choices: of the facts that choose a text."""
    hints = typing.get_type_hints(kind)
    return kind(
        **{field.name: _value(field.name, hints[field.name], choices) for field in msgspec.structs.fields(kind)}
    )


def _value(name: str, hint: Any, choices: dict[str, str]) -> Any:
    if name in choices:
        return choices[name]
    if typing.get_origin(hint) is Mapping:
        return {"data": 128.4}
    options = [one for one in typing.get_args(hint) if one is not type(None)]
    hint = options[0] if typing.get_origin(hint) is not tuple and options else hint
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return sample(hint, {key.partition(".")[2]: value for key, value in choices.items() if key.startswith(name)})
    if typing.get_origin(hint) is tuple:
        return (3, 7)
    return {int: 12, float: 128.4, bool: True, str: "x"}[hint]


def forms(kind: type[Claim], part: str) -> Iterator[tuple[str, Claim]]:
    """Each sentence of a part with each of the texts that it may choose."""
    own, shared = sections(kind.family)[kind.kind], sections(kind.family).get("words", {})
    for line in filter(None, own.get(part, "").split("\n")):
        chosen = [(name, spec[1:]) for _, name, spec, _ in Formatter().parse(line) if spec and spec[0] in "=^"]
        if not chosen:
            yield line, sample(kind, {})
        for name, text in chosen:
            keys = [key for key in (*own, *shared) if key.startswith(f"{text}.")]
            assert keys, f"{kind.kind}: no text {text}.*"
            for key in keys:
                yield (
                    line,
                    sample(
                        kind, {other: _first(own, shared, how) for other, how in chosen} | {name: key.partition(".")[2]}
                    ),
                )


def _first(own: Any, shared: Any, text: str) -> str:
    return next(key for key in (*own, *shared) if key.startswith(f"{text}.")).partition(".")[2]


def test_a_kind_has_one_section_and_one_struct() -> None:
    assert registry.RULES
    assert len({kind.kind for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert sections(kind.family)[kind.kind]["headline"], kind
    claimed = {(kind.family, kind.kind) for kind in KINDS}
    for family in FAMILIES:
        own = {(family, name) for name in sections(family) if not name.startswith("TO-") and name not in NO_CLAIMS}
        assert own <= claimed, "a section that no claim has"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_sentence_can_be_filled_and_reads_plainly(kind: type[Claim]) -> None:
    for part in sections(kind.family)[kind.kind]:
        for line, claim in forms(kind, part):
            said = filled(line.replace(":unless}", ":if}"), claim)
            assert said and "{" not in said and "  " not in said, line
            assert not TICS.search(said), (said, TICS.search(said))
            if part == "headline":
                assert len(said) <= LONGEST and not said.endswith(".") and "(" not in said and "TO-" not in said, said
            if part == "why":
                assert said.endswith("."), said


WORDS = Path(traceops.__file__).parent / "words"


@pytest.mark.parametrize("rule", registry.RULES, ids=lambda rule: rule.id)
def test_what_a_rule_says_of_itself_is_short_and_plain(rule: Rule) -> None:
    assert len(rule.fires.split()) <= 60
    by_cause = () if rule.id.startswith("TO-E") else rule.by_cause  # those lie in hangs/crashes.json
    for said in (rule.title, rule.fires, rule.advice, *(advice for _, advice in by_cause)):
        assert not TICS.search(said), TICS.search(said)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_numbers_of_numpy_are_facts_like_others(kind: type[Claim]) -> None:
    plain = sample(kind, {})
    numbers = {name: np.float64(value) for name, value in msgspec.structs.asdict(plain).items() if type(value) is float}
    assert msgspec.structs.replace(plain, **numbers).facts() == plain.facts()


def reasons_used() -> set[tuple[str, str]]:
    """The family and the key of each reason that the code gives; where a key is one of two, both."""
    found = set()
    for path in (ROOT / "traceops").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "import" not in text or "reason" not in text:
            continue
        for call in ast.walk(ast.parse(text)):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id == "reason"
                and len(call.args) == 2
            ):
                family = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
                keys = [one.value for one in ast.walk(call.args[1]) if isinstance(one, ast.Constant) and one.value]
                found |= {(family, key) for key in keys if isinstance(key, str)}
    return found


def test_each_reason_that_the_code_gives_is_in_the_catalogue() -> None:
    used = reasons_used()
    assert len(used) > 20
    shared = sections("reasons")["reasons"]
    for family, key in used:
        assert key in sections(family).get("reasons", {}) or key in shared, (family, key)


_LISTS = ("ranks", "Ranks", "steps", "list", "and", "semicolons")
REASONS = [
    (family, key)
    for family in sorted({"reasons", *(family for family, _ in reasons_used())})
    for key in sections(family).get("reasons", {})
]


@pytest.mark.parametrize(("family", "key"), REASONS, ids=lambda one: one)
def test_a_reason_is_filled_with_its_facts(family: str, key: str) -> None:
    """With every fact a number: none is left in braces."""
    text = sections(family)["reasons"][key]
    names = {name.partition(".")[0]: spec for _, name, spec, _ in Formatter().parse(text) if name}
    words = sections(family).get("words", {})
    facts: dict[str, Any] = {
        name: (3, 7)
        if spec in _LISTS or spec.startswith("|")
        else _first({}, words, spec[1:])
        if spec.startswith("=")
        else 12
        for name, spec in names.items()
    }
    facts["link"] = 12  # of the text that {source} chooses
    said = reason(family, key, **facts)
    assert said and "{" not in said and "  " not in said and not said.endswith("."), said


def test_every_bound_is_described() -> None:
    for family in registry.FAMILIES:
        for bounds in family.bounds:
            assert set(sections(bounds.words)["bounds"]) == set(bounds.__struct_fields__)


@pytest.mark.parametrize("path", sorted(WORDS.glob("*.ini")), ids=lambda path: path.stem)
def test_every_text_of_the_catalogue_reads_plainly(path: Path) -> None:
    """facts.ini is left out: reports of earlier versions are read by these labels."""
    for name, texts in sections(path.stem).items() if path.stem != "facts" else ():
        for key, text in texts.items():
            said = re.sub(r"\{[^}]*\}", "x", text if isinstance(text, str) else " ".join(text))
            assert not TICS.search(said), (name, key, TICS.search(said))
