"""Which ranks an event of a rank concerns, and what their group is for, as far as its trace and its names show."""

from __future__ import annotations

import re
from functools import lru_cache

from traceops.core.words import Role
from traceops.measure.summary import RankSummary
from traceops.traces.model import CommArgs

# Words of a group's description, as torch's device meshes (`mesh_dp_shard`), Megatron (`TENSOR_MODEL_PARALLEL_GROUP`),
# DeepSpeed, vLLM and SGLang (`tp:0`) name them, lower case.
_WORDS: tuple[tuple[Role, frozenset[str]], ...] = (
    ("expert", frozenset({"ep", "expert", "experts", "moe"})),
    ("tensor", frozenset({"tp", "etp", "tensor", "mp"})),
    ("pipeline", frozenset({"pp", "pipe", "pipeline", "embedding", "embd"})),
    ("context", frozenset({"cp", "sp", "context", "sequence", "ulysses", "ring"})),
    ("shard", frozenset({"shard", "sharded", "fsdp", "efsdp", "zero", "optimizer"})),
    ("data", frozenset({"dp", "ddp", "edp", "data", "rep", "replicate", "replica"})),
)
# Experts that are copied or sharded over ranks; sequences whose gradients are reduced with those of the batch. In such
# names the first word says whose, the second what for.
_BOTH: tuple[tuple[frozenset[Role], Role], ...] = (
    (frozenset({"expert", "data"}), "data"),
    (frozenset({"expert", "tensor"}), "tensor"),
    (frozenset({"expert", "shard"}), "shard"),
    (frozenset({"expert", "data", "shard"}), "shard"),
    (frozenset({"data", "context"}), "data"),
    (frozenset({"data", "shard"}), "shard"),
    (frozenset({"shard", "context"}), "shard"),
    (frozenset({"data", "shard", "context"}), "shard"),
)
_REPLICAS = frozenset({"rep", "replicate", "replica"})
_KERNELS: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("expert", re.compile(r"dpsk::ep::|deep_ep|(inter|intra)node(_ll)?::(dispatch|combine)|mori::\w*ep", re.I)),
    (
        "tensor",
        re.compile(
            r"cross_device_reduce|custom_all_?reduce|quick_?reduce|allreduce_fusion|userbuffers"
            r"|(one|two)_?shot_all_?reduce|all_?reduce_?(one|two)_?shot",
            re.I,
        ),
    ),
)


@lru_cache(maxsize=4096)
def role_of_name(description: str) -> Role:
    """The role that a group's description names; unknown where it names none, or several that are not one."""
    words = set(re.findall(r"[a-z]+", description.lower()))
    found = {role for role, own in _WORDS if own & words}
    if words & _REPLICAS and found <= {"data", "expert"}:
        return "data"
    if len(found) == 1:
        return found.pop()
    if "and" in words:
        return "unknown"  # one group for two purposes, as Megatron's TENSOR_AND_DATA_PARALLEL_GROUP
    return next((role for both, role in _BOTH if both == found), "unknown")


@lru_cache(maxsize=4096)
def role_of_kernel(name: str) -> Role:
    """The role of a communication kernel of a library that serves one alone; unknown for NCCL's and the like."""
    return next((role for role, pattern in _KERNELS if pattern.search(name)), "unknown")


Ranks = tuple[int, ...]
_PIPELINE = re.compile(r"(^|[^a-z])(pp|pipe\w*)([^a-z]|$)", re.IGNORECASE)


def only_group(summary: RankSummary, world: Ranks) -> Ranks | None:
    """The group of an event that names none, where there is no choice."""
    groups = {group.ranks for group in summary.meta.groups if len(group.ranks) > 1}
    if len(groups) == 1:
        return next(iter(groups))
    return world if not groups and len(world) > 1 else None


def pipeline_group(summary: RankSummary) -> Ranks | None:
    """The one group of the rank that is called a pipeline's; None where there is none, or several."""
    known = {g.ranks for g in summary.meta.groups if _PIPELINE.search(g.description) and summary.rank in g.ranks}
    return next(iter(known)) if len(known) == 1 else None


def tensor_group(summary: RankSummary, default: Ranks | None) -> Ranks | None:
    """The one group of the rank whose name says tensor parallel, or else the only group there is."""
    named = {
        group.ranks
        for group in summary.meta.groups
        if len(group.ranks) > 1 and summary.rank in group.ranks and role_of_name(group.description) == "tensor"
    }
    return next(iter(named)) if len(named) == 1 else default


def group_of(args: CommArgs | None, default: Ranks | None) -> Ranks | None:
    """The group that an event names, or the only one there is; None where it says that it was another."""
    if args is None:
        return default
    if args.group_ranks is None and args.group_size not in (None, len(default or ())):
        return None
    return args.group_ranks or default
