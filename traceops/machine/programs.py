"""Runs programs on a machine in trouble, where they may never come back."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Output:
    """What a program printed; `problem` says why there is nothing, None where there is.

    timed_out: it gave no answer in time.
    """

    text: str
    problem: str | None = None
    timed_out: bool = False


def output(command: Sequence[str], timeout_s: float) -> Output:
    """Run `command` for at most `timeout_s`, without waiting for one that cannot even be killed."""
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        return Output("", str(error.strerror or error))
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):  # inside a driver that hangs it does not even die
            process.communicate(timeout=0.5)
        return Output("", f"{NO_ANSWER} within {timeout_s:.0f} s", timed_out=True)
    if process.returncode:
        # nvidia-smi tells of its failure on stdout, in its first line
        told = err.decode(errors="replace").split("\n")[::-1] + out.decode(errors="replace").split("\n")
        return Output("", next((line.strip() for line in told if line.strip()), f"exit code {process.returncode}"))
    return Output(out.decode(errors="replace"))
