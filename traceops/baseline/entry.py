"""One baseline: a capture's report.json with its key and origin, as a gzipped JSON object with a name of its own."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from traceops.baseline.place import open_place
from traceops.compare.capture import ComparedCapture, capture_of
from traceops.core.errors import FileError, InputError
from traceops.core.redaction import redact_text, redact_value
from traceops.report.document import WITH_WORDS
from traceops.report.rows import Git, Run
from traceops.version import __version__

# The key of a baseline: what two captures must have in common for their times to be comparable.

UNKNOWN = "unknown"

# What the model part says beside the model's name, each where it is known: key of `training`, letter in the key.
_SIZES = (("layers", "l"), ("dim", "d"), ("seq_len", "s"), ("batch_size", "b"), ("grad_accum", "a"))
_MOST_LETTERS = 40  # of one part in a slug; the hash tells longer ones apart
_HASH_LETTERS = 12
SLUG = re.compile(rf"[a-z0-9.]+(?:[-_][a-z0-9.]+)*-[0-9a-f]{{{_HASH_LETTERS}}}")


@dataclass(frozen=True)
class Key:
    """Words that name a series of captures; what a run does not say is "unknown". model: its name and sizes, such as
    "gpt-l8-d1024-s512-b8" (layers, dim, sequence length, batch size of a rank, "a4" for 4 accumulated micro-batches),
    or whatever name it was given. topology: hosts and ranks on each, such as "2x8"."""

    model: str
    world_size: str
    gpu: str
    topology: str
    strategy: str
    precision: str
    branch: str

    @property
    def slug(self) -> str:
        """The key as the name of a folder: lower-case ASCII, and a hash that tells apart what looks the same.

        It depends on nothing but the words, so that all machines and versions agree on it.
        """
        digest = hashlib.sha256(json.dumps(list(astuple(self)), ensure_ascii=True).encode("ascii"))
        words = (_safe(f"w{word}" if name == "world_size" else word) for name, word in self.words())
        return f"{'_'.join(words)}-{digest.hexdigest()[:_HASH_LETTERS]}"

    @property
    def text(self) -> str:
        """For people: the words in one line."""
        return " · ".join(
            f"{word} rank{'' if word == '1' else 's'}" if name == "world_size" else word for name, word in self.words()
        )

    def words(self) -> list[tuple[str, str]]:
        """(field, its word), in the order of the slug."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]

    def matches(self, pattern: str) -> bool:
        """Whether `pattern` is, or as a shell pattern fits, the slug with or without its hash, or one of the words."""
        slug = self.slug
        texts = (slug, slug[: -_HASH_LETTERS - 1], *astuple(self))
        return any(text == pattern or fnmatchcase(text.lower(), pattern.lower()) for text in texts)


def key_of(run: Run, *, branch: str | None = None, name: str | None = None) -> Key:
    """The key of a capture from what its report says of the run; `branch` and `name` (of the model) replace its own."""
    training = run.training or {}
    config = training.get("config")  # our runner keeps its options one level down
    training = {**(config if isinstance(config, Mapping) else {}), **training}
    return Key(
        model=_word(name) if name else _model(training), world_size=_word(run.world_size), gpu=_word(run.device),
        topology=_topology(run), strategy=_word(run.strategy or training.get("strategy")),
        precision=_word(training.get("precision") or training.get("dtype")),
        branch=_word(branch or (run.git.branch if run.git else None)),
    )  # fmt: skip


def _model(training: Mapping[str, Any]) -> str:
    known = {key: training[key] for key, _ in _SIZES if _is_number(training.get(key))}
    if known.get("grad_accum") == 1:
        del known["grad_accum"]
    sizes = [f"{letter}{int(known[key])}" for key, letter in _SIZES if key in known]
    return "-".join([_word(training.get("model") or training.get("model_name")), *sizes])


def _topology(run: Run) -> str:
    """Hosts times ranks on each; "2x?" where the ranks cannot lie evenly on them."""
    if not run.hosts or run.world_size is None:
        return UNKNOWN
    count = len(set(run.hosts))
    return f"{count}x{'?' if run.world_size % count else run.world_size // count}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e18


def _word(value: Any) -> str:
    """Text without blanks at its ends; "unknown" for what is not known."""
    text = str(value).strip() if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
    return text or UNKNOWN


def _safe(word: str) -> str:
    """Letters, digits, dots and single dashes, whatever the word holds; never empty, no dot at the ends."""
    cut = re.sub(r"[^a-z0-9.]+", "-", "".join(c.lower() if c.isascii() else "-" for c in word))
    return cut[:_MOST_LETTERS].strip("-.") or "x"


FORMAT = "traceops baseline"
VERSION = 1
NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z-(?:[0-9a-f]{8}|unknown)-[0-9a-f]{12}\.json\.gz")

_MOST_BYTES = 1 << 30  # of one entry, unpacked: more is no report
_LAST_NS = 4_102_444_800 * 10**9  # 2100: later, a clock is wrong
TimeNs = Annotated[int, Meta(gt=0, lt=_LAST_NS)]
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class Entry:
    """A baseline without its report. url: where it lies. saved_ns, started_ns: Unix ns of the saving and of the
    capture. commit, dirty: of the trained code, None where the run did not say. branch: the key's. source: what was
    saved, for people."""

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

    def capture(self) -> ComparedCapture:
        """The capture that was saved. Raises InputError where the entry is gone or damaged by now."""
        return load(self.url).capture()


@dataclass(frozen=True)
class StoredReport:
    """An entry with its report. `content` is the object of the report.json as it was saved, of any schema version."""

    entry: Entry
    content: Any

    def capture(self) -> ComparedCapture:
        """The report as this version reads it. Raises InputError where it is none."""
        return capture_of(self.content, self.entry.url)


class EntryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of an entry holds. report: the object of the capture's report.json."""

    format: str = FORMAT
    version: int = VERSION
    traceops_version: str = __version__
    key: Key
    saved_ns: TimeNs
    started_ns: TimeNs | None = None
    commit: str | None = None
    dirty: bool | None = None
    source: str = ""
    report: Any


class _FileKind(msgspec.Struct, frozen=True):
    """What any JSON object says of its kind."""

    format: Any = None
    version: Any = None


class _ReportParts(msgspec.Struct, frozen=True):
    """What tells a report from other objects."""

    run: dict[str, Any]
    summary: dict[str, Any]


def load(url: str) -> StoredReport:
    """The entry at `url` with its report. Raises InputError where it cannot be read."""
    folder, _, name = url.rpartition("/")
    for _, data in open_place(folder).read([name]):
        if isinstance(data, InputError):
            raise data
        return decode(url, data)
    raise FileError(url, "is gone: it was pruned meanwhile")


def encode(report: Any, run: Run, key: Key, commit: str | None, source: str, saved_ns: int) -> tuple[str, bytes]:
    """The name of a new entry within its store, which no other entry has, and its content. report: the object of a
    report.json, whose `run` is `run`. `commit` replaces the one that the run names."""
    git = run.git or Git()
    document = EntryDocument(
        key=key,
        saved_ns=saved_ns,
        started_ns=run.started_ns if run.started_ns and 0 < run.started_ns < _LAST_NS else None,
        commit=commit or git.commit or None,
        dirty=git.dirty if commit in (None, git.commit) else None,
        source=redact_text(source),
        report={**report, **{part: redact_value(report[part]) for part in WITH_WORDS if part in report}},
    )
    text = json.dumps(msgspec.to_builtins(document), ensure_ascii=True, allow_nan=False)
    # UTC time, commit and 48 random bits: the name sorts by time, and two jobs never choose the same.
    when = datetime.fromtimestamp(_entry(document).time_ns / 1e9, tz=timezone.utc)
    code = (document.commit or "").lower()
    short = code[:8].ljust(8, "0") if _COMMIT.fullmatch(code) else UNKNOWN
    name = f"{when:%Y%m%dT%H%M%S}.{when.microsecond // 1000:03d}Z-{short}-{secrets.token_hex(6)}.json.gz"
    return f"{key.slug}/{name}", gzip.compress(text.encode("ascii"), 6, mtime=0)


def decode(url: str, data: bytes) -> StoredReport:
    """The entry with its report from its bytes. Raises FileError saying what is wrong with what is no whole entry of a
    version that this traceops reads."""
    value = _unpacked(url, data)
    kind = msgspec.convert(value, _FileKind) if isinstance(value, dict) else _FileKind()
    if kind.format != FORMAT:
        raise FileError(url, "no traceops baseline", ": ")
    if kind.version != VERSION:
        raise FileError(url, f"a baseline of version {kind.version!s:.20}, which this traceops cannot read", ": ")
    try:
        document = msgspec.convert(value, EntryDocument)
        msgspec.convert(document.report, _ReportParts)
    except (msgspec.ValidationError, OverflowError, RecursionError, UnicodeError) as error:
        raise FileError(url, f"no whole baseline: {error}", ": ") from error
    if url.split("/")[-2:-1] != [document.key.slug]:
        raise FileError(url, f"not in the folder of its key, {document.key.slug}", ": ")
    return StoredReport(_entry(document, url), document.report)


def _entry(document: EntryDocument, url: str = "") -> Entry:
    return Entry(
        key=document.key, url=url, saved_ns=document.saved_ns, started_ns=document.started_ns, commit=document.commit,
        dirty=document.dirty, source=document.source,
    )  # fmt: skip


def _unpacked(url: str, data: bytes) -> Any:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise FileError(url, "too large for a baseline", ": ")
        return json.loads(text)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(url, f"half-written or damaged ({error or type(error).__name__})", ": ") from error
    except (ValueError, RecursionError) as error:
        raise FileError(url, f"not valid JSON ({error})", ": ") from error
