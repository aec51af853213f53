"""The files by which NCCL sets variables that the environment does not show."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from traceops.machine.files import text


def nccl_files(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[tuple[str, dict[str, str]], ...]:
    """The files by which NCCL sets variables unseen and what they set, the one that wins first.

    They are NCCL_CONF_FILE, or ``~/.nccl.conf`` without it, and ``/etc/nccl.conf``; the environment beats both.
    """
    own = environ.get("NCCL_CONF_FILE") or str(Path(environ.get("HOME", "/root")) / ".nccl.conf")
    found = []
    for path in (own, "/etc/nccl.conf"):
        content = text(root / path.lstrip("/") if path.startswith("/") else Path(path))
        if content is not None:
            found.append((path, parse_nccl_file(content)))
    return tuple(found)


def parse_nccl_file(content: str) -> dict[str, str]:
    """What a file like ``/etc/nccl.conf`` sets; blanks count, as for NCCL."""
    lines = (line for line in content.splitlines() if not line.startswith("#") and "=" in line)
    return {name: value for name, _, value in (line.partition("=") for line in reversed(list(lines)))}
