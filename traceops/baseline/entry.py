"""One baseline: a capture's report.json with its key and origin, as a gzipped JSON object with a name of its own."""

from __future__ import annotations

import gzip
import io
import json
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from typing import Any, TypeGuard

from traceops.baseline.key import UNKNOWN, Key
from traceops.baseline.place import open_place
from traceops.core.errors import InputError
from traceops.version import __version__

FORMAT = "traceops baseline"
VERSION = 1
NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-(?:[0-9a-f]{8}|unknown)-[0-9a-f]{12}\.json\.gz")

_MOST_BYTES = 1 << 30  # of one entry, unpacked: more is no report
_LAST_NS = 4_102_444_800 * 10**9  # 2100: later, a clock is wrong
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Entry:
    """A baseline without its report.

    url: where it lies. saved_ns, started_ns: Unix ns of the saving and of the capture. commit, dirty: of the
    trained code, None where the run did not say. branch: the key's. source: what was saved, for people.
    """

    key: Key
    url: str
    saved_ns: int
    started_ns: int | None
    commit: str | None
    dirty: bool | None
    source: str = ""

    @property
    def branch(self) -> str:
        return self.key.branch

    @property
    def name(self) -> str:
        """Where it lies in its store: the folder of its key, and its own name."""
        return "/".join(self.url.split("/")[-2:])

    @property
    def time_ns(self) -> int:
        """When it was captured, or else saved: Unix ns."""
        return self.saved_ns if self.started_ns is None else self.started_ns

    def report(self) -> dict[str, Any]:
        """The capture's report.json object. Raises InputError where the entry is gone or damaged by now."""
        return load(self.url)[1]


def load(url: str) -> tuple[Entry, dict[str, Any]]:
    """The entry at `url` and its report. Raises InputError where it cannot be read."""
    folder, _, name = url.rpartition("/")
    for _, data in open_place(folder).read([name]):
        if isinstance(data, InputError):
            raise data
        return decode(url, data)
    raise InputError(f"{url} is gone: it was pruned meanwhile")


def encode(
    report: Mapping[str, Any], key: Key, commit: str | None, source: str, saved_ns: int
) -> tuple[str, bytes]:
    """The name of a new entry within its store, which no other entry has, and its content.

    `commit` replaces the one that the report names.
    """
    run = report["run"]
    git = run.get("git") if isinstance(run.get("git"), Mapping) else {}
    own = git.get("commit")
    started = run.get("started_ns")
    entry = Entry(
        key=key,
        url="",
        saved_ns=saved_ns,
        started_ns=started if _is_time(started) else None,
        commit=commit or (own if isinstance(own, str) and own else None),
        dirty=git.get("dirty") if isinstance(git.get("dirty"), bool) and commit in (None, own) else None,
        source=source,
    )
    header = {name: value for name, value in asdict(entry).items() if name != "url"}
    document = {"format": FORMAT, "version": VERSION, "traceops_version": __version__, **header}
    text = json.dumps({**document, "report": report}, ensure_ascii=True, allow_nan=False)
    return f"{key.slug}/{_new_name(entry)}", gzip.compress(text.encode("ascii"), 6, mtime=0)


def decode(url: str, data: bytes) -> tuple[Entry, dict[str, Any]]:
    """The entry and its report from its bytes.

    Raises InputError saying what is wrong with what is no whole entry of a version that this traceops reads.
    """
    value = _unpacked(url, data)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InputError(f"{url}: no traceops baseline")
    if value.get("version") != VERSION:
        raise InputError(
            f"{url}: a baseline of version {value.get('version')!s:.20}, which this traceops cannot read"
        )
    words, report = value.get("key"), value.get("report")
    names = [field.name for field in fields(Key)]
    if not isinstance(words, dict) or not all(isinstance(words.get(name), str) for name in names):
        raise InputError(f"{url}: a baseline without a whole key")
    if not is_report(report):
        raise InputError(f"{url}: a baseline without a report")
    if not _is_time(value.get("saved_ns")):
        raise InputError(f"{url}: a baseline that does not say when it was saved")
    key = Key(**{name: words[name] for name in names})
    if url.split("/")[-2:-1] != [key.slug]:
        raise InputError(f"{url}: not in the folder of its key, {key.slug}")
    commit, dirty = value.get("commit"), value.get("dirty")
    return Entry(
        key=key,
        url=url,
        saved_ns=value["saved_ns"],
        started_ns=value["started_ns"] if _is_time(value.get("started_ns")) else None,
        commit=commit if isinstance(commit, str) else None,
        dirty=dirty if isinstance(dirty, bool) else None,
        source=str(value.get("source") or ""),
    ), report


def is_report(value: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is the object of a report.json, as far as baselines need it."""
    return isinstance(value, dict) and all(isinstance(value.get(part), dict) for part in ("run", "summary"))


def _unpacked(url: str, data: bytes) -> Any:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise InputError(f"{url}: too large for a baseline")
        return json.loads(text)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{url}: half-written or damaged ({error or type(error).__name__})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{url}: not valid JSON ({error})") from error


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LAST_NS


def _new_name(entry: Entry) -> str:
    """UTC time, commit and 48 random bits: sorts by time, and two jobs never choose the same."""
    when = datetime.fromtimestamp(entry.time_ns / 1e9, tz=timezone.utc)
    commit = (entry.commit or "").lower()
    short = commit[:8].ljust(8, "0") if _COMMIT.fullmatch(commit) else UNKNOWN
    return f"{when:%Y%m%dT%H%M%S}.{when.microsecond // 1000:03d}Z-{short}-{secrets.token_hex(6)}.json.gz"
