"""Hostile variants of documents and texts: a few fields or lines are changed. Deterministic by the random generator."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

# What a field may hold in place of what belongs there.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, 1_000_003, 999_999,
    0.0, -0.0, 0.5, 1e-308, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "NaN", "null",
    "\x00", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\r\n", "\u202eevil", "\ud83d", "\udc00a", "\ufeff", "é" * 40,
    "../../../etc/passwd", "<script>alert(1)</script>", "</script>", "{{ 7*7 }}", "%s%n", "a" * 5000, [], {}, [[]],
    [None], {"": None}, [0] * 50, ["a", 1, None, {}], {"rank": 0}, {"a": {"a": {"a": {"a": 1}}}},
)  # fmt: skip
ODD_TEXTS = (
    "", "\x00", "\x1b[2J", "\r", "\u2028", "\ud83d", "nan", "inf", "-1", "0", "1e999", "999999999999999999999", "0x",
    "None", "[]", "{", "}", '"', "'", "<", ">", "&", "&amp;", "]]>", "<!--", "\\", "%", "[Rank 999999]", "[rank3]: ",
    "rank 1048575", "a" * 20_000, "é" * 200, "\t\t\t", "NV18", "GPU0", "Traceback (most recent call last):", "= ", "[[",
)  # fmt: skip
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def mutated_json(value: Any, rng: random.Random) -> Any:
    """The same with one to four changes somewhere in it."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        box = [value]
        _change(box, rng)
        value = box[0]
    return value


def mutated_text(text: str, rng: random.Random) -> str:
    """The same with one to four lines, numbers or stretches changed."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = _change_text(text, rng)
    return text


def written(value: Any) -> bytes:
    """As JSON, with what JSON has no words for as Python writes it."""
    return json.dumps(value, ensure_ascii=True).encode()


def _change(box: list[Any], rng: random.Random) -> None:
    """Replace, remove, repeat, swap or wrap one node of the tree in `box[0]`, deep ones as likely as shallow ones."""
    nodes = list(_nodes(box, 20_000))
    holder, key = rng.choice(nodes)
    value = holder[key]
    kind = rng.randrange(9)
    if kind <= 3:
        holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    elif kind == 4 and holder is not box:
        del holder[key]
    elif kind == 5 and isinstance(holder, list) and holder is not box:
        holder[key:key] = [copy.deepcopy(value) for _ in range(rng.choice((1, 2, 20)))]
    elif kind == 6:
        other, where = rng.choice(nodes)
        there = where in other if isinstance(other, dict) else where < len(other)
        if there and other is not box and holder is not box:
            holder[key] = copy.deepcopy(other[where])
    elif kind == 7:
        for _ in range(rng.choice((1, 3, 60))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        holder[key] = value
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        holder[key] = str(value)[:1000] if not isinstance(value, str) else rng.choice((value * 3, len(value)))
    else:
        holder[key] = rng.choice((-value, value * 10, value * 10**9, str(value), float(value), value + 1))


def _nodes(box: list[Any], most: int) -> list[tuple[Any, Any]]:
    """(container, key) of each value."""
    found: list[tuple[Any, Any]] = []
    pending: list[Any] = [box]
    while pending and len(found) < most:
        holder = pending.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                pending.append(holder[key])
    return found


def _change_text(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at, kind = rng.randrange(len(lines)), rng.randrange(9)
    line = lines[at]
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[at:at] = [line] * rng.choice((1, 2, 50))
    elif kind == 2:
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = line[: rng.randrange(len(line) + 1)] + rng.choice(ODD_TEXTS) + line[rng.randrange(len(line) + 1) :]
    elif kind == 4:
        return text[: rng.randrange(len(text) + 1)]
    elif kind == 5:
        lines[at] = rng.choice(ODD_TEXTS)
    else:
        numbers = list(_NUMBER.finditer(text))
        if numbers:
            number = rng.choice(numbers)
            odd = rng.choice(("-1", "0", "999999", "1048576", "99999999999999999999", "nan", "1e400", "7", "x", ""))
            return text[: number.start()] + odd + text[number.end() :]
    return "\n".join(lines)
