"""Hooks of the documentation site: the page of all commands, and links to files that are not pages of it."""

from __future__ import annotations

import argparse
import re
from typing import Any

from mkdocs.structure.files import File, Files

from traceops.cli import COMMANDS, build_parser

_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    files.append(File.generated(config, "cli.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file of the repository becomes its name and its path there."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)


def commands_page() -> str:
    """Every command with all its options, from the parser itself."""
    lines = ["# Commands", "", "`traceops COMMAND --help` prints the same, the common options first.", ""]
    parsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    for name in COMMANDS:
        parser = parsers[name]
        lines += [f"## traceops {name}", "", parser.description or "", "", "| option | |", "|---|---|"]
        for action in parser._actions:
            if action.help is argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
                continue
            words = ", ".join(action.option_strings) or str(action.metavar or action.dest)
            value = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
            text = parser._get_formatter()._expand_help(action) if action.help else ""
            cells = [cell.replace("|", r"\|").replace("<", "&lt;") for cell in (words + value, " ".join(text.split()))]
            lines.append(f"| `{cells[0]}` | {cells[1]} |")
        lines.append("")
    return "\n".join(lines)
