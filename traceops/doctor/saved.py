"""Reads a doctor.json back as the checkup that it was written from, to be shown elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec

from traceops.core.errors import InputError
from traceops.core.regular_file import NotRegularError, TooLargeError, read_regular
from traceops.core.tool import READABLE_VERSIONS
from traceops.doctor.document import DoctorDocument, checkup_of
from traceops.doctor.model import Checkup

_LISTED = " and ".join(map(str, READABLE_VERSIONS))
_LARGEST_BYTES = 256_000_000
_OWN = (b'"looks"', b'"trials"', b'"remedies"')


class _Version(msgspec.Struct):
    schema_version: int


def read_checkup(path: str | Path) -> Checkup | None:
    """The checkup in a doctor.json, without NCCL's log; None where the file is not one.

    Raises InputError, which names the file, for one that is damaged or of another version.
    """
    try:
        content = read_regular(path, _LARGEST_BYTES)
    except (IsADirectoryError, NotRegularError, TooLargeError, FileNotFoundError):
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not content.lstrip().startswith(b"{") or not all(name in content for name in _OWN):
        return None
    try:
        version = msgspec.json.decode(content, type=_Version).schema_version
        found = msgspec.json.decode(content, type=DoctorDocument) if version in READABLE_VERSIONS else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not a doctor.json of traceops doctor: {error}") from error
    if found is None:
        raise InputError(
            f"{path} is a doctor.json of version {version}, this traceops reads {_LISTED}; read it "
            "with the traceops that wrote it"
        )
    return checkup_of(found)
