"""The store of baselines: save, list, find and prune, without an index that two jobs could both write."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from traceops.baseline.entry import NAME, SLUG, Entry, Key, StoredReport, decode, encode, key_of
from traceops.baseline.place import PARTIAL, Place, open_place
from traceops.compare.config import load_config
from traceops.core.errors import InputError, UsageError, problem_of
from traceops.report.document import report_of
from traceops.report.rows import Run
from traceops.traces.source import is_remote
from traceops.words.catalogue import texts

if TYPE_CHECKING:
    from traceops.compare.config import CompareConfig

DEFAULT_BRANCHES = ("main", "master")
DAY_NS = 86_400 * 10**9
VARIABLE = "TRACEOPS_BASELINES"

_WORDS = texts("views", "baseline")
_HOUR_NS = 3600 * 10**9


class Problem(Struct, frozen=True):
    """Something in the store that is no usable entry, and was left alone. `what` says what is wrong with it."""

    url: str
    what: str


def chosen_store(option: str | None = None, config: CompareConfig | None = None) -> str:
    """Path or URL of the store: this, else $TRACEOPS_BASELINES, else `baselines` of the settings, else baselines/. A
    relative path in the settings counts from their file; without `config` they are looked for as `load_config` does.
    Raises UsageError for settings that cannot be read."""
    if url := option or os.environ.get(VARIABLE):
        return url
    if config is None:
        config = load_config()
    if not config.baselines:
        return "baselines"
    if config.source is None or is_remote(config.baselines):
        return config.baselines
    return str(Path(config.source).parent / Path(config.baselines).expanduser())


def save(
    store_url: str,
    report: Any,
    *,
    branch: str | None = None,
    name: str | None = None,
    commit: str | None = None,
    source: str = "",
) -> Entry:
    """Add a capture's report.json object; `branch`, `name` (of the model) and `commit` replace what its run says. It is
    kept as it is, whatever version wrote it. Raises InputError for what is no report, and where the store cannot be
    written to."""
    run = report_of(report, source or "what is to be saved").run
    place = open_place(store_url)
    key = key_of(run, branch=branch, name=name)
    path, data = encode(report, run, key, commit, source, time.time_ns())
    place.put(path, data)
    return decode(f"{place.url}/{path}", data).entry


def scan(store_url: str, pattern: str | None = None, problems: list[Problem] | None = None) -> Iterator[StoredReport]:
    """Entries with their reports, key by key in the order of the slugs, each in time order. pattern: as `Key.matches`
    takes it; all keys without. What is no whole entry is added to `problems`."""
    place = open_place(store_url)
    problems = [] if problems is None else problems
    for slug in _slugs(place, problems):
        names = _names(place, slug, problems)
        if pattern is None or any(entry.key.matches(pattern) for entry in _newest(place, slug, 1)):
            yield from _read(place, names, problems)


def entries(store_url: str, pattern: str | None = None, problems: list[Problem] | None = None) -> list[Entry]:
    """As `scan`, without the reports."""
    return [stored.entry for stored in scan(store_url, pattern, problems)]


def baseline_entries(
    name: str, option: str | None, *, last: int, like: Run | None = None, config: CompareConfig | None = None
) -> list[Entry]:
    """What `baseline:NAME` means in a comparison, oldest first: at least one entry, at most `last`. name: as `find`
    takes it; or "auto", "auto@BRANCH" for `find_like`. like: the run to compare with. option, config: as `chosen_store`
    takes them. Raises InputError or UsageError where there is no such baseline."""
    store_url = chosen_store(option, config)
    kind, _, branch = name.partition("@")
    if kind != "auto":
        return find(store_url, name, last, like)
    if like is None:
        raise UsageError(
            "baseline:auto looks for captures like those of the other side, and there is no other side; name the key: "
            "baseline:NAME"
        )
    found = find_like(store_url, like, branch or None, last)
    if not found:
        where = branch or " or ".join(DEFAULT_BRANCHES)
        raise InputError(
            f"{store_url} has no baseline of {where} like {key_of(like).text}. Save one on that branch with: "
            "traceops baseline save RUN (and see traceops baseline list)"
        )
    return found


def find(store_url: str, pattern: str, last: int = 1, like: Run | None = None) -> list[Entry]:
    """The last entries of the one key that `pattern` names, oldest first; at most `last`.

    pattern: a model name, slug, other word of a key, or shell pattern, see `Key.matches`. like: a run
    to choose by where several keys match: the same but for model and branch, and main or master among those.
    Raises InputError where no key matches or it holds no entry but that run, and UsageError where several do.
    """
    place = open_place(store_url)
    newest = {slug: _newest(place, slug, 1) for slug in _slugs(place, [])}
    known = {slug: found[0].key for slug, found in newest.items() if found}
    if not (matching := {slug: key for slug, key in known.items() if key.matches(pattern)}):
        held = f"it holds {_listed(known)}" if known else "it is empty"
        raise InputError(
            f"no baseline in {place.url} matches {pattern!r}: {held}. "
            "Save one with: traceops baseline save RUN --name NAME"
        )
    if len(matching) > 1 and like is not None:
        matching = _most_alike(matching, key_of(like))
    if len(matching) > 1:
        raise UsageError(f"{pattern!r} matches {len(matching)} keys, name one of them: {_listed(matching)}")
    slug, key = next(iter(matching.items()))
    if found := _newest(place, slug, last, like):
        return found
    raise InputError(
        f"the baseline {key.text} in {place.url} holds no entry that can be read but this run itself, and a run is not "
        "compared with itself. Save another with: traceops baseline save RUN"
    )


def find_like(store_url: str, run: Run, branch: str | None = None, last: int = 1) -> list[Entry]:
    """The last entries whose key is that of this run but for the branch, oldest first; at most `last`. branch: main, or
    else master, where it is None. The run is never its own baseline. Empty where there is none."""
    place = open_place(store_url)
    own = key_of(run)
    for candidate in (branch,) if branch else DEFAULT_BRANCHES:
        if found := _newest(place, replace(own, branch=candidate).slug, last, run):
            return found
    return []


def to_prune(
    found: Sequence[Entry], *, keep: int | None = None, older_than_days: float | None = None, now_ns: int
) -> list[Entry]:
    """Which entries go: those beyond the newest `keep` of each key, and only older ones where an age is given. Raises
    UsageError without either, and where a key would lose all its entries without `keep`."""
    if keep is None and older_than_days is None:
        raise UsageError("say which entries to delete: --keep N, --older-than DAYS, or both")
    if keep is not None and keep < 1:
        raise UsageError(f"--keep {keep} would delete everything; keep 1 or more of each key")
    by_key: dict[str, list[Entry]] = defaultdict(list)
    for entry in found:
        by_key[entry.key.slug].append(entry)
    chosen: list[Entry] = []
    emptied = []
    for slug, own in by_key.items():
        newest_first = sorted(own, key=lambda entry: (entry.time_ns, entry.url), reverse=True)
        gone = [
            entry
            for entry in newest_first[keep or 0 :]
            if older_than_days is None or now_ns - entry.time_ns > older_than_days * DAY_NS
        ]
        chosen += reversed(gone)
        if len(gone) == len(own):
            emptied.append(slug)
    if emptied:
        raise UsageError(
            f"that would delete every entry of {_listed(emptied)}; add --keep 1 to keep the newest of each key. "
            "To drop a key for good, remove its folder"
        )
    return chosen


def remove(found: Iterable[Entry]) -> int:
    """Delete these entries; how many were there still. Raises InputError where the store refuses."""
    count = 0
    for entry in found:
        folder, _, name = entry.url.rpartition("/")
        count += open_place(folder).remove(name)
    return count


def _slugs(place: Place, problems: list[Problem]) -> list[str]:
    """Folders that can hold entries; the rest is named."""
    slugs = []
    for item in place.items():
        if item.folder and SLUG.fullmatch(item.name):
            slugs.append(item.name)
        else:
            problems.append(Problem(f"{place.url}/{item.name}", _WORDS["no_key"]))
    return slugs


def _names(place: Place, slug: str, problems: list[Problem]) -> list[str]:
    """Names of what should be entries, in time order; what is being written right now is no problem."""
    names = []
    for item in place.items(slug):
        if not item.folder and NAME.fullmatch(item.name):
            names.append(f"{slug}/{item.name}")
        elif not item.name.endswith(PARTIAL):
            problems.append(Problem(f"{place.url}/{slug}/{item.name}", _WORDS["no_entry"]))
        elif item.modified_ns is not None and time.time_ns() - item.modified_ns > _HOUR_NS:
            problems.append(Problem(f"{place.url}/{slug}/{item.name}", _WORDS["interrupted"]))
    return names


def _read(place: Place, names: Sequence[str], problems: list[Problem]) -> Iterator[StoredReport]:
    for name, data in place.read(names):
        url = f"{place.url}/{name}"
        try:
            if isinstance(data, InputError):
                raise data
            yield decode(url, data)
        except InputError as error:  # one damaged entry hides no other
            problems.append(Problem(url, problem_of(error)))


def _newest(place: Place, slug: str, last: int, but: Run | None = None) -> list[Entry]:
    """The last whole entries of a key, oldest first, without the capture `but`; no more are opened than it takes."""
    started = None if but is None else but.started_ns
    found: list[Entry] = []
    for name in reversed(_names(place, slug, [])):
        if len(found) >= last:
            break
        read = (stored.entry for stored in _read(place, [name], []))
        found += [entry for entry in read if started is None or entry.started_ns != started]
    return found[::-1]


def _most_alike(keys: Mapping[str, Key], own: Key) -> dict[str, Key]:
    """The keys that are `own` but for model and branch, and among them those of main or else master; at least one."""
    alike = {slug: key for slug, key in keys.items() if replace(key, model=own.model, branch=own.branch) == own}
    for branch in DEFAULT_BRANCHES:
        if of_branch := {slug: key for slug, key in alike.items() if key.branch == branch}:
            return of_branch
    return alike or dict(keys)


def _listed(slugs: Iterable[str]) -> str:
    names = sorted(slugs)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
