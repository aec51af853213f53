"""What the user's settings say of analysing: [analyze] in traceops.toml."""

from __future__ import annotations

from pathlib import Path

from traceops.core.errors import UsageError
from traceops.core.settings_file import only, read_settings
from traceops.measure.comm_kernels import own_pattern

_KERNELS = "communication_kernels"


def own_kernels(start: Path | None = None) -> tuple[str, ...]:
    """Patterns of kernels that communicate, beside those that are known; () without settings.

    Raises UsageError naming the file and what is wrong in it.
    """
    found = read_settings(start)
    if found is None:
        return ()
    table, source = found
    own = table.get("analyze", {})
    if not isinstance(own, dict):
        raise UsageError(f"{source}: analyze must be a table")
    only(own, (_KERNELS,), f"{source}: analyze")
    patterns = own.get(_KERNELS, [])
    if not isinstance(patterns, list) or not all(isinstance(one, str) and one for one in patterns):
        raise UsageError(f"{source}: analyze.{_KERNELS} must be a list of regular expressions, in quotes")
    try:
        own_pattern(tuple(patterns))
    except ValueError as error:
        raise UsageError(f"{source}: analyze.{_KERNELS}: {error}") from error
    return tuple(patterns)
