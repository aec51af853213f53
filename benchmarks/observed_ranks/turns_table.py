"""What `turns` measured, and what `traceops analyze` says of it.

    python -m benchmarks.observed_ranks.turns_table DIR [--one-rank | --pairs]

DIR/said/NAME.traced0/ has the report of each.

A job's step is the median over its blocks of their mean steps: without the outer tenths, from the fourth step of a turn
on (loaders got ahead while the job stood), over all ranks. The first block, in which traceops records, does not count,
nor what CUPTI recorded. Ratios are of blocks of the same round, their median and range: of both jobs without traceops,
which is what two processes differ by, and of each job under traceops to both of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.observed.table import HEAD, row
from benchmarks.observed.truth import is_plain, read_truth
from benchmarks.observed_ranks.turns import ONE_RANK, RANKS, Turn, folder_of
from benchmarks.two_gpus.on_pairs_registry import PROGRAMS

_CAUGHT_UP = 3  # steps of a turn until loaders are no longer ahead
_FIRST = 1  # round that counts, from 0 on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--one-rank", action="store_true")
    parser.add_argument("--pairs", action="store_true", help="the programs of two_gpus.on_pairs")
    args = parser.parse_args()
    print(
        f"| program | by itself ÷ itself | under traceops, ms | ÷ by itself {HEAD.removeprefix('| program ')}\n"
        f"|---|--:|--:|--:|{'--:|' * (HEAD.count('|') - 2)}"
    )
    for turn in ONE_RANK if args.one_rank else PROGRAMS if args.pairs else RANKS:
        if (folder_of(turn, "alone0", args.folder) / "clock").is_dir():
            print(turn_row(turn, args.folder))


def turn_row(turn: Turn, folder: Path) -> str:
    """One program's: how jobs differ, then the cells of `benchmarks.observed.table`."""
    jobs = {job: blocks_of(folder_of(turn, job, folder) / "clock") for job in turn.jobs}
    alone, traced = (
        [blocks for job, blocks in jobs.items() if job.startswith(how) and blocks] for how in ("alone", "traced")
    )
    under = [one for blocks in traced for other in alone for one in ratios(blocks, other)]
    cells = [
        turn.name,
        spread(ratios(alone[1], alone[0])) if len(alone) > 1 else "",
        "–".join(f"{step_of(blocks):.1f}" for blocks in traced),
        spread(under) if under else "",
    ]
    told = row(turn.name, result(turn, folder)).removeprefix(f"| {turn.name} | ")
    return f"| {' | '.join(cells)} | {told}"


def blocks_of(clock: Path) -> list[float]:
    """ms a step in each round: of all ranks together."""
    ranks = [json.loads(path.read_text()) for path in sorted(clock.glob("rank_*.json"))]
    return [statistics.mean(each) for each in zip(*(_blocks(told) for told in ranks), strict=True)]


def _blocks(told: dict[str, Any]) -> list[float]:
    block, rounds, _late = told["turns"]
    steps: list[float] = told["device_ms"] or told["host_ms"]
    found = []
    for number in range(rounds):
        begin = 1 + number * block
        usual = [
            ms for at, ms in enumerate(steps, 2) if begin + _CAUGHT_UP < at <= begin + block and is_plain(told, at)
        ]
        found.append(trimmed(usual))
    return found


def trimmed(steps: list[float]) -> float:
    """Mean without the outer tenths."""
    cut = len(steps) // 10
    return statistics.mean(sorted(steps)[cut : len(steps) - cut])


def step_of(blocks: list[float]) -> float:
    """ms"""
    return statistics.median(blocks[_FIRST:])


def ratios(blocks: list[float], others: list[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(blocks[_FIRST:], others[_FIRST:], strict=True)]


def spread(values: list[float]) -> str:
    """'1.01 (0.98 to 1.04)'"""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def result(turn: Turn, folder: Path) -> dict[str, Any]:
    """As `benchmarks.observed.table` wants it, with steps by blocks."""
    found: dict[str, Any] = {}
    for run, job in (("alone", "alone0"), ("again", "alone1"), ("traced", "traced0")):
        clock = folder_of(turn, job, folder) / "clock"
        truth = read_truth(clock)
        if truth is not None:
            found[run] = {"clock": truth.to_json() | {"step_ms": step_of(blocks_of(clock))}}
    report = folder / "said" / folder_of(turn, "traced0", folder).name / "report.json"
    if report.exists() and "traced" in found:
        told = json.loads(report.read_text())
        found["traced"]["said"] = {
            "undisturbed": told.get("undisturbed"),
            "typical_ms": (told.get("whole_run") or {}).get("typical_ms"),
            "findings": [f"{one['rule']} {one['severity']}: {one['message']}" for one in told["findings"]],
        }
    return found


if __name__ == "__main__":
    main()
