"""The cases of `benchmarks.harm`: TOML files in cases/, whose fields README.md describes."""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "cases"
RANDOM = "random"  # the file of cases that are drawn
_PROGRAMS = "programs and ways to start"
_KIND_OF_FILE = {"signals": "aimed signals", RANDOM: "signals at random moments", "faults": "faults"}
KINDS = (_PROGRAMS, *_KIND_OF_FILE.values())


@dataclass(frozen=True)
class Case:
    """A program, how it is started, and what happens to it; README.md has the fields."""

    name: str
    main: str = ""
    begins: str = ""
    way: str = "capture"
    start: str = "main.py"
    words: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    before: str = ""
    during: str = ""
    signal: str = ""
    after_s: float = 0.0
    settle_s: float = 0.0
    own_mounts: bool = False
    any_moment: bool = False
    ignore: tuple[str, ...] = ()
    listed: str = ""
    file: str = ""  # it stands in

    @property
    def kind(self) -> str:
        """Of KINDS."""
        return _KIND_OF_FILE.get(self.file, _PROGRAMS)

    @property
    def signal_number(self) -> int:
        """What `signal` stands for: `SIGTERM`, or `SIGRTMIN+3`."""
        name, _, more = self.signal.partition("+")
        return int(getattr(signal, name)) + int(more or 0)


def read_toml(path: Path) -> dict[str, Any]:
    """What the file holds."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    table: dict[str, Any] = tomllib.loads(path.read_text())
    return table


def load() -> list[Case]:
    """All cases, in the order of the files' names.

    Raises ValueError for a field or a beginning that does not exist, and for a name that two cases have.
    """
    cases: dict[str, Case] = {}
    tables = {path.name: read_toml(path) for path in sorted(HERE.glob("*.toml"))}
    begins = {name: text for table in tables.values() for name, text in table.get("begins", {}).items()}
    known = {one.name for one in fields(Case)}
    for file, table in tables.items():
        for row in table.get("case", ()):
            unknown = (row.keys() - known) | set(row.get("begins", "").split()) - begins.keys()
            if unknown:
                raise ValueError(f"{file}: {row.get('name')}: unknown: {', '.join(sorted(unknown))}")
            row["file"] = file.removesuffix(".toml")
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
            case = Case(**values)
            before = "".join(begins[name] for name in case.begins.split())
            case = replace(case, main=before + case.main)
            if case.name in cases:
                raise ValueError(f"{file}: two cases are called {case.name!r}")
            cases[case.name] = case
    return list(cases.values())


def at_random_moments(cases: list[Case], count: int, seed: int) -> Iterator[Case]:
    """Cases that allow any moment, drawn with one moment each, up to 3 s after the program is ready."""
    rng = random.Random(seed)
    for number, case in enumerate(rng.choices([one for one in cases if one.any_moment], k=count)):
        after_s = round(rng.uniform(0, 3), 3)
        yield replace(case, name=f"random {number}: {case.name}, {after_s} s", after_s=after_s, file=RANDOM)
