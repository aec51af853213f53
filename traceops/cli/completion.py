"""`traceops completion`: a script for the shell, made from the parser."""

from __future__ import annotations

import argparse

from traceops.answers.asked import QUESTIONS
from traceops.cli import build_parser
from traceops.rules.registry import RULES

_BASH = """_traceops() {{
  local word=${{COMP_WORDS[COMP_CWORD]}}
  case ${{COMP_WORDS[1]}} in
{cases}
    *) COMPREPLY=($(compgen -W "{commands}" -- "$word")) ;;
  esac
}}
complete -o default -F _traceops traceops"""
_BASH_CASE = """    {}) if [[ $word == -* ]]; then COMPREPLY=($(compgen -W "{}" -- "$word"))
      elif (( COMP_CWORD >= {} )); then COMPREPLY=($(compgen -W "{}" -- "$word")); fi ;;"""
_FISH_COMMAND = "complete -c traceops -n __fish_use_subcommand -a {}"
_FISH_WORDS = "complete -c traceops -n '__fish_seen_subcommand_from {}' -a '{}'"
_FISH_OPTION = "complete -c traceops -n '__fish_seen_subcommand_from {}' -l {}"


def main(args: argparse.Namespace) -> int:
    """bash's script, which zsh reads too; fish has a language of its own."""
    parser = build_parser()
    subparsers = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    options = {
        name: sorted(o for action in sub._actions for o in action.option_strings if o.startswith("--"))
        for name, sub in subparsers.choices.items()
    }
    # Words of a command, and from which place on: show RUN QUESTION, explain RULE.
    asked = {"show": (3, " ".join(one.name for one in QUESTIONS)), "explain": (2, " ".join(rule.id for rule in RULES))}
    if args.shell == "fish":
        print("\n".join(_FISH_COMMAND.format(name) for name in options))
        for name, flags in options.items():
            print("\n".join(_FISH_OPTION.format(name, flag.removeprefix("--")) for flag in flags))
        print("\n".join(_FISH_WORDS.format(name, words) for name, (_, words) in asked.items()))
        return 0
    cases = "\n".join(
        _BASH_CASE.format(name, " ".join(flags), *asked.get(name, (2, ""))) for name, flags in options.items()
    )
    script = _BASH.format(cases=cases, commands=" ".join(options))
    print(f"autoload -U +X bashcompinit && bashcompinit\n{script}" if args.shell == "zsh" else script)
    return 0
