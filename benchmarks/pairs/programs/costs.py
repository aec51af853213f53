"""A program's own clock of what it calls a trouble: `with costs("tokenize"): …`; written at the end beside the steps.

PAIRS_PHASES="tokens=0;save=0" runs each combination of these troubles for 20 steps in one process, so that the step
with either cured is measured under the same load: none, the first, the second, both.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PHASE = 20
CURED = dict(one.split("=") for one in os.environ.get("PAIRS_PHASES", "").split(";") if one)
SPENT: dict[str, list[float]] = defaultdict(list)
ENDS: list[float] = []


def now(given: Any, name: str) -> Any:
    """The option's value in this phase."""
    value, names = getattr(given, name), list(CURED)
    if name in names and not (len(ENDS) // PHASE >> names.index(name)) & 1:
        return type(value)(CURED[name])
    return value


def next_step() -> None:
    ENDS.append(time.perf_counter())


@contextlib.contextmanager
def costs(name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    SPENT[name].append(time.perf_counter() - began)


def _write() -> None:
    if ENDS and "PAIRS_CLOCK" in os.environ:
        folder = Path(os.environ["PAIRS_CLOCK"])
        folder.mkdir(parents=True, exist_ok=True)
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
        (folder / f"costs.{rank}.json").write_text(json.dumps({"spent": SPENT, "ends": ENDS}))


atexit.register(_write)
