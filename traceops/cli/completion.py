"""`traceops completion`: a script for the shell, made from the parser."""

from __future__ import annotations

import argparse

from traceops.cli import build_parser

_BASH = """_traceops() {{
  local word=${{COMP_WORDS[COMP_CWORD]}}
  case ${{COMP_WORDS[1]}} in
{cases}
    *) COMPREPLY=($(compgen -W "{commands}" -- "$word")) ;;
  esac
}}
complete -o default -F _traceops traceops"""
_BASH_CASE = '    {}) [[ $word == -* ]] && COMPREPLY=($(compgen -W "{}" -- "$word")) ;;'
_FISH_COMMAND = "complete -c traceops -n __fish_use_subcommand -a {}"
_FISH_OPTION = "complete -c traceops -n '__fish_seen_subcommand_from {}' -l {}"


def main(args: argparse.Namespace) -> int:
    """bash's script, which zsh reads too; fish has a language of its own."""
    parser = build_parser()
    subparsers = next(one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    options = {
        name: sorted(o for action in sub._actions for o in action.option_strings if o.startswith("--"))
        for name, sub in subparsers.choices.items()
    }
    if args.shell == "fish":
        print("\n".join(_FISH_COMMAND.format(name) for name in options))
        for name, flags in options.items():
            print("\n".join(_FISH_OPTION.format(name, flag.removeprefix("--")) for flag in flags))
        return 0
    cases = "\n".join(_BASH_CASE.format(name, " ".join(flags)) for name, flags in options.items())
    script = _BASH.format(cases=cases, commands=" ".join(options))
    print(f"autoload -U +X bashcompinit && bashcompinit\n{script}" if args.shell == "zsh" else script)
    return 0
