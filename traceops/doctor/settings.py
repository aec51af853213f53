"""The settings that the doctor found to work: read from doctor.json, and written as lines for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.errors import InputError
from traceops.core.files import read_regular

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)


class Settings(Struct, frozen=True):
    """Variables to set and to remove for a job on this machine. fallback: ranks that one GPU has to stand in for by
    gradient accumulation, None where several GPUs work."""

    set: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    fallback: int | None = None

    def apply(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` with these variables set and removed."""
        kept = {name: value for name, value in environ.items() if name not in self.unset}
        return {**kept, **self.set}


class _Doctor(Struct):
    settings: Settings | None
    schema_version: Literal[1, 2] = 1
    fallback: int | None = None


def read_settings(path: str | Path) -> Settings:
    """The settings in a doctor.json; none at all where the doctor found that none are needed. Raises InputError, which
    names the file, for anything but ``{"settings": null}`` or ``{"settings": {"set": {"NAME": "value"}, "unset":
    ["NAME"]}}`` (beside other keys), and ``"fallback": N``."""
    try:
        found = msgspec.json.decode(read_regular(path), type=_Doctor)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); traceops doctor writes it") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} does not hold settings of traceops doctor: {error}") from error
    settings = found.settings or Settings()
    for name in (*settings.set, *settings.unset):
        if not _NAME.match(name):
            raise InputError(f"{path}: {name!r} is not the name of a variable")
    for name, value in settings.set.items():
        if "\0" in value:
            raise InputError(f"{path}: the value of {name} holds a NUL, which a variable cannot hold")
        if name in settings.unset:
            raise InputError(f"{path}: {name} stands under set and under unset; leave it in one of the two")
    if found.fallback is not None and found.fallback < 1:
        raise InputError(f"{path}: fallback is {found.fallback}; give the number of ranks, 1 or more")
    return replace(settings, fallback=found.fallback)


def shell_lines(set_: Mapping[str, str], unset: Sequence[str]) -> tuple[str, ...]:
    """The lines to paste into a shell: ``unset NAME``, then ``export NAME=value``."""
    removed = tuple(f"unset {name}" for name in unset)
    return removed + tuple(f"export {name}={shlex.quote(value)}" for name, value in set_.items())
