"""Changes logs in ways that must not change what is said of them, and counts where it does.

    python -m benchmarks.hangs.mutations [--sample N] [--list]

No new logs are needed: each text of tests/data is diagnosed as it is, and again with half its ranks left out, without
its last line, behind other prefixes, beside another log, and with one more line of trouble. Prints how often each
invariant does not hold, and with --list where. Exits 1 if any does not.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from traceops.core.errors import InputError
from traceops.hangs.crashes import WORDINGS
from traceops.hangs.diagnose import diagnose
from traceops.report.hang_text import hang_level, hang_sentence

DATA = Path(__file__).parents[2] / "tests" / "data"
LEVELS = ("nothing", "info", "warning", "error")
SAMPLE = 2000  # changed logs told, of each kind of change
SEED = 46
PLACES = ("first", "middle", "last")
_RANK = re.compile(
    r"\[(?:rank|RANK|default|trainer)[ :=]{0,2}(\d{1,4})\]|\bRank (\d{1,4})\b|^ {0,3}(\d{1,4}): |\[1,(\d{1,4})\]<"
)
_WHERE_RANKS_ARE = re.compile(r"rank|task|process|local|exitcode|dump|\[default|\d: ", re.IGNORECASE)
UNKNOWN = (
    "node7:1182:1290 [3] misc/strangewrap.cc:77 NCCL WARN Weird condition 17 on channel 3",
    "2026-03-02 10:00:00,123 - trainer - ERROR - the flux compensator gave up",
)


@dataclass(frozen=True)
class Said:
    """What is said of a text: how bad it is, its causes, and whom it blames."""

    level: str
    causes: frozenset[tuple[str, str | None, tuple[int, ...]]] = frozenset()
    certain: bool = False
    blamed: frozenset[int] = frozenset()
    sentence: str = ""

    def is_weaker(self, other: Said) -> bool:
        return LEVELS.index(self.level) < LEVELS.index(other.level)


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold: of which text, changed how, with what was said before and after."""

    invariant: str
    name: str
    change: str
    before: str
    after: str


def texts() -> dict[str, str]:
    """The logs of tests/data by name."""
    found = {}
    for folder in ("crash_logs", "hang_logs", "nccl_logs"):
        for file in sorted((DATA / folder).rglob("*.txt")):
            if "stacks" not in file.parts:
                found[f"{folder}/{file.stem}"] = file.read_text(encoding="utf-8", errors="replace")
    for part in (DATA / "public_logs" / "logs.txt").read_text(encoding="utf-8").split("=== ")[1:]:
        head, _, text = part.partition("\n")
        found[f"public/{head.partition(' | ')[0]}"] = text
    return found


def say(text: str, folder: Path) -> Said:
    """What `traceops diagnose` says of a text."""
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8")
    try:
        diagnosis = diagnose(path)
    except InputError as error:
        return Said("nothing", sentence=str(error))
    roots = diagnosis.roots
    return Said(
        hang_level(diagnosis),
        frozenset((root.rule, root.cause, root.ranks) for root in roots),
        any(root.confidence == "high" for root in roots),
        frozenset(rank for root in roots for rank in root.ranks),
        hang_sentence(diagnosis),
    )


def speakers(text: str) -> list[int]:
    """The ranks that say lines of a text."""
    found = {int(next(filter(None, match.groups()))) for line in text.splitlines() for match in _RANK.finditer(line)}
    return sorted(found)


def of_ranks(text: str, kept: Callable[[int], bool]) -> str:
    """The lines of some ranks, and those that name none."""
    lines = []
    for line in text.splitlines(keepends=True):
        match = _RANK.search(line)
        if match is None or kept(int(next(filter(None, match.groups())))):
            lines.append(line)
    return "".join(lines)


def is_named(rank: int, text: str) -> bool:
    """Whether a line tells of this rank, by number or in a run of numbers."""
    alone = re.compile(rf"(?<![\d.]){rank}(?![\d.]\d)(?!\d)")
    for line in text.splitlines():
        if _WHERE_RANKS_ARE.search(line) is None:
            continue
        if alone.search(line) is not None:
            return True
        if any(int(low) <= rank <= int(high) for low, high in re.findall(r"(\d{1,6})-(\d{1,6})", line)):
            return True
    return False


def absences(text: str) -> Iterator[tuple[str, str]]:
    """The text with ranks left out, by change."""
    ranks = speakers(text)
    if len(ranks) > 1:
        half = len(ranks) // 2
        for what, those in (
            ("first half of the ranks", ranks[:half]),
            ("last half of the ranks", ranks[half:]),
            ("every other rank", ranks[::2]),
            ("one rank", ranks[-1:]),
        ):
            yield what, of_ranks(text, set(those).__contains__)
    lines = text.splitlines(keepends=True)
    if len(lines) > 1:
        yield "without the last line", "".join(lines[:-1])


PREFIXES: Mapping[str, Callable[[int, str], str]] = {
    "kubectl --timestamps": lambda n, line: f"2026-03-02T10:{n // 60 % 60:02}:{n % 60:02}.123456789Z {line}",
    "docker compose": lambda n, line: f"trainer-1  | {line}",
    "kubectl --prefix": lambda n, line: f"[pod/llama-worker-0/pytorch] {line}",
    "journalctl": lambda n, line: f"Mar 02 10:{n // 60 % 60:02}:{n % 60:02} gpu7 train.sh[4242]: {line}",
    "quoted in an e-mail": lambda n, line: f"> {line}",
    "indented": lambda n, line: f"    {line}",
    "numbered hosts": lambda n, line: f"gpu-node17: {line}",
    "tqdm": lambda n, line: line if line[:1].isspace() else f"  5%|5         | 20/400 [00:10<03:10,  2.00it/s]{line}",
}
_OWN_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z ", re.MULTILINE)


def prefixed(text: str) -> Iterator[tuple[str, str]]:
    """The text with something in front of each line, by change."""
    for what, put in PREFIXES.items():
        yield what, "".join(put(number, line) for number, line in enumerate(text.splitlines(keepends=True)))
    if _OWN_TIME.search(text) is not None:
        yield "without a collector's times", _OWN_TIME.sub("", text)


def troubles() -> dict[str, str]:
    """A line of trouble of each known kind, and of unknown ones."""
    found: dict[str, str] = {}
    for wording in WORDINGS:
        if not wording.by_kernel:
            found.setdefault(f"{wording.kind}", f"RuntimeError: {' 7 '.join(wording.words)}")
    return {**found, **{f"unknown {number}": line for number, line in enumerate(UNKNOWN)}}


def inserted(text: str, line: str, place: str) -> str:
    """The text with one more line."""
    own = text.splitlines(keepends=True)
    if own and not own[-1].endswith("\n"):
        own[-1] += "\n"
    at = {"first": 0, "middle": len(own) // 2, "last": len(own)}[place]
    return "".join((*own[:at], f"{line}\n", *own[at:]))


def beside(one: str, other: str) -> str:
    """Two logs as one: their lines by turns, each with its service in front."""
    lines = []
    for mine, its in zip_longest(one.splitlines(), other.splitlines()):
        lines += [f"first-1   | {mine}\n"] if mine is not None else []
        lines += [f"second-1  | {its}\n"] if its is not None else []
    return "".join(lines)


def is_sampled(name: str, change: str, share: float) -> bool:
    return zlib.crc32(f"{SEED} {name} {change}".encode()) % 10_000 < 10_000 * share


def violations(sample: int = SAMPLE) -> tuple[Counter[str], list[Violation]]:
    """How often each invariant was looked at, and where it does not hold."""
    looked: Counter[str] = Counter()
    found: list[Violation] = []

    def check(invariant: str, name: str, change: str, before: Said, after: Said, *, holds: bool) -> None:
        looked[invariant] += 1
        if not holds:
            found.append(Violation(invariant, name, change, before.sentence[:200], after.sentence[:200]))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        given = texts()
        as_is = {name: say(text, folder) for name, text in given.items()}
        for name, text in given.items():
            before = as_is[name]
            check("no accusation by absence", name, "as it is", before, before, holds=_all_named(before, text))
            for change, changed in absences(text):
                after = say(changed, folder)
                check("no accusation by absence", name, change, before, after, holds=_all_named(after, changed))
            for change, changed in prefixed(text):
                after = say(changed, folder)
                same = after.causes == before.causes and after.level == before.level
                check("same cause behind prefixes", name, change, before, after, holds=same)
        lines = troubles()
        share = sample / (len(PLACES) * len(given) * len(lines))
        for name, text in given.items():
            before = as_is[name]
            for kind, line in lines.items():
                for place in PLACES:
                    change = f"{kind} {place}"
                    if not kind.startswith("unknown") and not is_sampled(name, change, share):
                        continue
                    after = say(inserted(text, line, place), folder)
                    weaker = after.is_weaker(before)
                    check("no weaker verdict", name, change, before, after, holds=not weaker)
                    if place == "last":
                        if before.certain:
                            kept = not before.causes.isdisjoint(after.causes)
                            check("a certain cause stays one", name, change, before, after, holds=kept)
                        noticed = after.level in ("warning", "error")
                        check("trouble is noticed", name, change, before, after, holds=noticed)
        names = list(given)
        for number, name in enumerate(names):
            other = names[(7 * number + 3) % len(names)]
            after = say(beside(given[name], given[other]), folder)
            worst = max((as_is[name], as_is[other]), key=lambda said: LEVELS.index(said.level))
            check("no weaker verdict beside another log", name, other, worst, after, holds=not after.is_weaker(worst))
    return looked, found


def _all_named(said: Said, text: str) -> bool:
    return all(is_named(rank, text) for rank in said.blamed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="logs with one more line of trouble (about)")
    parser.add_argument("--list", action="store_true", help="print each violation")
    args = parser.parse_args()
    looked, found = violations(args.sample)
    counts = Counter(one.invariant for one in found)
    for invariant, number in looked.items():
        print(f"{counts[invariant]:5} of {number:5}  {invariant}")
    for one in found if args.list else ():
        print(f"\n{one.invariant}: {one.name}, {one.change}\n  before: {one.before}\n  after:  {one.after}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
