"""What each process group is for: data, shard, tensor, context, pipeline or expert parallel."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from traceops.across.groups import Ranks, group_of, only_group
from traceops.across.match import Collective, MatchedCollectives
from traceops.across.role_names import role_of_kernel, role_of_name
from traceops.across.role_operations import Computed, Moved, OperationKind, computed_by, kind_of, roles_by_operations
from traceops.across.stages import Pipeline, is_ring
from traceops.core.words import Role, RoleTold
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs

MESSAGES: Ranks = ()  # stands for the members of what is sent from rank to rank
_SYMMETRIC = re.compile(r"symm_mem|multimem_")
_Group = tuple[Ranks, str]  # members, description
_Told = tuple[Role, RoleTold]


@dataclass(frozen=True)
class GroupRole:
    """What a process group is for; `ranks` is empty for sends and receives, whose members differ.

    A group without a name that tells may serve two purposes, told by different operations: then it is here twice.
    """

    ranks: Ranks
    description: str
    role: Role
    told_by: RoleTold


@dataclass(frozen=True)
class Roles:
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
    moved: dict[_Group, dict[int, Moved]] = defaultdict(dict)
    group_at: dict[int, list[_Group | None]] = {}
    for summary in ranks:
        default, names = only_group(summary, world), _Descriptions(summary)
        comm, phases = summary.comm, summary.comm.phase.tolist()
        own: list[_Group | None] = []
        for position, args in enumerate(comm.args):
            if comm.parts[position]:
                own.append((MESSAGES, names.of(comm.parts[position][0], None)))
                continue
            group = group_of(args, default)
            if group is None:
                own.append((MESSAGES, args.group_description) if args and args.group_description else None)
                continue
            if args is None and role_of_kernel(comm.name[position]) != "unknown":
                own.append(None)
                continue
            key = (group, names.of(args, group))
            own.append(key)
            known = moved[key].setdefault(summary.rank, Moved(max(len(summary.step_numbers), 1), computed))
            if args is None:
                known.add(comm.name[position], phases[position], None, None)
            else:
                known.add(args.op, phases[position], args.elements_in, args.elements_out)
        group_at[summary.rank] = own
    told = _agreed({key: _told(key, by_rank) for key, by_rank in moved.items()})
    at_messages = _messages(matching, pipelines, {summary.rank: summary for summary in ranks})
    of_event = {
        summary.rank: tuple(
            _of_event(summary, position, key, told, at_messages.get((summary.rank, position)), computed)
            for position, key in enumerate(group_at[summary.rank])
        )
        for summary in ranks
    }
    of_collective = tuple(_of_collective(collective, of_event) for collective in matching.collectives)
    found = [
        GroupRole(*key, role, by)
        for key, kinds in sorted(told.items())
        for role, by in sorted({own for kind, own in kinds.items() if _does(moved[key], kind)})
    ]
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
        return self._by_ranks.get(group or (), "")


def _computed(ranks: Sequence[RankSummary]) -> Computed:
    """What all ranks compute together: a stage of a pipeline may hold no experts."""
    names = {kernel.name for summary in ranks for kernel in summary.kernels if kernel.kind != "comm"}
    names |= {operator.name for summary in ranks for operator in summary.inventory.operators}
    backward = any(summary.backward.steps_with_backward for summary in ranks)
    return computed_by(names, any(summary.on_gpu for summary in ranks), backward)


def _does(by_rank: Mapping[int, Moved], kind: OperationKind) -> bool:
    return any(moved.total(kind) for moved in by_rank.values())


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
    told: Mapping[_Group, Mapping[OperationKind, _Told]],
    messages: _Told | None,
    computed: Computed,
) -> Role:
    role: Role = "unknown"
    if key is not None and key in told:
        args = summary.comm.args[position]
        role = told[key][kind_of(args.op if args is not None else summary.comm.name[position])][0]
    elif key is not None:
        role = role_of_name(key[1])
    if role == "unknown" and messages is not None:
        role = messages[0]
    if role == "unknown":
        role = role_of_kernel(summary.comm.name[position])
    if role == "unknown" and computed.fused and _SYMMETRIC.search(summary.comm.name[position]):
        return "tensor"  # what the products' operators do beside them
    return role


def _of_collective(collective: Collective, of_event: Mapping[int, tuple[Role, ...]]) -> Role:
    rank, position = collective.members[0]
    return of_event[rank][position]


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
