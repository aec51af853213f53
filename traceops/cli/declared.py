"""How a command declares what it takes: its help, two examples, and its options as data that `--help` can afford."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_FOLDER = ("--output", "--out")  # a command that has one of these takes the other too
_MOST_NUMBERS = 1_000_000  # in a list such as 0-3: more is a slip


@dataclass(frozen=True)
class Option:
    """An argument as `add_argument` takes it."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]

    def add_to(self, parser: Any, **changes: Any) -> None:
        parser.add_argument(*self.names, **{**self.settings, **changes})


@dataclass(frozen=True)
class Group:
    """Options under a title of their own in the help."""

    title: str
    options: tuple[Option, ...]
    description: str | None = None


@dataclass(frozen=True)
class Command:
    """What a command takes.

    examples: whole command lines, which the help begins with. shown: options of the short help, all if empty; then
    --help-all has the others. extend: adds what is no option: subcommands, or options that other packages declare.
    """

    help: str
    examples: tuple[str, str]
    options: tuple[Option | Group, ...] = ()
    shown: tuple[str, ...] = ()
    epilog: str | None = None
    extend: Callable[[argparse.ArgumentParser], None] | None = None

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare all of it to `parser`."""
        parser.epilog = self.epilog
        add_options(parser, self.options)
        if self.extend is not None:
            self.extend(parser)
        known = parser._option_string_actions
        for name, other in zip(_FOLDER, reversed(_FOLDER), strict=True):
            if other in known and name not in known:
                parser.add_argument(name, dest=known[other].dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        add_common(parser)


def option(*names: str, **settings: Any) -> Option:
    """An option, or an argument where the name has no dash; settings as of `add_argument`."""
    return Option(names, settings)


def flag(*names: str, help: str, **settings: Any) -> Option:
    """An option without a value: off unless given."""
    return Option(names, {"action": "store_true", "help": help, **settings})


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option | Group]) -> None:
    for one in options:
        if isinstance(one, Option):
            one.add_to(parser)
        else:
            group = parser.add_argument_group(one.title, description=one.description)
            for each in one.options:
                each.add_to(group)


_COMMON = (
    flag("-v", "--verbose", help="say more; for an error also where it was raised"),
    flag("-q", "--quiet", help="print the result only: no progress, no notes"),
)


def add_common(parser: argparse.ArgumentParser, **settings: Any) -> None:
    """The two options that every command takes, unless it has a closer meaning for them."""
    for one in _COMMON:
        if one.names[1] not in parser._option_string_actions:
            one.add_to(parser, **settings)


def changed(options: Iterable[Option | Group], changes: Mapping[str, Mapping[str, Any]]) -> tuple[Option | Group, ...]:
    """The same options, of which some have other settings; changes: by an option's first name."""

    def of(one: Option) -> Option:
        return Option(one.names, {**one.settings, **changes.get(one.names[0], {})})

    return tuple(
        of(one) if isinstance(one, Option) else Group(one.title, tuple(map(of, one.options)), one.description)
        for one in options
    )


def positive(text: str) -> int:
    """A whole number from 1. Raises ArgumentTypeError."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return value


def numbers(text: str) -> tuple[int, ...]:
    """`0,2-3` as (0, 2, 3). Raises ArgumentTypeError."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last or len(found) + last - first >= _MOST_NUMBERS:
            raise argparse.ArgumentTypeError(f"takes numbers and ranges such as 0,2-3, not {text!r}")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))
