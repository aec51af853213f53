"""Diagnoses made by hand for the renderers' tests: the usual hangs, and many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from traceops.hangs.evidence import (
    Frame,
    GroupStatus,
    HangEvidence,
    LogEvent,
    Operation,
    RankProcess,
    RankRecord,
    RankStacks,
    RecordedGroup,
    Stall,
    ThreadStack,
)
from traceops.hangs.json_types import RankState, RankStatus
from traceops.hangs.model import Diagnosis, Root, RootFacts, RootKind, Wait, WaitReason

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\x1b[31m'\"&<b>"
LOADING = "sleeping in load_batch (data.py:31)"


def row(rank: int, state: RankState, **known: Any) -> RankStatus:
    """The status of a rank; what is not given is not known."""
    return RankStatus(**{"rank": rank, "state": state, "pending": 0, "sources": ("flight recorder",), **known})


def waiting(
    rank: int, on: Sequence[int], group: str, sequence: int = 64, state: RankState = "waiting", **known: Any
) -> RankStatus:
    """The status of a rank that waits in an all_reduce of 4.2 MB."""
    common = {"op": "all_reduce", "op_state": "started", "bytes": 4_194_304, "where": "train.py:128"}
    return row(rank, state, **{**common, "group": group, "sequence": sequence, "waits_for": tuple(on),
                               "pending": 1, "step": 12, **known})  # fmt: skip


def edges(rows: Sequence[RankStatus], reason: WaitReason = "not_called") -> tuple[Wait, ...]:
    """The waits that rows tell of."""
    return tuple(Wait(row.rank, on, reason, row.group, row.op, row.sequence) for row in rows for on in row.waits_for)


def evidence(ranks: int, **known: Any) -> HangEvidence:
    """Evidence with a dump of each rank and nothing else."""
    group = RecordedGroup("0", "default_pg", tuple(range(ranks)))
    operation = Operation(64, "0", "all_reduce", 64, sizes_in=((1048576,),), dtypes_in=("Float",))
    records = {
        rank: RankRecord(
            rank, f"run/evidence/dump_{rank}", {"0": group}, (operation,), {"0": GroupStatus(enqueued=64, completed=63)}
        )
        for rank in range(ranks)
    }
    files = tuple(record.path for record in records.values())
    defaults: dict[str, Any] = {
        "root": "run", "name": "hang", "world_size": ranks, "records": records, "stacks": {}, "processes": {},
        "files": files,
    }  # fmt: skip
    return HangEvidence(**{**defaults, **known})


def skipped(ranks: int = 4, culprit: int = 3, text: str = "") -> Diagnosis:
    """DDP: `culprit` never enters an all_reduce that all the others wait in."""
    others = tuple(rank for rank in range(ranks) if rank != culprit)
    rows = [waiting(rank, [culprit], f"default_pg{text}") for rank in others]
    rows.append(row(culprit, "root", step=12, doing=LOADING + text, host=f"node{text}"))
    frames = (Frame("sleep", f"lib{text}.py", 9), Frame("load_batch", "data.py", 31), Frame("main", "train.py", 120))
    stacks = {culprit: RankStacks(culprit, "run/evidence/stack", (ThreadStack(True, frames, f"Main{text}"),))}
    root = Root(
        rule="TO-H001",
        kind=RootKind.NEVER_CALLED,
        ranks=(culprit,),
        confidence="high",
        facts=RootFacts(shape=f"1048576 Float{text}"),
        waiting=others,
        cause="host",
        group="default_pg",
        group_ranks=tuple(range(ranks)),
        op="all_reduce",
        sequence=64,
        bytes=4_194_304,
        where="train.py:128",
        doing=LOADING,
        evidence=(
            (f"last enqueued by rank {culprit}", f"#63 of default_pg{text}"),
            ("stack of the main thread", "sleep (lib.py:9) < load_batch (data.py:31) < main (train.py:120)"),
        ),
    )
    stall = Stall("step", 42.4, 30.0, 1_700_000_000_000_000_000, f"node{text}")
    return Diagnosis(
        evidence=evidence(
            ranks,
            stacks=stacks,
            stall=stall,
            name=f"hang{text}",
            processes={culprit: RankProcess(culprit, "node", 77, "S", 12)},
            problems=((f"run/evidence/dump_x{text}", f"it is empty{text}"),),
        ),
        roots=(root,),
        ranks=tuple(sorted(rows, key=lambda row: row.rank)),
        notes=(f"a note{text}",),
        waits=edges(rows),
        not_evaluated={"TO-H005": f"steps had been finished{text}"},
    )


def two_roots() -> Diagnosis:
    """16 ranks, a pipeline of two stages with four replica groups: ranks 5 and 14 hold up two chains."""
    rows = [
        *(waiting(rank, [5], "replicate_1", 31) for rank in (1, 9, 13)),
        row(5, "root", step=7, doing="in forward (model.py:77)"),
        *(waiting(rank, [rank + 1], "pp", 12, op="recv", where="pipe.py:40") for rank in (0, 4, 8, 12)),
        *(waiting(rank, [14], "replicate_2", 31) for rank in (2, 6, 10)),
        row(14, "dead", exit_code=137, step=7),
        *(waiting(rank, [rank - 1], "pp", 13, op="recv", where="pipe.py:52") for rank in (3, 7, 11, 15)),
    ]
    roots = (
        Root("TO-H004", RootKind.DIED, (14,), "high", RootFacts(how="killed by SIGKILL (exit code 137)", end="killed"),
             waiting=(2, 3, 6, 7, 10, 11, 15), op="all_reduce", sequence=31, group="replicate_2",
             evidence=(("exit code of rank 14", "137 (SIGKILL)"),)),
        Root("TO-H001", RootKind.NEVER_CALLED, (5,), "medium",
             waiting=(0, 1, 4, 8, 9, 12, 13), cause="host", op="all_reduce", sequence=31, group="replicate_1",
             group_ranks=(1, 5, 9, 13), doing="in forward (model.py:77)",
             evidence=(("last enqueued by rank 5", "#30 of replicate_1"),)),
    )  # fmt: skip
    ordered = tuple(sorted(rows, key=lambda row: row.rank))
    return Diagnosis(evidence(16), roots, ordered, edges(ordered))


def mismatch() -> Diagnosis:
    """4 ranks, of which rank 2 calls an all_gather where the others call an all_reduce."""
    rows = [waiting(rank, [2], "default_pg") for rank in (0, 1, 3)]
    rows.append(waiting(2, [0, 1, 3], "default_pg", op="_all_gather_base", state="root", where="eval.py:9"))
    sides = ("rank 2 called _all_gather_base in eval.py:9", "ranks 0–1, 3 called all_reduce in train.py:128")
    root = Root("TO-H002", RootKind.DIFFERENT, (2,), "high", RootFacts(sides=sides, decided=True),
                waiting=(0, 1, 3), group="default_pg", op="_all_gather_base", sequence=64,
                where="eval.py:9", evidence=(("operation #64 of rank 2", "_all_gather_base"),
                                             ("operation #64 of ranks 0, 1, 3", "all_reduce")))  # fmt: skip
    ordered = tuple(sorted(rows, key=lambda row: row.rank))
    return Diagnosis(evidence(4), (root,), ordered, edges(ordered))


def dead_with_log() -> Diagnosis:
    """A log alone says that rank 3 exited with 17; nothing is known of the others."""
    rows = [row(rank, "absent", sources=()) for rank in range(3)]
    rows.append(row(3, "dead", exit_code=17, sources=("log",)))
    root = Root("TO-H004", RootKind.DIED, (3,), "medium", RootFacts(how="it ended with exit code 17", end="it ended"),
                evidence=(("log.txt:12", "failed (exitcode: 17) local_rank: 3"),))  # fmt: skip
    event = LogEvent("exit", None, "log.txt", 12, "failed (exitcode: 17)", accused=(3,), exit_code=17)
    held = evidence(4, records={}, log=(event,), files=("log.txt",))
    return Diagnosis(held, (root,), tuple(rows), (), {"TO-H006": "there is no flight-recorder dump"})


def nobody_waits(ranks: int = 4, dumps: int = 4) -> Diagnosis:
    """Dumps of `dumps` of `ranks` ranks, without a pending operation."""
    held = evidence(ranks)
    records = {rank: record for rank, record in held.records.items() if rank < dumps}
    rows = [row(rank, "idle" if rank in records else "absent", sources=("flight recorder",) if rank in records else ())
            for rank in range(ranks)]  # fmt: skip
    files = tuple(record.path for record in records.values())
    return Diagnosis(evidence(ranks, records=records, files=files), (), tuple(rows), (),
                     {"TO-H001": "no rank waits in a collective"})  # fmt: skip


def many(ranks: int = 512, group_size: int = 8) -> Diagnosis:
    """HSDP on many ranks: the last rank of one shard group stalls, the replicas of its group wait, all others too."""
    culprit = group_size * 3 + 5
    own = culprit % group_size
    rows = []
    for rank in range(ranks):
        shard, replica = rank // group_size, rank % group_size
        if rank == culprit:
            rows.append(row(rank, "root", step=40, doing="in save (checkpoint.py:88)"))
        elif replica == own:
            rows.append(waiting(rank, [culprit], f"replicate_{replica}", 900))
        else:
            peer = shard * group_size + own
            rows.append(waiting(rank, [peer], f"shard_{shard}", 1801, op="_all_gather_base", where="fsdp.py:12"))
    waits = tuple(rank for rank in range(ranks) if rank != culprit)
    root = Root("TO-H001", RootKind.NEVER_CALLED, (culprit,), "high",
                waiting=waits, cause="host", group=f"replicate_{own}", op="all_reduce", sequence=900,
                doing="in save (checkpoint.py:88)", evidence=(("last enqueued by it", "#899"),))  # fmt: skip
    return Diagnosis(evidence(ranks), (root,), tuple(rows), edges(rows))
