"""How a command declares what it takes: options as data that `--help` can afford; their texts: words/options.ini."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from traceops.words.catalogue import texts

_FOLDER = ("--output", "--out")  # a command that has one of these takes the other too
_MOST_NUMBERS = 1_000_000  # in a list such as 0-3: more is a slip


@dataclass(frozen=True)
class Option:
    """An argument as `add_argument` takes it. facts: of its help."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    facts: Mapping[str, object] = field(default_factory=dict)

    def add_to(self, parser: Any, command: str, **changes: Any) -> None:
        """Declare it to a parser; its help is that of the command, or of all commands. Raises KeyError without one."""
        name = next((name for name in self.names if name.startswith("--")), self.names[0])
        own = texts("options", command)
        help = own[name] if name in own else texts("options", "options")[name]
        shown = help.format(**self.facts) if self.facts else help
        parser.add_argument(*self.names, **{"help": shown, **self.settings, **changes})


@dataclass(frozen=True)
class Group:
    """Options under a title of their own in the help."""

    title: str
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Command:
    """What a command takes; its section of words/options.ini has what it does, and examples with which the help begins.
    shown: options of the short help, all if empty; then --help-all has the others. extend: adds what is no option:
    subcommands, or options that other packages declare."""

    name: str
    options: tuple[Option | Group, ...] = ()
    shown: tuple[str, ...] = ()
    extend: Callable[[argparse.ArgumentParser], None] | None = None

    @property
    def about(self) -> str:
        """What it does, in a sentence."""
        return texts("options", self.name)["about"]

    @property
    def examples(self) -> list[str]:
        """Whole command lines."""
        return texts("options", self.name)["examples"].split("\n")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare all of it to `parser`."""
        words = texts("options", self.name)
        if "epilog" in words:
            more = "\n".join(f"  {line}" for line in words.get("more_examples", "").split("\n") if line)
            parser.epilog = "\n\n".join([*words["epilog"].split("\n"), *([more] if more else [])])
        add_options(parser, self.options, self.name)
        if self.extend is not None:
            self.extend(parser)
        known = parser._option_string_actions
        for name, other in zip(_FOLDER, reversed(_FOLDER), strict=True):
            if other in known and name not in known:
                parser.add_argument(name, dest=known[other].dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        add_common(parser)


def option(*names: str, facts: Mapping[str, object] | None = None, **settings: Any) -> Option:
    """An option, or an argument where the name has no dash; settings as of `add_argument`."""
    return Option(names, settings, facts or {})


def flag(*names: str, facts: Mapping[str, object] | None = None, **settings: Any) -> Option:
    """An option without a value: off unless given."""
    return option(*names, facts=facts, action="store_true", **settings)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option | Group], command: str) -> None:
    for one in options:
        if isinstance(one, Option):
            one.add_to(parser, command)
        else:
            group = parser.add_argument_group(one.title, description=texts("options", "groups").get(one.title))
            for each in one.options:
                each.add_to(group, command)


def add_common(parser: argparse.ArgumentParser, **settings: Any) -> None:
    """The two options that every command takes, unless it has a closer meaning for them."""
    for names in (("-v", "--verbose"), ("-q", "--quiet")):
        if names[1] not in parser._option_string_actions:
            flag(*names).add_to(parser, "options", **settings)


def changed(options: Iterable[Option | Group], changes: Mapping[str, Mapping[str, Any]]) -> tuple[Option | Group, ...]:
    """The same options, of which some have other settings; changes: by an option's first name."""

    def of(one: Option) -> Option:
        return Option(one.names, {**one.settings, **changes.get(one.names[0], {})}, one.facts)

    return tuple(
        of(one) if isinstance(one, Option) else Group(one.title, tuple(map(of, one.options))) for one in options
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
