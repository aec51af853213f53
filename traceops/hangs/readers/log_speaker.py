"""Which rank says a line of a log, from the prefixes of torch, torchrun, Slurm, MPI and traceops itself."""

from __future__ import annotations

import re

from traceops.hangs.readers.log_rules import RANK_IN_GROUP, RANK_OF_MESSAGE

_DEFAULT_GROUP = "default_pg"
_RANK = re.compile(
    r"\[rank[ :=]{0,2}(\d{1,7})\]:? ?(?:\|\| ?)?"
)  # torch's [rank3]:, Determined's '[rank=3] || ', our own [rank 3]
_GLOG = re.compile(r"\[rank(\d{1,7})\]:(?=\[[EWIF])")  # follows a progress bar on the same line
_LABELS = (
    ("mpi", re.compile(r"\[\d{1,9},(\d{1,7})\]<std(?:out|err)>: ?")),
    ("sagemaker", re.compile(r"\[\d{1,9},mpirank:(\d{1,7}),[\w-]{1,60}\]<std(?:out|err)>: ?")),
    ("named", re.compile(r"(?:(?:Rank|RANK) (\d{1,7}): |\[RANK (\d{1,7})\]:? )")),
    ("role", re.compile(r"\[[A-Za-z][A-Za-z_.-]{0,40}?(\d{1,7})\]: ?")),  # torchrun's [default3]: is a LOCAL rank
    ("task", re.compile(r" {0,6}(\d{1,7}): ")),  # srun --label
)
_SEARCHED = 160  # timestamps and host names may come before the rank
_MOST_LABELS = 4
_MOST_KNOWN = 1 << 16


class Speakers:
    """Tells lines by rank.

    A label may count ranks within a node, or Slurm's tasks. It is the rank only where the log never shows one of its
    kind beside a different rank. Once it was seen beside a rank, it means that rank.
    """

    def __init__(self, default: int | None) -> None:
        self._default = default
        self._known: dict[tuple[str, int], int | None] = {}
        self._differing: set[str] = set()
        self._guessed: set[str] = set()
        self.saw_ranks = False  # a line's own rank was told, or guessed
        self.misled = False  # a label was taken for a rank, and a later line showed that it is none

    def split(self, line: str) -> tuple[int | None, str]:
        """The rank that says the line, None if it is not told, and the line without the prefixes."""
        labels: list[tuple[str, int]] = []
        start = 0
        for _ in range(_MOST_LABELS):
            label = self._label(line, start)
            if label is None:
                break
            kind, number, start = label
            labels.append((kind, number))
        rank, body = _told(line, start)
        if rank is not None:
            self.saw_ranks = True
            for known in labels:
                self._learn(known, rank)
            return rank, body
        for kind, number in reversed(labels):
            guess = self._meaning(kind, number)
            if guess is not None:
                self._guessed.add(kind)
                self.saw_ranks = True
                return guess, body
        return self._default, body

    def _label(self, line: str, start: int) -> tuple[str, int, int] | None:
        if line.startswith("[rank", start):
            return None
        for kind, pattern in _LABELS:
            if kind == "task" and (self._default is not None or start):
                continue  # anything may start with a number and a colon
            match = pattern.match(line, start)
            if match is not None:
                return kind, int(match[match.lastindex or 1]), match.end()
        return None

    def _learn(self, label: tuple[str, int], rank: int) -> None:
        if len(self._known) < _MOST_KNOWN and self._known.setdefault(label, rank) != rank:
            self._known[label] = None  # one label, several ranks: it names a node
        if label[1] != rank and label[0] not in self._differing:
            self._differing.add(label[0])
            self.misled |= label[0] in self._guessed

    def _meaning(self, kind: str, number: int) -> int | None:
        if (kind, number) in self._known:
            return self._known[kind, number]
        return None if kind in self._differing else number


def _told(line: str, start: int) -> tuple[int | None, str]:
    match = _RANK.search(line, start, start + _SEARCHED)
    if match is not None and not _is_prefix(line[start : match.start()]):
        match = None
    if match is None:
        match = _GLOG.search(line, start)
    if match is None:
        return None, line[start:]
    rank = int(match[1])
    while (again := _RANK.match(line, match.end())) is not None:  # the launcher's, then torch's own
        match, rank = again, int(again[1])
    return rank, line[match.end() :]


def _is_prefix(before: str) -> bool:
    """Whether this may be a time or a host, rather than a message that mentions a rank."""
    return len(before.split()) <= 5 and "Error" not in before and "Exception" not in before


def rank_in_message(body: str, group: re.Match[str] | None) -> int | None:
    """Messages count ranks within the group: only the group of all ranks tells the rank itself."""
    if group is not None:
        is_default = group["description"] == _DEFAULT_GROUP or group["group"] in ("0", _DEFAULT_GROUP)
        return int(group["rank"]) if is_default else None
    told = RANK_IN_GROUP.search(body) or RANK_OF_MESSAGE.search(body)
    return None if told is None else int(told[1])
