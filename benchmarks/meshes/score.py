"""Analyses the runs that train.py --seeds made, and says of each whether rank, role and cause are right.

python -m benchmarks.meshes.score /tmp/score

On cores that other programs share, the rank with the fault need not be the latest one. So it also says whether the rank
that is named is the one whose thread ran and queued for a core longest, as Linux counted it.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from traceops.core.words import Role
from traceops.pipeline.analyze import analyze
from traceops.report.model import Report


def judged(report: Report, truth: dict[str, Any]) -> tuple[bool, bool, bool, str]:
    """Whether the first finding of a late rank has the planted rank, its role and the cause; and what it says.

    On a CPU more to compute is the host's. In a pipeline the rank has to be told from its stage: the same one of the
    other pipeline is not slow, so no block is to move.
    """
    late = [f for f in report.findings if f.rule in ("TO-S001", "TO-B001")]
    late.sort(key=lambda f: -(f.impact_ms or 0.0))
    if not late:
        return False, False, False, "none"
    worst = late[0]
    rank = worst.ranks == (truth["rank"],)
    cause = worst.cause == "host" and "move about" not in worst.message
    return (
        rank,
        _role(report, truth),
        cause,
        f"{worst.rule} {worst.severity} rank {','.join(map(str, worst.ranks))} {worst.cause}",
    )


def _role(report: Report, truth: dict[str, Any]) -> bool:
    """Whether both dimensions of the mesh are told for what they are, and the one that waits waits for this rank."""
    axis: dict[str, Role] = {"pytorch_tp": "tensor", "pytorch_pp": "pipeline", "expert_parallel": "expert"}
    rows = {row.role: row for row in report.roles}
    own = rows.get(axis[truth["definition"]["strategy"]])
    return own is not None and "data" in rows and "unknown" not in rows and own.waits_for_rank == truth["rank"]


def latest(truth: dict[str, Any]) -> int | None:
    """The rank whose thread ran and queued for a core longest in the recorded steps; None where nobody counted."""
    own = [ran + queued for ran, queued in zip(truth.get("ran_ms", ()), truth.get("queued_ms", ()), strict=True)]
    return own.index(max(own)) if own else None


def main() -> int:
    folder = Path(sys.argv[1])
    count: Counter[tuple[str, str]] = Counter()
    for path in sorted(folder.glob("*/truth.json")):
        truth = json.loads(path.read_text())
        report = analyze(path.parent)
        assert report.summary.matching is not None
        rank, role, cause, said = judged(report, truth)
        name, by_linux = truth["case"], latest(truth)
        for what, right in (
            ("rank", rank),
            ("role", role),
            ("cause", cause),
            ("all", rank and role and cause),
            ("latest", by_linux is not None and f" rank {by_linux} " in said),
            ("runs", True),
        ):
            count[name, what] += right
        matched = report.summary.matching.matched_pct
        print(
            f"{path.parent.name}: rank {truth['rank']}, latest by Linux {by_linux}; {said}; {rank} {role} {cause}; "
            f"matched {matched} %",
            flush=True,
        )
    for name in sorted({name for name, _ in count}):
        print(
            f"| {name} | "
            + " | ".join(str(count[name, what]) for what in ("runs", "rank", "role", "cause", "all", "latest"))
            + " |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
