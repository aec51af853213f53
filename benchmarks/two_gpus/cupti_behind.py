"""Behind a window: the same loop's step before any window and after one, as by default and with detach, in turn.

python cupti_behind.py host|device SECONDS
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cupti_common import CUDA, program, say, sync, window

from traceops.capture.light.cupti import Cupti

_ROUNDS = 8
# What cleans up between two is a window with detach; the first round shows whether it does.
_ORDER = (
    "torch detach", "torch today", "torch detach", "light today",
    "light detach", "both detach", "both today", "both detach",
)  # fmt: skip


def light_alone(step: Callable[[], None], *, detach: bool) -> dict[str, Any]:
    source = Cupti(detach=detach)
    refused = source.start()
    if refused is not None:
        return {"refused": refused}
    for _ in range(6):
        step()
    sync()
    found = source.stop()
    return {
        "rows": found if isinstance(found, str) else len(found.rows) // 40,
        "bad": [call for call in source.calls if call[2] != 0], "end": source.calls[-4:],
    }  # fmt: skip


def main() -> None:
    kind, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
    step, _ = program(kind)
    steps = {"host": 250, "device": 35}[kind] if CUDA else 50

    def block() -> float:
        """Mean step in ms, after some that settle."""
        for _ in range(steps // 5):
            step()
        sync()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        sync()
        return 1e3 * (time.perf_counter() - began) / steps

    def behind(name: str) -> dict[str, Any]:
        which, how = name.split()
        detach = how == "detach"
        if which == "light":
            return light_alone(step, detach=detach)
        return window(step, name.replace(" ", "-"), detach=detach, light=which == "both")

    for _ in range(3):
        block()
    first = [block() for _ in range(5)]
    before = float(np.median(first))
    say(part="behind", kind=kind, state="before any", ms=[round(one, 4) for one in first])
    order = [name for name in _ORDER if CUDA or not name.startswith("light")]
    found: dict[str, list[float]] = {name: [] for name in order}
    for number in range(_ROUNDS):
        for name in order:
            if time.monotonic() > end:
                break
            told = behind(name)
            ms = block()
            found[name].append(ms)
            if number < 2 or told.get("failure") or told.get("why_not"):
                ratio = round(ms / before, 4)
                say(
                    part="behind",
                    kind=kind,
                    round=number,
                    after=name,
                    ms=round(ms, 4),
                    ratio=ratio,
                    told=told,
                )
    for name, values in found.items():
        if not values:
            continue
        ratios = np.array(values) / before
        drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
        low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
        said = [round(float(one), 4) for one in (np.median(ratios), low, high)]
        say(part="behind", kind=kind, summary=name, n=len(values), before_ms=round(before, 4), ratio=said)


if __name__ == "__main__":
    main()
