"""The parser of the command line: help as wide as the terminal, and a suggestion for what is misspelt."""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from shutil import get_terminal_size
from stat import S_ISFIFO, S_ISSOCK
from typing import Any, NamedTuple, NoReturn, TextIO

from traceops.cli.declared import Command
from traceops.core.text import USUAL_WIDTH, as_shown, broken_at_words, closest, meant, newest_run, width_of

_MANY = 40  # characters of choices that are listed in the help, and not in the usage
_MORE = "{} more options: {} --help-all"
_USAGE = "usage: {} --help lists its options\n"
_USAGE_LINES = 3  # before an error; more would hide it
_NARROW = 60  # columns below which the usage names no single option
_CHOICE = re.compile(r"argument (?P<what>[^:]+): invalid choice: '(?P<given>.*?)' \(")
_UNKNOWN = "unrecognized arguments:"
_OPTION = re.compile(r"--?[^\W\d]")


class HelpFormatter(argparse.HelpFormatter):
    """Paragraphs as wide as the terminal; long lists of choices stand in the help of an option only."""

    def __init__(self, prog: str, *args: Any, **options: Any) -> None:
        options.setdefault("width", (width_of(sys.stdout) or get_terminal_size((USUAL_WIDTH, 24)).columns) - 2)
        super().__init__(prog, *args, **options)

    def add_usage(
        self, usage: str | None, actions: Iterable[argparse.Action], groups: Any, prefix: str | None = None
    ) -> None:
        """The usage; where it is narrow without single options."""
        if usage is None and prefix != "" and self._width < _NARROW:  # '' for the name of a subcommand
            own = [action for action in actions if not action.option_strings]
            names = [self._metavar_formatter(action, action.dest)(1)[0] for action in own]
            words = " ".join(["usage:", self._prog, "[OPTION ...]", *names])
            lines = broken_at_words(words, self._width, 2)
            usage = "\n".join(lines).removeprefix("usage: ").replace("%", "%%")
        super().add_usage(usage, actions, groups, prefix)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs stand apart; a line that ends a sentence, or that is indented, stays one."""
        filled = []
        for paragraph in as_shown(text, sys.stdout).split("\n\n"):
            joined = re.sub(r"(?<![.\n])\n(?! )", " ", paragraph.strip("\n"))
            lines = [line for one in joined.split("\n") for line in broken_at_words(one, width - len(indent))]
            filled.append("\n".join(indent + line for line in lines))
        return "\n\n".join(filled)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Lines of an option's help, as wide as what is shown of them."""
        return super()._split_lines(as_shown(text, sys.stdout), width)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        if _many_choices(action):
            return lambda count: (action.dest.rpartition("_")[2].upper(),) * count
        return super()._metavar_formatter(action, default_metavar)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if (help := super()._get_help_string(action)) is None or not _many_choices(action):
            return help
        return f"{help}; one of {', '.join(str(choice).replace('%', '%%') for choice in action.choices or ())}"


def _many_choices(action: argparse.Action) -> bool:
    if action.choices is None or action.metavar is not None or not action.option_strings:
        return False
    return len(",".join(map(str, action.choices))) > _MANY


class HelpAll(argparse.Action):
    """--help-all: every option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=0, help="list every option", default=argparse.SUPPRESS
        )

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        parser.shows_every_option = True  # type: ignore[attr-defined]  # ours
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the words of a command, and what may have been meant, without the secrets among them."""

    typed: Sequence[str] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **{"allow_abbrev": False, **options})
        self._command: Command | None = None
        self.shows_every_option = False

    def shorten(self, command: Command) -> None:
        """Have --help begin with its examples; where it names options to show, --help-all shows the others."""
        self._command = command
        if command.shown:
            self.add_argument("--help-all", action=HelpAll)

    def format_help(self) -> str:
        """Examples first, then what most people need."""
        if self._command is None:
            return super().format_help()
        needed = {"--help", "--help-all", *self._command.shown}
        options = [action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS]
        some = self._command.shown and not self.shows_every_option
        hidden = [action for action in options if some and not needed & set(action.option_strings)]
        helps = [action.help for action in hidden]
        descriptions = [group.description for group in self._action_groups]
        epilog = self.epilog
        for action in hidden:
            action.help = argparse.SUPPRESS
        if hidden:
            for group in self._action_groups:
                group.description = None
            more = _MORE.format(len(hidden), self.prog)
            self.epilog = f"{epilog}\n\n{more}" if epilog else more
        width = width_of(sys.stdout) or get_terminal_size((USUAL_WIDTH, 24)).columns
        lines = [line for example in self._command.examples for line in broken_at_words(f"  {example}", width - 2, 4)]
        try:
            return "\n".join([*lines, "", super().format_help()])
        finally:
            self.epilog = epilog
            for action, help in zip(hidden, helps, strict=True):
                action.help = help
            for group, description in zip(self._action_groups, descriptions, strict=True):
                group.description = description

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; the message about an unknown option names the one that was likely meant."""
        words = Parser.typed = list(sys.argv[1:] if args is None else args)
        known, unknown = self.parse_known_args(words, namespace)
        if unknown:
            asked = asked_parser(self, words)
            asked.error(
                f"{_UNKNOWN} {' '.join(_foreign(asked, words, unknown))}{self._corrected(asked, words, unknown)}"
            )
        return known

    def _corrected(
        self, asked: argparse.ArgumentParser, words: Sequence[str], unknown: Sequence[str], *, whole: bool = False
    ) -> str:
        """'; did you mean --nproc?', or a whole command: options as they certainly were meant, without the others. The
        options that there are where no such command can be made out."""
        if (rewritten := _rewritten(asked, words, unknown)) is None or not self._takes(rewritten.words):
            return _options_of(asked)
        command = f"traceops {shlex.join(rewritten.words)}"
        if rewritten.dropped:
            return f"; without {shlex.join(rewritten.dropped)}: {command}"
        whole = whole or len(rewritten.ours) != 1 or not rewritten.ours[0]
        return f"; did you mean {command if whole else rewritten.ours[0]}?"

    def _chosen(self, given: str, what: str) -> str:
        """'; did you mean VALUE?'. Where it is a command that does not take the rest, that is corrected too; where no
        command is meant, what reads what was given."""
        named = (one.choices for one in self._actions if one.choices and argparse._get_action_name(one) == what)
        words, choices = list(Parser.typed), list(map(str, next(named, ())))
        close = closest(given, choices)
        if what != "COMMAND" or (close is not None and self._takes(fixed := [close, *words[words.index(given) + 1 :]])):
            return meant(given, choices)
        if close is None:
            return _reads(words)
        try:
            with redirect_stderr(io.StringIO()):
                unknown = self.parse_known_args(fixed)[1]
        except SystemExit:
            unknown = []
        asked = asked_parser(self, fixed)
        rest = self._corrected(asked, fixed, unknown, whole=True) if unknown else _options_of(asked)
        return f"; here that is {close}{rest}"

    def _takes(self, words: Sequence[str]) -> bool:
        """Whether these words can be parsed, and are more than a command without anything to run."""
        try:
            with redirect_stderr(io.StringIO()):
                return words != ["run"] and not self.parse_known_args(words)[1]
        except SystemExit:
            return False

    def error(self, message: str) -> NoReturn:
        """End with exit code 2: usage in short, and what is wrong."""
        from traceops.core.redaction import redact_text
        from traceops.core.text import printable

        if (wrong := _CHOICE.match(message)) is not None:
            message += self._chosen(wrong["given"], wrong["what"])
        message += instead(self, message)
        sentence = as_shown(f"{self.prog}: error: {printable(redact_text(message))}", sys.stderr)
        width = width_of(sys.stderr) if sys.stderr.isatty() else None
        # Show the usage, or where to read it if it takes many lines.
        whole = self.format_usage()
        self._print_message(whole if whole.count("\n") <= _USAGE_LINES else _USAGE.format(self.prog), sys.stderr)
        self.exit(2, "\n".join(broken_at_words(sentence, width, 2)) + "\n")


class _Rewritten(NamedTuple):
    """A command with options as they were meant: `ours` of those that were, `dropped` those that there are not."""

    words: list[str]
    ours: list[str]
    dropped: list[str]


def _rewritten(asked: argparse.ArgumentParser, words: Sequence[str], unknown: Sequence[str]) -> _Rewritten | None:
    """None where it is not clear which words belong to an option that there is not."""
    end = words.index("--") if "--" in words else len(words)
    foreign = _foreign(asked, words, unknown)
    if not any(word.startswith("-") for word in foreign) and any(one.dest == "sql" for one in asked._actions):
        at = words.index(foreign[0]) - 1
        return _Rewritten([*words[:at], " ".join(words[at:])], [], [])
    rest = list(words[:end])
    fixed, ours, dropped = made = _Rewritten([], [], [])
    while rest:
        word = rest.pop(0)
        name, joined, value = word.partition("=")
        if word not in foreign or not word.startswith("-"):
            (dropped if word in unknown else fixed).append(word)
            continue
        valued = True if joined else _has_value(rest)
        if (own := _option_meant(asked, name, valued, end < len(words))) is not None:
            ours.append(own)
            fixed += [*own.split(), *([value] if joined else [])]
            if rest and rest[0] in unknown and not rest[0].startswith("-"):
                fixed.append(rest.pop(0))
            continue
        dropped.append(word)
        if valued and not joined:
            if end == len(words) and rest[0] not in unknown:
                return None  # what would stay may be its value
            dropped.append(rest.pop(0))
    fixed += words[end:]
    return made


def _foreign(asked: argparse.ArgumentParser, words: Sequence[str], unknown: Sequence[str]) -> list[str]:
    """What a command does not know: in front of -- also options that argparse took for the training's."""
    options = [word for word in words[: words.index("--") if "--" in words else 0] if _OPTION.match(word)]
    others = [word for word in options if word.partition("=")[0] not in asked._option_string_actions]
    return list(dict.fromkeys([*others, *unknown]))


def _option_meant(asked: argparse.ArgumentParser, name: str, valued: bool | None, scripted: bool) -> str | None:
    """The option that one certainly means; '' for one that names an argument, which needs none. scripted: for a script,
    which takes no options of the built-in training."""
    groups = [group for group in asked._action_groups if not (scripted and group.title == "training")]
    actions = {own: action for group in groups for action in group._group_actions for own in action.option_strings}
    fitting = [own for own, action in actions.items() if valued is None or (action.nargs != 0) is valued]
    if valued is False:  # --json may stand for --format json
        fitting += [own for own in ("--format", "--color") if own in actions]
    arguments = {action.dest.casefold() for action in asked._actions if not action.option_strings}
    return closest(name, fitting) or ("" if name.lstrip("-") in arguments else None)


def _has_value(follows: Sequence[str]) -> bool | None:
    """Whether the word behind an option is its value; None where it may be a path of the command's."""
    if not follows or follows[0].startswith("-"):
        return False
    return None if Path(follows[0]).exists() else True


def _options_of(asked: argparse.ArgumentParser) -> str:
    """The options of a command that most people need."""
    if (command := getattr(asked, "_command", None)) is None:
        return ""
    shown = command.shown or [own for own in asked._option_string_actions if own.startswith("--") and own != "--color"]
    return f"; options of {asked.prog}: {', '.join(shown)}{'; all: --help-all' if command.shown else ''}"


# The command for what an unknown one was given.
_RECORDED = "; a training is recorded by: traceops run {}"
_OF_A_FILE = {
    ".py": "; a script is recorded by: traceops run -- {}",
    **dict.fromkeys((".log", ".out", ".err"), "; a log is read by: traceops diagnose {}"),
}
_OF_A_FOLDER = "; this folder is read by: traceops analyze {}"


def _reads(words: Sequence[str]) -> str:
    if "--" in words[1:]:
        return _RECORDED.format(shlex.join(words[words.index("--") :]))
    for path in map(Path, words[1:]):
        if path.suffix in _OF_A_FILE and path.is_file():
            return _OF_A_FILE[path.suffix].format(shlex.quote(str(path)))
        if path.is_dir() and any(next(path.glob(one), None) for one in ("*trace*.json*", "run.json", "report.json")):
            return _OF_A_FOLDER.format(shlex.quote(str(path)))
    return ""


_WRONG_CHOICE = re.compile(r"argument (\w+): invalid choice: '([^']*)'")
_REQUIRED = "the following arguments are required: "
_RUNS = ("path", "RUN", "paths")
_SAMPLES = {
    "rule": "TO-S001", **dict.fromkeys(_RUNS, "profile/train"), "sql": "'select count(*) from slice'", "shell": "bash",
    "KEY": "gpt",
}  # fmt: skip


def _sample(argument: str) -> str:
    """What an argument can be; where a run is asked for the newest, if there is one."""
    run = newest_run() if argument in _RUNS else None
    return _SAMPLES[argument] if run is None else str(run)


def instead(parser: argparse.ArgumentParser, message: str) -> str:
    """'; for example: COMMAND', what was typed with what is missing or a value that works; '' where that is unclear."""
    words = list(Parser.typed)
    if "did you mean" in message or "traceops " in message:
        return ""
    if message.startswith(_REQUIRED):
        missing = message.removeprefix(_REQUIRED).split(", ")
        if not set(missing) <= set(_SAMPLES):
            return ""
        return f"; for example: traceops {' '.join([*words, *map(_sample, missing)])}"
    if (wrong := _WRONG_CHOICE.match(message)) is not None and wrong[1] in _SAMPLES:
        return f"; for example: traceops {' '.join(_sample(wrong[1]) if word == wrong[2] else word for word in words)}"
    return _with_value_that_works(parser, message, words)


def _with_value_that_works(parser: argparse.ArgumentParser, message: str, words: Sequence[str]) -> str:
    """As `instead`, for an option whose value is refused."""
    for at, word in enumerate(words):
        option, joined, given = word.partition("=")
        value = given if joined else next(iter(words[at + 1 :]), "")
        if not re.match(rf"{re.escape(option)} {re.escape(value)}: |argument (\S+/)?{re.escape(option)}[:/]", message):
            continue
        if (action := parser._option_string_actions.get(option)) is None or action.nargs == 0 or not value:
            continue
        kind = getattr(action.type, "__name__", "")
        sample = next(iter(action.choices or ()), None) or action.default
        if not isinstance(sample, (str, int)) or isinstance(sample, bool):
            sample = {"int": 2, "positive": 2, "numbers": "0-3", "_gpus": "0,1", "_seconds": 60}.get(kind)
        if sample is None or str(sample) == value:
            return ""
        fixed = [f"{option}={sample}"] if joined else [option, str(sample)]
        return f"; for example: traceops {shlex.join([*words[:at], *fixed, *words[at + len(fixed) :]])}"
    return ""


def asked_parser(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command, and of its action, that the words name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for at, word in enumerate(words):
                if word in action.choices:
                    return asked_parser(action.choices[word], words[at + 1 :])
    return parser


# Standard output and messages into a pipe whose reader may go away before the command has ended.


class _UntilGone(io.FileIO):
    """A file descriptor that takes everything: what nobody reads any more is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def outlive_the_reader() -> None:
    """Have a command end with its own exit code where nobody reads to its end: `traceops compare … | head` in CI. Its
    messages too may go there (`2>&1 | head`). Does nothing to a stream that is no pipe or socket."""
    sys.stdout, sys.stderr = (_outliving(stream) for stream in (sys.stdout, sys.stderr))


def _outliving(stream: TextIO) -> TextIO:
    try:
        number = stream.fileno()
        mode = os.fstat(number).st_mode
    except (OSError, ValueError, AttributeError):
        return stream
    if not (S_ISFIFO(mode) or S_ISSOCK(mode)) or not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_UntilGone(number, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
    )
