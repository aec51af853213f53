"""What each process group is for: data, shard, tensor, context, pipeline or expert parallel."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from msgspec import Struct, field

from traceops.across.groups import Ranks, group_of, only_group, role_of_kernel, role_of_name
from traceops.across.match import Collective, MatchedCollectives
from traceops.across.pipelines import Pipeline, is_ring
from traceops.core.arrays import Mask
from traceops.core.words import Role, RoleTold
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING, message_bytes
from traceops.measure.phases import AFTER, UPDATED
from traceops.measure.summary import CommEvents, RankSummary
from traceops.traces.model import CommArgs

OperationKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "other"]
_KINDS: tuple[tuple[OperationKind, re.Pattern[str]], ...] = (
    ("all_reduce", re.compile(r"all_?reduce", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_to_all", re.compile(r"all_?to_?all", re.I)),
)
_IN_FORWARD = 0.2  # of what is moved: layers need it themselves
_HARDLY = 0.05  # of what is moved in the forward pass: a loss, statistics of a batch
_IN_LAYERS = 2  # a step, of equal size: more than a loss or a flag
_TINY = 1024  # elements: flags, losses, norms
_TRAINS = re.compile(r"backward|bwd|dgrad|wgrad|adam|multi_tensor|sgd|optim", re.I)
_EXPERTS = re.compile(r"moe|expert|group(ed)?_?(gemm|mm)|gmm", re.I)
_FUSED = re.compile(
    r"fused_all_gather_(scaled_)?matmul|fused_(scaled_)?matmul_reduce_scatter|all_?gather_?gemm|gemm_?reduce_?scatter"
    r"|\bflux::",
    re.I,
)
_TABLES = re.compile(r"embedding_?bag|split_embedding|table_batched|fbgemm.*embedding", re.I)


class Computed(Struct, frozen=True):
    """What the ranks compute, as far as it tells what they communicate for, by the names of kernels and operators.
    infers: GPUs that compute nothing of a backward pass or an optimizer. experts: kernels of a mixture of experts.
    tables: tables of embeddings, which recommenders split over ranks. fused: products that gather or scatter what they
    multiply themselves, as asynchronous tensor parallel does."""

    infers: bool = False
    experts: bool = False
    tables: bool = False
    fused: bool = False


def computed_by(names: Iterable[str], on_gpu: bool, has_backward: bool) -> Computed:
    """The same of all these names."""
    text = "\n".join(names)
    return Computed(
        infers=on_gpu and not has_backward and bool(text) and _TRAINS.search(text) is None,
        experts=_EXPERTS.search(text) is not None,
        tables=_TABLES.search(text) is not None,
        fused=_FUSED.search(text) is not None,
    )


class Moved(Struct):
    """What one group moved: how many calls, and elements, by kind and pass, in `steps` steps of one member.
    `without_size` are calls whose size is not known, `uneven` all-to-alls that take in another amount than they give
    out."""

    steps: int = 1
    computed: Computed = Computed()
    calls: Counter[tuple[OperationKind, int]] = field(default_factory=Counter)
    elements: Counter[tuple[OperationKind, int]] = field(default_factory=Counter)
    without_size: int = 0
    uneven: int = 0  # all-to-alls
    largest: int = 0  # of the all-reduces

    def add(self, op: str, phase: int, elements_in: int | None, elements_out: int | None) -> None:
        """Counts one call."""
        kind = kind_of(op)
        self.calls[kind, phase] += 1
        elements = max((n for n in (elements_in, elements_out) if n is not None), default=None)
        self.uneven += kind == "all_to_all" and None not in (elements_in, elements_out) and elements_in != elements_out
        if elements is None:
            self.without_size += 1
        else:
            self.elements[kind, phase] += elements
            self.largest = max(self.largest, elements if kind == "all_reduce" else 0)

    def total(self, kind: OperationKind) -> int:
        """Calls of one kind in all passes."""
        return sum(count for (own, _), count in self.calls.items() if own == kind)

    def share(self, kind: OperationKind, *phases: int) -> float:
        """Part of what a kind moves in these passes, of all that is told: elements, or calls without sizes."""
        source = self.calls if self.without_size else self.elements
        told = sum(n for (own, phase), n in source.items() if own == kind and phase != NOTHING)
        return sum(source[kind, phase] for phase in phases) / told if told else 0.0

    def knows_pass(self, kind: OperationKind) -> bool:
        """Whether there are such calls, and the pass of most of them is known."""
        return 2 * self.calls[kind, NOTHING] < self.total(kind)


@lru_cache(maxsize=1024)
def kind_of(op: str) -> OperationKind:
    """The kind of an operation by its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(op)), "other")


def roles_by_operations(moved: Moved) -> dict[OperationKind, Role]:
    """The role of each kind of operation of a group; unknown where several kinds of parallelism do the same.

    Gradients are reduced in the backward pass or after it, activations of layers in the forward pass too. So
    all-reduces only there are data parallel, and in the forward pass tensor parallel. Reduce-scatters of gradients,
    with all-gathers of parameters, are sharded data parallel; in the forward pass they are tensor parallel with its
    sequences split. All-to-alls are of experts where these compute, or where ranks take in other amounts than they
    give out; but recommenders exchange their tables' rows that way, and sequences are exchanged evenly: unknown. What
    else a group does goes with what it is known for.
    """
    reduced = _all_reduces(moved)
    exchanged: Role = "unknown"
    if moved.total("all_to_all") and not moved.computed.tables and (moved.computed.experts or moved.uneven):
        exchanged = "expert"
    scattered: Role = "unknown"
    if moved.knows_pass("reduce_scatter"):
        inner = moved.share("reduce_scatter", FORWARD)
        scattered = "tensor" if inner >= _IN_FORWARD else "shard" if inner < _HARDLY else "unknown"
    known = {role for role in (reduced, scattered) if role != "unknown"}
    whole: Role = known.pop() if len(known) == 1 else "unknown"
    return {
        "all_reduce": reduced if reduced != "unknown" else whole,
        "reduce_scatter": scattered,
        "all_gather": scattered if moved.total("reduce_scatter") else whole,
        "all_to_all": exchanged,
        "other": whole,
    }


def _all_reduces(moved: Moved) -> Role:
    if not moved.total("all_reduce"):
        return "unknown"
    if not moved.knows_pass("all_reduce"):
        return "tensor" if moved.computed.infers and _in_layers(moved) else "unknown"
    inner = moved.share("all_reduce", FORWARD)
    if inner >= _IN_FORWARD and _in_layers(moved):
        return "tensor"
    if inner < _HARDLY and moved.share("all_reduce", BACKWARD, AFTER, UPDATED) and not _only_flags(moved):
        return "data"
    return "unknown"


def _in_layers(moved: Moved) -> bool:
    """Whether all-reduces come several times a pass, and not of a flag alone."""
    return moved.total("all_reduce") >= _IN_LAYERS * moved.steps and not _only_flags(moved)


def _only_flags(moved: Moved) -> bool:
    return not moved.without_size and moved.largest < _TINY


_SCALAR_BYTES = 64  # what is as small is a number of the program's, no gradient
_OF_LAYERS: tuple[Role, ...] = ("tensor", "context", "expert", "pipeline")


def of_gradients(summary: RankSummary, roles: Sequence[Role] = ()) -> Mask:
    """Those that reduce more than the losses, norms, counts and flags that programs reduce as well. Parameters that are
    averaged behind the optimizer's step (local SGD) are no gradients, and neither is what layers exchange. DDP reduces
    gradients inside of backward: with it, what goes round elsewhere is none. roles: of each of them, where they differ:
    of a single one nothing shows that it is told rightly."""
    comm = summary.comm
    sums = np.array([_sums(comm, position) for position in range(len(comm.start))], dtype=bool)
    gradients: Mask = sums & (comm.phase != UPDATED)
    if summary.backward.by_ddp and np.count_nonzero(inside := gradients & (comm.phase == BACKWARD)):
        gradients = inside
    return gradients & ~np.isin(roles, _OF_LAYERS) if len(roles) else gradients


def reduced_behind_step(comm: CommEvents) -> int | None:
    """Bytes of more than flags and losses that are reduced behind optimizers' steps; None where one does not tell its.
    Local SGD averages models there, and programs reduce what they measured."""
    sizes = [
        _bytes(comm, position)
        for position in range(len(comm.start))
        if comm.phase[position] == UPDATED and _sums(comm, position)
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _sums(comm: CommEvents, position: int) -> bool:
    args = comm.args[position]
    if kind_of(comm.name[position] if args is None else args.op) not in ("all_reduce", "reduce_scatter"):
        return False
    size = _bytes(comm, position)
    return size is None or size > _SCALAR_BYTES


def _bytes(comm: CommEvents, position: int) -> int | None:
    args = comm.args[position]
    return None if args is None else message_bytes(args.elements_out or args.elements_in, args.dtype)


MESSAGES: Ranks = ()  # stands for the members of what is sent from rank to rank
_SYMMETRIC = re.compile(r"symm_mem|multimem_")
_Group = tuple[Ranks, str]  # members, description
_Told = tuple[Role, RoleTold]


class GroupRole(Struct, frozen=True):
    """What a process group is for; `ranks` is empty for sends and receives, whose members differ. A group without a
    name that tells may serve two purposes, told by different operations: then it is here twice."""

    ranks: Ranks
    description: str
    role: Role
    told_by: RoleTold


class Roles(Struct, frozen=True, dict=True):
    """The role of each group, each matched collective (as in `matching.collectives`) and each event of each rank."""

    groups: tuple[GroupRole, ...]
    of_collective: tuple[Role, ...]
    of_event: Mapping[int, tuple[Role, ...]]
    fused: bool = False  # products communicate themselves: asynchronous tensor parallel

    @cached_property
    def known(self) -> tuple[Role, ...]:
        """The roles that were told, each once, in the order of ROLE_ORDER."""
        found = {role for own in self.of_event.values() for role in own}
        return tuple(role for role in ROLE_ORDER if role in found and role != "unknown")

    @property
    def several(self) -> bool:
        """Whether the ranks take part in parallelism of more than one kind, so that it matters which one waits."""
        return len(self.known) > 1


NO_ROLES = Roles((), (), {})

# What an instant of several roles goes to: what layers cannot go on without comes first.
ROLE_ORDER: tuple[Role, ...] = ("tensor", "context", "expert", "pipeline", "shard", "data", "unknown")


def find_roles(
    ranks: Sequence[RankSummary], matching: MatchedCollectives, pipelines: Sequence[Pipeline], world: tuple[int, ...]
) -> Roles:
    """What each group is for [docs/metrics.md, roles]: by its name, else by what it does, else unknown."""
    computed = _computed(ranks)
    moved: dict[_Group, dict[int, Moved]] = {}
    moved_of: dict[int, dict[int, Moved]] = {}  # the same by the identity of the key in `same`
    # By the identity of a group's ranks, which may be a thousand: each tuple is hashed once, not at every event of it.
    same: dict[_Group, _Group] = {}
    seen: dict[tuple[int, str], tuple[Ranks, _Group]] = {}  # holds the ranks, so that identities last
    group_at: dict[int, list[_Group | None]] = {}
    for summary in ranks:
        default, names = only_group(summary, world), _Descriptions(summary)
        comm, phases = summary.comm, summary.comm.phase.tolist()
        own: list[_Group | None] = []
        for position, args in enumerate(comm.args):
            if comm.parts[position]:
                own.append((MESSAGES, names.of(comm.parts[position][0], None)))
                continue
            if (group := group_of(args, default)) is None:
                own.append((MESSAGES, args.group_description) if args and args.group_description else None)
                continue
            if args is None and role_of_kernel(comm.name[position]) != "unknown":
                own.append(None)
                continue
            described = (id(group), names.of(args, group))
            if described not in seen:
                key = same.setdefault((group, described[1]), (group, described[1]))
                seen[described] = group, key
                moved_of.setdefault(id(key), moved.setdefault(key, {}))
            key = seen[described][1]
            own.append(key)
            of_rank = moved_of[id(key)]
            if (known := of_rank.get(summary.rank)) is None:
                known = of_rank[summary.rank] = Moved(max(len(summary.step_numbers), 1), computed)
            if args is None:
                known.add(comm.name[position], phases[position], None, None)
            else:
                known.add(args.op, phases[position], args.elements_in, args.elements_out)
        group_at[summary.rank] = own
    told = _agreed({key: _told(key, by_rank) for key, by_rank in moved.items()})
    at_messages = _messages(matching, pipelines, {summary.rank: summary for summary in ranks})
    told_of = {id(same[key]): kinds for key, kinds in told.items()}
    of_event = {
        summary.rank: tuple(
            _of_event(summary, position, key, told_of, at_messages.get((summary.rank, position)), computed)
            for position, key in enumerate(group_at[summary.rank])
        )
        for summary in ranks
    }
    of_collective = tuple(of_event[one.members[0][0]][one.members[0][1]] for one in matching.collectives)
    found = [role for key, kinds in sorted(told.items()) for role in _roles_of(key, kinds, moved[key])]
    return Roles((*found, *_message_groups(group_at, of_event)), of_collective, of_event, computed.fused)


class _Descriptions:
    """How a rank's trace describes the group of an event, from the event itself or from the trace's list of groups."""

    def __init__(self, summary: RankSummary) -> None:
        self._by_name: dict[str, str] = {}
        by_ranks: dict[Ranks, set[str]] = defaultdict(set)
        for group in summary.meta.groups:
            self._by_name[group.name] = group.description
            by_ranks[group.ranks].add(group.description)
        self._by_ranks = {ranks: next(iter(own)) for ranks, own in by_ranks.items() if len(own) == 1}

    def of(self, args: CommArgs | None, group: Ranks | None) -> str:
        """The description, '' where nothing gives one."""
        if args is not None and args.group_description:
            return args.group_description
        if args is not None and args.group_name:
            return self._by_name.get(args.group_name, "")
        return self._by_ranks.get(group or (), "") if self._by_ranks else ""  # a group of thousands is hashed long


def _computed(ranks: Sequence[RankSummary]) -> Computed:
    """What all ranks compute together: a stage of a pipeline may hold no experts."""
    names = {kernel.name for summary in ranks for kernel in summary.kernels if kernel.kind != "comm"}
    names |= {operator.name for summary in ranks for operator in summary.inventory.operators}
    backward = any(summary.backward.steps_with_backward for summary in ranks)
    return computed_by(names, any(summary.on_gpu for summary in ranks), backward)


def _roles_of(key: _Group, kinds: Mapping[OperationKind, _Told], moved: Mapping[int, Moved]) -> list[GroupRole]:
    """The roles of a group that its ranks moved anything for."""
    used = {own for kind, own in kinds.items() if any(of_rank.total(kind) for of_rank in moved.values())}
    return [GroupRole(*key, *own) for own in sorted(used)]


def _told(key: _Group, by_rank: Mapping[int, Moved]) -> dict[OperationKind, _Told]:
    """What each kind of operation of one group is for: as its name says, else as most members' operations do."""
    named = role_of_name(key[1])
    votes: dict[OperationKind, Counter[Role]] = defaultdict(Counter)
    for moved in by_rank.values():
        for kind, role in roles_by_operations(moved).items():
            votes[kind][role] += 1
    done = {kind: own.most_common(1)[0][0] for kind, own in votes.items()}
    if named == "data" and done["reduce_scatter"] == "shard":
        return dict.fromkeys(done, ("shard", "operations"))  # FSDP over a mesh that is called dp
    if named != "unknown":
        return dict.fromkeys(done, (named, "description"))
    return {kind: (role, "nothing" if role == "unknown" else "operations") for kind, role in done.items()}


def _agreed(told: Mapping[_Group, dict[OperationKind, _Told]]) -> dict[_Group, dict[OperationKind, _Told]]:
    """The same with groups of one description alike: a stage without a backward pass of its own tells less."""
    votes: dict[tuple[str, OperationKind], Counter[_Told]] = defaultdict(Counter)
    sizes: dict[str, set[int]] = defaultdict(set)
    for (ranks, description), kinds in told.items():
        sizes[description].add(len(ranks))
        for kind, own in kinds.items():
            if description and own[0] != "unknown":
                votes[description, kind][own] += 1
    return {
        key: {
            kind: votes[key[1], kind].most_common(1)[0][0]
            if (key[1], kind) in votes and len(sizes[key[1]]) == 1
            else own
            for kind, own in kinds.items()
        }
        for key, kinds in told.items()
    }


def _messages(
    matching: MatchedCollectives, pipelines: Sequence[Pipeline], by_rank: Mapping[int, RankSummary]
) -> dict[tuple[int, int], _Told]:
    """By rank and position: what sends and receives are for, where their pattern tells."""
    found: dict[tuple[int, int], _Told] = {}
    for pipeline in pipelines:
        for number in pipeline.collectives:
            found.update(dict.fromkeys(matching.collectives[number].members, ("pipeline", "messages")))
    rings: dict[Ranks, list[Collective]] = defaultdict(list)
    for collective in matching.collectives:
        if collective.links and is_ring(collective.links, len(collective.members)):
            rings[collective.group].append(collective)
    for group, own in rings.items():
        steps = {by_rank[rank].step_number(at) for rank, at in (c.members[0] for c in own)}
        if len(own) >= (len(group) - 1) * len(steps):  # all parts of a sequence come around
            found.update({member: ("context", "messages") for c in own for member in c.members if member not in found})
    return found


def _of_event(
    summary: RankSummary,
    position: int,
    key: _Group | None,
    told_of: Mapping[int, Mapping[OperationKind, _Told]],
    messages: _Told | None,
    computed: Computed,
) -> Role:
    """The role of one event. told_of: by the identity of its group."""
    role: Role = "unknown"
    if (told := told_of.get(id(key))) is not None and key is not None:
        args = summary.comm.args[position]
        role = told[kind_of(args.op if args is not None else summary.comm.name[position])][0]
    elif key is not None:
        role = role_of_name(key[1])
    if role == "unknown" and messages is not None:
        role = messages[0]
    if role == "unknown":
        role = role_of_kernel(summary.comm.name[position])
    if role == "unknown" and computed.fused and _SYMMETRIC.search(summary.comm.name[position]):
        return "tensor"  # what the products' operators do beside them
    return role


def _message_groups(
    group_at: Mapping[int, Sequence[_Group | None]], of_event: Mapping[int, Sequence[Role]]
) -> list[GroupRole]:
    """What is sent from rank to rank, and what no group is known of, by its role."""
    found: dict[tuple[str, Role], RoleTold] = {}
    for rank, keys in group_at.items():
        for key, role in zip(keys, of_event[rank], strict=True):
            if key is None or not key[0]:
                description = "" if key is None else key[1]
                named = role_of_name(description) == role
                by: RoleTold = "description" if named else "kernels" if key is None else "messages"
                found[description, role] = "nothing" if role == "unknown" else by
    return [GroupRole(MESSAGES, description, role, by) for (description, role), by in sorted(found.items())]
