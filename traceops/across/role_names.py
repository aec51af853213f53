"""What a process group is for, as far as its name or the names of its kernels say."""

from __future__ import annotations

import re
from functools import lru_cache

from traceops.core.words import Role

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
