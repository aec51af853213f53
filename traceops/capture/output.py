"""Where a rank prints: into pipes, where its launcher made some.

A file would fail print() on a full disk, and would be truncated by a program that writes to /dev/stdout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def pipe_path(folder: Path, local_rank: int, *, error: bool) -> Path:
    """The pipe for a rank's stdout or stderr in the launcher's folder."""
    return folder / f"{'stderr' if error else 'stdout'}_{local_rank}.fifo"


def make_pipes(folder: Path, ranks: int, *, one_place: bool) -> list[tuple[int, Path]]:
    """Pipes for as many ranks: each with its local rank. one_place: stdout and stderr of each have the same one.

    Raises OSError.
    """
    made = []
    for local_rank in range(ranks):
        for error in (False,) if one_place else (False, True):
            path = pipe_path(folder, local_rank, error=error)
            os.mkfifo(path)
            made.append((local_rank, path))
    return made


def print_to_launcher(folder: Path, environ: Mapping[str, str]) -> None:
    """Have this process, and those that it starts, print into the launcher's pipes; as before where there are none."""
    local_rank = int(environ.get("LOCAL_RANK", "-1"))
    for descriptor, error in ((1, False), (2, True)):
        path = pipe_path(folder, local_rank, error=error)
        if not path.exists():
            path = pipe_path(folder, local_rank, error=False)
        with suppress(OSError):  # no pipe, or nobody who reads it
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(pipe, True)
            os.dup2(pipe, descriptor)
            os.close(pipe)
