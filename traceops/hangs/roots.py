"""The ranks at the ends of the wait-for graph, the first call that ranks made differently, and what it carries."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.core.findings import Confidence
from traceops.core.rank_text import who
from traceops.hangs import words
from traceops.hangs.evidence import HangEvidence, Operation, Shards, Trained
from traceops.hangs.json_types import Carried
from traceops.hangs.model import Root, RootFacts, RootKind
from traceops.hangs.positions import (
    Call,
    Positions,
    ProcessGroup,
    RankPosition,
    by_signature,
    code_place,
    describe,
    message_bytes,
    shape_text,
    signature,
)
from traceops.hangs.waits import Waits, cycles

HOST, MISMATCH, GPU, DIED, START, NETWORK = (
    "TO-H001", "TO-H002", "TO-H003", "TO-H004", "TO-H005", "TO-H006",
)  # fmt: skip


def _wanted(ranks: Positions, waits: Waits, explained: Collection[int]) -> tuple[dict[int, list[Call]], set[int]]:
    """What others wait in for each rank that waits for nobody, and those that certainly did not call it."""
    wanted: dict[int, list[Call]] = defaultdict(list)
    sure: set[int] = set()
    for wait in waits.edges:
        position, head = ranks.get(wait.on), ranks[wait.rank].head
        elsewhere = position is not None and position.head is None and wait.on not in explained
        if elsewhere and head is not None and wait.reason in ("not_called", "not_recorded"):
            wanted[wait.on].append(head)
            sure |= {wait.on} if wait.reason == "not_called" else set()
    return wanted, sure


def not_called(
    ranks: Positions, waits: Waits, explained: Collection[int], inside: Collection[int], away: Collection[int]
) -> list[Root]:
    """Ranks that wait for nobody and never called what others wait in: their hosts are elsewhere. inside: ranks whose
    stack shows them waiting for others, in something that no record holds: they are no root where the stack of another
    shows its host elsewhere (away)."""
    wanted, sure = _wanted(ranks, waits, explained)
    by_call: dict[tuple[ProcessGroup, int, str], list[int]] = defaultdict(list)
    for rank, calls in wanted.items():
        most, _ = Counter((call.group, call.op.sequence, call.op.op) for call in calls).most_common(1)[0]
        by_call[most].append(rank)
    roots = []
    for key, found in by_call.items():
        members = [rank for rank in found if rank not in inside] if set(found) & set(away) else found
        call = next(c for c in wanted[members[0]] if (c.group, c.op.sequence, c.op.op) == key)
        hidden = tuple(rank for rank in members if ranks[rank].record.hides_messages and rank not in away)
        certain = sure >= set(members)
        last = {rank: ranks[rank].enqueued.get(call.group) for rank in sorted(members)[:8] if not call.op.is_p2p}
        root = Root(
            **about(call),
            rule=HOST,
            kind=RootKind.NEVER_CALLED,
            ranks=tuple(sorted(members)),
            confidence=how_sure(call.group, ranks) if certain and not hidden else "low",
            facts=RootFacts(shape=shape_text(call.op), perhaps=not certain, hidden=hidden),
            waiting=waits.waiting_for(members),
            cause="host",
            evidence=tuple(
                (reason("hangs", "last_enqueued", group=call.group.label, rank=rank), str(number))
                for rank, number in last.items()
                if number is not None
            ),
        )
        roots.append(root)
    return roots


def how_sure(group: ProcessGroup, ranks: Positions) -> Confidence:
    """Where nothing tells a group's members, one name may stand for several groups."""
    return "low" if group.ranks is None else "high" if all_known(group, ranks) else "medium"


def circles(ranks: Positions, waits: Waits, explained: Collection[int], away: Collection[int]) -> list[Root]:
    """Ranks that wait for each other: they called the same operations in a different order. away: ranks whose stack
    shows their host elsewhere: those will not make their next call, and are the root."""
    roots = []
    for members in cycles(waits.by_rank):
        if set(members) & set(explained):
            continue
        heads = [head for rank in members if (head := ranks[rank].head) is not None]
        inside = [wait for wait in waits.edges if wait.rank in members and wait.on in members]
        culprits = tuple(rank for rank in members if rank in away)
        if len(culprits) == len(members):
            culprits = ()
        named = culprits or members
        evidence = tuple(
            (reason("hangs", "waits_for", rank=wait.rank, on=wait.on), words.waited_operation(wait))
            for wait in inside[:12]
        )
        root = Root(
            **about(heads[0]),
            rule=HOST if culprits else MISMATCH,
            kind=RootKind.CIRCLE,
            ranks=named,
            confidence="low" if any(wait.reason == "not_recorded" for wait in inside) else "medium",
            facts=RootFacts(
                shape=shape_text(heads[0].op), heads=words.heads_text(heads), here=members, culprits=culprits
            ),
            waiting=waits.waiting_for(named),
            cause="host" if culprits else None,
            evidence=evidence,
        )
        roots.append(root)
    return roots


def all_known(group: ProcessGroup, ranks: Positions) -> bool:
    """Whether every member has a flight recorder's dump."""
    return group.ranks is not None and recorded(group.ranks, ranks)


def recorded(members: Sequence[int], ranks: Positions) -> bool:
    """Whether all have a flight recorder's dump, which tells more than a log."""
    return all(rank in ranks and ranks[rank].record.source == "flight recorder" for rank in members)


def about(call: Call) -> dict[str, Any]:
    """The fields of a root that tell which operation it is about."""
    return {
        "group": call.group.label,
        "group_ranks": call.group.ranks,
        "op": call.op.op,
        "sequence": call.op.sequence,
        "bytes": message_bytes(call.op),
        "where": code_place(call.op.frames),
    }


# Collectives that ranks called differently: where their calls first part, and which side is out of line.

# Calls before the first difference that have to agree: else the ranks' counts are not of the same group.
_LEAST_COMMON = 3
# Of calls that have ended, only those where a difference is never correct.
_STRICT = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "barrier")


def mismatches(ranks: Positions, waits: Waits, steps: Mapping[int, int]) -> list[Root]:
    """The first call on which members part, in each group in which ranks wait: the side out of line is the root. That
    is the smaller side. Of equal sides it is the one whose call differs from the steps before, or else that of a rank
    that has not finished as many steps as most. NCCL may go on after a difference, with wrong numbers. Then the
    difference lies before what the ranks wait in. steps: steps that each rank has finished, as far as known."""
    by_group: dict[ProcessGroup, list[Call]] = defaultdict(list)
    for position in ranks.values():
        if position.head is not None and not position.head.op.is_p2p:
            by_group[position.head.group].append(position.head)
    roots = []
    for group, heads in by_group.items():
        if (difference := _first_difference(group, heads, ranks)) is None:
            continue
        sequence, sides = difference
        right = _in_line(sequence, sides, ranks, steps)
        odd = [call for i, side in enumerate(sides) if i != right for call in side]
        blamed = tuple(sorted(call.rank for call in odd))
        inside = {call.rank for side in sides for call in side} | {head.rank for head in heads}
        stuck = max(head.op.sequence for head in heads)
        facts = RootFacts(
            shape=shape_text(odd[0].op),
            sides=words.sides_text(sides),
            decided=right is not None,
            stuck=stuck if stuck > sequence else None,
        )
        root = Root(
            **about(odd[0]),
            rule=MISMATCH,
            kind=RootKind.DIFFERENT,
            ranks=blamed,
            confidence="high" if right is not None and recorded(blamed, ranks) else "medium",
            facts=facts,
            waiting=tuple(sorted({*inside, *waits.waiting_for(inside)} - set(blamed))),
            evidence=tuple(
                (f"call of {who([call.rank for call in side])}", describe(side[0].op)) for side in sides[:8]
            ),
        )
        roots.append(root)
    return roots


def noticed_mismatch(evidence: HangEvidence, noticed: Collection[int], ranks: Positions, waits: Waits) -> list[Root]:
    """Ranks that were ended because a message had another size than they expected, where no record tells more. The call
    out of line is that of a survivor which breaks the pattern of the steps before. Where the survivors keep to the
    pattern, or are several and agree, it is the call of the rank that was ended."""
    if not noticed:
        return []
    ended = tuple(sorted(noticed))
    others = [rank for rank in range(evidence.counted) if rank not in noticed]
    odd, all_agree = _out_of_line(others, ranks)
    alone = not odd and all_agree and len(ended) == 1
    blamed = odd or ended
    return [
        Root(
            rule=MISMATCH,
            kind=RootKind.MESSAGE_SIZE,
            ranks=blamed,
            confidence="medium" if odd or alone else "low",
            facts=RootFacts(others=ended, here=odd, agree=alone, decided=bool(odd) or alone),
            waiting=tuple(rank for rank in waits.waiting_for(ended) if rank not in blamed),
            evidence=tuple(event.proof for event in evidence.log if event.kind == "mismatch" and event.rank in noticed)[
                :4
            ],
        )
    ]


def _out_of_line(others: Sequence[int], ranks: Positions) -> tuple[tuple[int, ...], bool]:
    """The survivors whose last call breaks the pattern of the steps before, and whether all of them agree."""
    # The last call of a survivor is the one that broke off, finished with an error or not.
    last = [calls[-1] for rank in others if rank in ranks and (calls := list(ranks[rank].calls.values()))]
    expected = {call.rank: _usual_call(*call.key, ranks[call.rank]) for call in last}
    usual = {call.rank: expected[call.rank] == signature(call.op) for call in last if expected[call.rank] is not None}
    agree = len(last) == len(others) and (len(others) > 1 or all(usual.get(rank) for rank in others))
    return tuple(sorted(rank for rank, in_line in usual.items() if not in_line)), agree


def _first_difference(
    group: ProcessGroup, heads: Sequence[Call], ranks: Positions
) -> tuple[int, list[list[Call]]] | None:
    """The number of the first call on which members part, and the sides, the largest first."""
    pending = {head.op.sequence for head in heads}
    called: dict[int, list[Call]] = defaultdict(list)
    for position in ranks.values():
        for (own, sequence), call in position.calls.items():
            if own == group and sequence <= max(pending):
                called[sequence].append(call)
    common = 0
    for sequence in sorted(called):
        calls = called[sequence]
        plain = {(call.op.op, call.op.sizes_in, call.op.sizes_out, call.op.dtypes_in) for call in calls}
        sides = by_signature(calls) if len(plain) > 1 else [calls]
        if len(sides) == 1:
            common += len(calls) > 1
            continue
        never_correct = all(signature(side[0].op)[0] in _STRICT for side in sides)
        if sequence in pending or (common >= _LEAST_COMMON and never_correct):
            return sequence, sides
    return None


def _in_line(sequence: int, sides: Sequence[Sequence[Call]], ranks: Positions, steps: Mapping[int, int]) -> int | None:
    """Which side is in line; None if not known."""
    largest = [i for i, side in enumerate(sides) if len(side) == len(sides[0])]
    if len(largest) > 1:
        first = sides[0][0]
        usual = _usual_call(first.group, sequence, ranks[first.rank])
        as_usual = [i for i in largest if usual is not None and signature(sides[i][0].op) == usual]
        common = Counter(steps.values()).most_common(2)
        if as_usual:
            largest = as_usual
        elif len(common) == 1 or (common and common[0][1] > common[1][1]):  # who is in the step of most ranks
            there = [i for i in largest if any(steps.get(call.rank) == common[0][0] for call in sides[i])]
            largest = there or largest
    return largest[0] if len(largest) == 1 else None


def _usual_call(group: ProcessGroup, sequence: int, position: RankPosition) -> tuple[object, ...] | None:
    """What the calls of the steps before lead to expect under this number; None where they do not repeat."""
    before: list[tuple[object, ...]] = []
    while (call := position.calls.get((group, sequence - 1 - len(before)))) is not None:
        before.append(signature(call.op))
    # The step is the period that holds longest: a run of equal buckets repeats too, but not for long.
    repeats = {}  # how many of the latest calls equal the one a period earlier
    for period in range(1, len(before) // 2 + 1):
        pairs = enumerate(zip(before, before[period:], strict=False))
        repeats[period] = next((i for i, (late, early) in pairs if late != early), len(before) - period)
    best = max(repeats, key=lambda period: (repeats[period], -period), default=0)
    return before[best - 1] if best and repeats[best] >= best else None


_REDUCES = ("all_reduce", "allreduce", "reduce_scatter", "_reduce_scatter_base")
_GATHERS = ("all_gather", "_all_gather_base", "all_gather_into_tensor", "allgather_base")
_C10D = "torch/distributed/distributed_c10d.py"
_WIDTHS = range(128, 16385, 64)  # hidden sizes
_MOST_NAMES = 4
_FIRST_CAP = 1 << 20  # bytes of the first bucket, which has the model's last parameters
_FEWEST = 1 << 20  # elements from which a size is telling
# Rows of the embeddings of published models.
_VOCABULARIES = {
    28996: "bert-base-cased", 30522: "bert-base-uncased", 32000: "Llama 2, Mistral", 32128: "T5", 50257: "GPT-2",
    50265: "RoBERTa, BART", 50272: "OPT", 50304: "GPT-2, padded", 50432: "GPT-NeoX, padded", 51200: "Phi, CodeGen",
    51865: "Whisper", 65024: "ChatGLM, Falcon", 100352: "OLMo 2", 128256: "Llama 3", 129280: "DeepSeek V3",
    151936: "Qwen 2, Qwen 3", 152064: "Qwen 2.5", 250880: "BLOOM", 256000: "Gemma", 262144: "Gemma 3",
}  # fmt: skip


def with_carried(root: Root, evidence: HangEvidence, ranks: Positions) -> Root:
    """The root with what its collective carries, where a rank told of it or its size suggests something."""
    if (call := _call_of(root, ranks)) is None or call.op.is_p2p:
        return root
    models = evidence.models.get(call.rank, ())
    found = [told for model in models if (told := _of_model(model, call.op)) is not None]
    if found:
        alike = sum(told.alike for told in found) + len(found) - 1
        return replace(root, carried=replace(found[0], alike=alike))
    return root if evidence.models else replace(root, carried=_likely(call.op))


def _call_of(root: Root, ranks: Positions) -> Call | None:
    """A rank's own call of the operation that the root is about; one of a rank that waits, if there is one."""
    for rank in (*root.waiting, *root.ranks, *ranks):
        for call in () if rank not in ranks else (*ranks[rank].pending, *ranks[rank].calls.values()):
            same = (call.group.label, call.op.op, call.op.sequence) == (root.group, root.op, root.sequence)
            if same and call.op.sizes_in:
                return call
    return None


def _of_model(model: Shards | Trained, op: Operation) -> Carried | None:
    """What of the model has the operation's size; None for one that the program called itself."""
    if model.group not in (None, op.group) or any(frame.file.endswith(_C10D) for frame in op.frames):
        return None
    if isinstance(model, Shards):
        sent, received = _elements(op.sizes_in), _elements(op.sizes_out)
        if op.op in _REDUCES and (model.elements == sent or model.shard == received):
            return Carried("gradients", sent or 0, model.names, model.count)
        if op.op in _GATHERS and (model.shard == sent or model.elements == received):
            return Carried("parameters", sent or 0, model.names, model.count)
        return None
    return _of_bucket(model, op)


def _of_bucket(model: Trained, op: Operation) -> Carried | None:
    """The run of parameters that fills a bucket of this size, as DDP does from the end; of several the first."""
    elements = _elements(op.sizes_in)
    if op.op not in _REDUCES or not elements:
        return None
    sums = [0, *accumulate(size for _, size, _ in model.parameters)]
    place = {total: index for index, total in enumerate(sums)}
    runs = [(first, place[total + elements]) for first, total in enumerate(sums) if total + elements in place]
    if not (runs := [(first, end) for first, end in runs if _fills(model, first, end)]):
        return None
    first, end = runs[0]
    names = tuple(name for name, _, _ in model.parameters[first:end][:_MOST_NAMES])
    return Carried("gradients", elements, names, end - first, alike=len(runs) - 1)


def _fills(model: Trained, first: int, end: int) -> bool:
    """Whether a bucket is closed there: the cap is passed with its last parameter, the earliest in the model."""
    own = [nbytes for _, _, nbytes in model.parameters[first:end]]
    cap = min(model.cap_bytes, _FIRST_CAP) if end == len(model.parameters) else model.cap_bytes
    return sum(own[1:]) < cap and (sum(own) >= cap or first == 0)


def _likely(op: Operation) -> Carried | None:
    """A shape that the number of elements suggests: rows of a known vocabulary, and nothing that fits as well."""
    elements = _elements(op.sizes_in) or 0
    if op.op not in (*_REDUCES, *_GATHERS) or elements < _FEWEST:
        return None
    fits = [rows for rows in _VOCABULARIES if elements % rows == 0 and elements // rows in _WIDTHS]
    if len(fits) != 1:
        return None
    return Carried("likely", elements, shape=(fits[0], elements // fits[0]), model=_VOCABULARIES[fits[0]])


def _elements(sizes: tuple[tuple[int, ...], ...] | None) -> int | None:
    return sum(math.prod(size) for size in sizes) if sizes else None
