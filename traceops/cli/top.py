"""`traceops top`: a running job on one screen."""

from __future__ import annotations

import argparse
import secrets
import select
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.live import Live

from traceops.core.errors import UsageError
from traceops.launch.on_demand import Request, request_window
from traceops.live.monitor import read_state, watched_folder
from traceops.live.outlets import SORTS, screen

_EVERY_S = 0.5
_OTHER_LINES = 24  # of the screen: what is not a row of a rank


def main(args: argparse.Namespace) -> int:
    out = watched_folder(args.path)
    if read_state(out) is None:
        raise UsageError(f"no monitor has written to {out} yet; start one: traceops live {out}")
    console = Console()
    if args.once or not console.is_terminal:
        console.print(screen(read_state(out) or {}, sort=args.sort, card=_card(out), rows=64))
        return 0
    with suppress(KeyboardInterrupt), _keys_at_once():
        _show(out, console, args.sort)
    return 0


def _show(out: Path, console: Console, sort: str) -> None:
    state: dict[str, object] = {}
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            state = read_state(out) or state
            rows = max(console.height - _OTHER_LINES, 4)
            live.update(screen(state, sort=sort, card=_card(out), rows=rows), refresh=True)
            if (key := _key_within(_EVERY_S)) == "q":
                return
            if key == "s":
                sort = SORTS[(SORTS.index(sort) + 1) % len(SORTS)]
            elif key == "c":
                with suppress(UsageError):
                    request_window(out, Request(secrets.token_hex(8)))
            elif key == "o":
                subprocess.Popen(
                    [sys.executable, "-m", "traceops", "open", str(out)],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip


def _key_within(seconds: float) -> str | None:
    """The next key; without a terminal none."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return None
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return sys.stdin.read(1) if ready else None


@contextmanager
def _keys_at_once() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _card(out: Path) -> str:
    try:
        return (out / "live" / "card.txt").read_text(encoding="utf-8").rstrip()
    except OSError:
        return ""
