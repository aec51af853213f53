"""Holds what `traceops analyze` says of the traces of run.sh to what is true of them.

    python -m benchmarks.gpu_ranks.score FOLDER        # has traces/NAME/ and truths.NAME.RANK.json, as ranks.tar does

Exits 1 where something false is said or a trouble that costs something is not named. Sentences were read by eye too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu_ranks.truth import EXPECTED, set_aside


def main(folder: Path) -> int:
    """A row of each program: measured without a profiler, without its troubles, what is said, and what is wrong."""
    wrong = 0
    print("| traces | true | step, ms | without its troubles | said first | |\n|---|---|--:|--:|---|---|")
    for name, expected in EXPECTED.items():
        if not (folder / "traces" / name).is_dir():
            continue
        told = json.loads((folder / f"truths.{name}.0.json").read_text())
        command = ["-m", "traceops", "analyze", str(folder / "traces" / name), "-o", str(folder / "said" / name)]
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True, text=True, check=False,
            env={**os.environ, "TRACEOPS_CACHE": "off", "NO_COLOR": "1", "COLUMNS": "160"},
        )  # fmt: skip
        said = " ".join(done.stdout.split())
        opened = re.search(r"[✖▲●✔]", said)
        found = said[opened.start() :] if opened else said
        false = expected.never and re.search(expected.never, found)
        missed = [due for due in expected.due if not re.search(due, found)]
        wrong += bool(false or missed)
        mark = f"**says {false[0]!r}**" if false else f"**misses {missed[0]!r}**" if missed else "right"
        cured = told.get("cured", {}).get("step_ms")
        half = " (set aside)" if set_aside(name) else ""
        cells = (
            name + half,
            expected.truth,
            f"{told['step_ms']:.1f}",
            f"{cured:.1f}" if cured else "–",
            found[:110],
            mark,
        )
        print("| " + " | ".join(cells) + " |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
