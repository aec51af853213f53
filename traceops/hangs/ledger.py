"""The ledger of ranks: how many the job has and who says so, and whether a rank that left nothing can be blamed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.hangs.evidence import HangEvidence, LogEvent, is_borne_out
from traceops.hangs.readers.whole_lines import edge_blocks
from traceops.traces.run_manifest import MOST_RANKS
from traceops.traces.text_lines import holds_any

_SHOWN = 4
_MOST_CLAIMS = 64  # of one log: each rank says it
# run: run.json or a rank's own groups. members: a process group's list. log: a line that counts the ranks.
# sizes: what an all-gather or reduce-scatter makes of its input. seen: the highest rank that anything names.
WorldSource = Literal["run", "members", "log", "sizes", "seen"]
_MOST_TRUSTED: tuple[WorldSource, ...] = ("run", "members", "log", "sizes", "seen")

# What names the ranks of a job: torch, NCCL, Lightning, vLLM, DeepSpeed, the environment.
_COUNTED = re.compile(
    rb"\b(?:global_|dist_)?(?:world[_ ]?size|WORLD_SIZE|num_processes|n_?[rR]anks)[\"']?"
    rb"(?: is)? ?[=: ] ?[\"']?(\d{1,7})\b"
    rb"|\bMEMBER: \d{1,7}/(\d{1,7})\b|\bStarting with (\d{1,7}) processes\b"
    rb"|store[- ]based barrier\b[^\n]{0,120}? with (\d{1,7}) nodes\b"
    rb"|\brank \d{1,7} ?(?:/|out of|of) ?(\d{1,7})\b(?! ?[/.])"
)
_PER_NODE = re.compile(rb"--nproc[_-]per[_-]node[= ](\d{1,5})\b")
_NODES = re.compile(rb"--nnodes[= ](\d{1,5})\b(?!:)")
_NEEDLES = (b"size", b"SIZE", b"anks", b"MEMBER", b"processes", b" nodes", b"per_node", b"per-node", b"rank ")
_GATHERS = ("all_gather", "_all_gather_base", "all_gather_into_tensor")
_SCATTERS = ("reduce_scatter", "_reduce_scatter_base")


class World(Struct, frozen=True):
    """The number of ranks, and what tells it."""

    size: int
    source: WorldSource


def world_of(told: Iterable[World], own: Collection[int], named: Collection[int]) -> World | None:
    """The ranks of the job; None where nothing tells how many.

    told: what manifests, groups and logs say. own: ranks that left files; named: those in logs. Without a size that is
    told, the highest rank tells it only where enough of those below are known too. What says least may be of a smaller
    group, so the largest counts.
    """
    claims = [claim for claim in told if 0 < claim.size <= MOST_RANKS]
    own, named = ({rank for rank in ranks if 0 <= rank < MOST_RANKS} for ranks in (own, named))
    ranks = sorted(own | named)
    dense = 0
    for count, rank in enumerate(ranks, 1):
        if not is_borne_out(rank + 1, count):
            break
        dense = rank + 1
    if claims:
        largest = max(claims, key=lambda claim: (claim.size, -_MOST_TRUSTED.index(claim.source)))
        world = largest if largest.size >= dense else World(dense, "seen")
        return None if any(rank >= world.size for rank in own) else world
    return World(dense, "seen") if ranks and dense == ranks[-1] + 1 else None


def worlds_in_logs(texts: Iterable[Path], events: Sequence[LogEvent]) -> list[World]:
    """What lines of logs say of the number of ranks, and what the sizes of a collective say of its group.

    Raises InputError where a file cannot be read.
    """
    found = [World(size, "sizes") for event in events if (size := _of_sizes(event)) is not None]
    for path in texts:
        sizes: set[int] = set()
        per_node, nodes = 0, 1
        for _, block in edge_blocks(str(path)):
            if len(sizes) > _MOST_CLAIMS or not holds_any(block, _NEEDLES):
                continue
            sizes.update(int(match[match.lastindex or 1]) for match in _COUNTED.finditer(block))
            per_node = max([per_node, *map(int, _PER_NODE.findall(block))])
            nodes = max([nodes, *map(int, _NODES.findall(block))])
        found += [World(size, "log") for size in (*sizes, per_node * nodes) if size > 0]
    return found


def _of_sizes(event: LogEvent) -> int | None:
    """How many ranks a gather or scatter has, from its elements in and out."""
    sent, received = event.elements_in, event.elements_out
    if event.kind != "timeout" or not sent or not received:
        return None
    one, all_of = (sent, received) if event.op in _GATHERS else (received, sent)
    if event.op not in (*_GATHERS, *_SCATTERS) or all_of % one or all_of == one:
        return None
    return all_of // one


def can_blame(evidence: HangEvidence) -> set[int]:
    """Ranks whose silence in what was read tells something: others left what these did not, and nobody left it out.

    Everybody else in a job may be on another host whose files nobody brought. So a silent rank counts where the
    collection is known to be whole: traceops' own run folder, a file of all other ranks, or a log in which every rank
    says something.
    """
    everybody = set(evidence.everybody)
    known = {*evidence.records, *evidence.stacks, *evidence.processes}
    heard = {rank for event in evidence.log for rank in (event.rank, *event.accused) if rank is not None}
    if evidence.is_own_run:
        return everybody
    filed = {rank for rank, record in evidence.records.items() if record.source != "log"}
    filed |= {*evidence.stacks, *evidence.rank_files}
    silent = everybody - filed
    if len(filed) > 1 and len(silent) <= max(1, len(filed) // 4):
        return everybody
    seen_elsewhere = {*evidence.stacks, *evidence.processes}
    return everybody if everybody <= known | heard else seen_elsewhere


def within_world(events: Sequence[LogEvent], world: int) -> tuple[tuple[LogEvent, ...], list[tuple[str, str]]]:
    """The events without ranks that the job does not have, and (file, what was left out of it)."""
    kept: list[LogEvent] = []
    strange: dict[str, tuple[int, set[int]]] = {}
    for event in events:
        outside = {rank for rank in (*event.accused, event.rank) if rank is not None and rank >= world}
        if outside:
            strange.setdefault(event.path, (event.line, set()))[1].update(outside)
            own = None if event.rank in outside else event.rank
            accused = tuple(rank for rank in event.accused if rank not in outside)
            event = replace(event, rank=own, accused=accused)
        kept.append(event)
    problems = [(path, _left_out(line, sorted(ranks), world)) for path, (line, ranks) in strange.items()]
    return tuple(kept), problems


def _left_out(line: int, ranks: Sequence[int], world: int) -> str:
    listed = ", ".join(map(str, ranks[:_SHOWN])) + (f" … ({len(ranks)} in all)" if len(ranks) > _SHOWN else "")
    which = f"rank {listed}, which is not one" if len(ranks) == 1 else f"ranks {listed}, which are not"
    return f"it names {which} of the job's {world} ranks (from line {line}); that is left out"
