"""Lines that differ in their numbers only are judged once: by what asks for no digit but 3, which stands for each."""

from __future__ import annotations

import builtins
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType
from typing import Any, cast

import pytest

import traceops.hangs
from traceops.core.text import by_shape, perhaps_in

parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MODULES = [module.name for module in pkgutil.walk_packages(traceops.hangs.__path__, "traceops.hangs.")]
DIGITS = set(range(ord("0"), ord("9") + 1))


def judges() -> Iterator[tuple[str, Any]]:
    """Whatever is decorated with `by_shape`, by its name."""
    for module in map(importlib.import_module, MODULES):
        for name, judged in vars(module).items():
            if isinstance(judged, FunctionType) and judged.__code__ is JUDGED:
                judge = vars(judged)["__wrapped__"]
                yield f"{module.__name__}.{name}", judge.func if isinstance(judge, partial) else judge


JUDGED = cast("FunctionType", by_shape(str)).__code__
LOOKS = vars(perhaps_in(()))["__wrapped__"].__code__


def used_by(function: FunctionType, seen: set[object]) -> Iterator[tuple[str, object]]:
    """What a function and those that it calls look for: texts and patterns, with their names."""
    if function.__code__ in seen or function.__code__ is LOOKS:
        return
    seen.add(function.__code__)
    codes = [function.__code__]
    while codes:
        own = codes.pop()
        codes += [const for const in own.co_consts if isinstance(const, CodeType)]
        yield from (
            ("a constant", const) for const in own.co_consts if isinstance(const, str) and const != function.__doc__
        )
        for name in own.co_names:
            used = function.__globals__.get(name)
            if isinstance(used, FunctionType) and used.__module__.startswith("traceops.hangs"):
                yield from used_by(used, seen)
            elif name not in vars(builtins):
                yield name, used


def patterns(used: object) -> Iterator[re.Pattern[str] | str]:
    if isinstance(used, (re.Pattern, str)):
        yield re.compile(used) if isinstance(used, str) and "\\d" in used else used
    elif isinstance(getattr(used, "pattern", None), str):
        yield re.compile(used.pattern, used.flags)  # type: ignore[attr-defined]
    elif isinstance(used, dict):
        yield from patterns(tuple(used.values()))
    elif isinstance(used, (tuple, frozenset)):
        for one in used:
            yield from patterns(one)


def odd_digits(tree: Any, *, wanted: bool = True) -> Iterator[str]:
    """What a pattern asks of digits that 3 does not answer for all of them. wanted: a match is, as in no (?!…)."""
    for op, value in tree:
        if op is parser.LITERAL and value in DIGITS and (value != ord("3")) == wanted:
            yield chr(value)
        elif op is parser.IN:
            digits = {char for char in DIGITS if re.match(char_class(value), chr(char))}
            if 0 < len(digits) < 10 and (ord("3") not in digits) == wanted:
                yield "".join(map(chr, sorted(digits)))
        elif op in (parser.ASSERT, parser.ASSERT_NOT):
            yield from odd_digits(value[1], wanted=wanted if op is parser.ASSERT else not wanted)
        elif op is parser.BRANCH:
            for branch in value[1]:
                yield from odd_digits(branch, wanted=wanted)
        elif op in (parser.MAX_REPEAT, parser.MIN_REPEAT):
            yield from odd_digits(value[2], wanted=wanted)
        elif op is parser.SUBPATTERN:
            yield from odd_digits(value[3], wanted=wanted)


def char_class(members: Any) -> str:
    """A class of the parser's, written as a pattern."""
    text = ""
    for op, value in members:
        if op is parser.NEGATE:
            text += "^"
        elif op is parser.LITERAL:
            text += re.escape(chr(value))
        elif op is parser.RANGE:
            text += f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
        else:
            text += {
                "CATEGORY_DIGIT": r"\d",
                "CATEGORY_WORD": r"\w",
                "CATEGORY_SPACE": r"\s",
                "CATEGORY_NOT_DIGIT": r"\D",
                "CATEGORY_NOT_WORD": r"\W",
                "CATEGORY_NOT_SPACE": r"\S",
            }[str(value)]
    return f"[{text}]"


def test_odd_digits_are_found() -> None:
    for text, found in ((r"c10d", "10"), (r"\d{3} [3-5]", ""), (r"[1-2]", "12"), (r"(?! 0)x", ""), (r"(?!3)x", "3")):
        assert "".join(odd_digits(parser.parse(text))) == found


@pytest.mark.parametrize(("name", "judge"), list(judges()))
def test_whoever_judges_shapes_asks_for_no_digit(name: str, judge: FunctionType) -> None:
    odd = [
        (used_name, str(getattr(one, "pattern", one))[:60], found)
        for used_name, used in used_by(judge, set())
        for one in patterns(used)
        for found in (
            odd_digits(parser.parse(one.pattern, one.flags))
            if isinstance(one, re.Pattern)
            else (char for char in one if char in "012456789")
        )
    ]
    assert not odd
