"""Loads what runs a script on fake GPUs, and has it run: ``python -m traceops.memory.script_process REQUEST``."""

from __future__ import annotations

import sys
from typing import NoReturn

import msgspec

from traceops.core.installation import uncollected
from traceops.memory.model import ScriptRequest


def main() -> NoReturn:
    """Run what the command line asks for, in JSON."""
    with uncollected():
        from traceops.memory.script_worker import Rehearsal
    Rehearsal(msgspec.json.decode(sys.argv[1], type=ScriptRequest)).run()


if __name__ == "__main__":
    main()
