"""Where Kubeflow's training operator started the launcher: the pods of a PyTorchJob are the run's nodes."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from traceops.doctor.nodes import find_identity
from traceops.launch.plan import Cluster


def in_pod(cluster: Cluster, environ: Mapping[str, str]) -> Cluster:
    """The same on the nodes that the variables of torchrun's options name (``PET_NNODES``…), if they do.

    Raises UsageError where they do not say where the nodes meet, and for an elastic job.
    """
    here = find_identity({name: value for name, value in environ.items() if name.startswith("PET_")})
    if here is None or here.nodes == 1:
        return cluster
    return replace(cluster, nnodes=here.nodes, node_rank=here.node, master_addr=here.address, master_port=here.port)


def ranks_told(environ: Mapping[str, str]) -> int | None:
    """Ranks of a node by ``PET_NPROC_PER_NODE``; None where it says none, or leaves it to the GPUs."""
    text = environ.get("PET_NPROC_PER_NODE", "")
    return int(text) if text.isdecimal() and int(text) else None
