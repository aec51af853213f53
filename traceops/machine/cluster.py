"""What a cluster has, as Slurm (scontrol, sinfo) and Kubernetes (kubectl) print it: a line for nodes alike."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.machine.files import output

# The programs that are asked, in this order, and for how long: a controller with many nodes takes a while.
PROGRAMS = (("scontrol", "-o", "show", "node"), ("kubectl", "get", "nodes", "-o", "json"))
_PROGRAM_S = 30.0
_MIB = 1 << 20
_GPU = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?[:=](\d+)")
_FIELD = re.compile(r"([A-Z][A-Za-z/:]*)=(\S*)")
# Names of networks among a node's features, as sites write them.
_FABRIC = re.compile(
    r"\b(?:nvlink|nvswitch|infiniband|ib|[qfehnx]dr(?:\d+)?|ndr\d*|opa|omni-?path|roce|efa|slingshot|\d+g(?:be|ib))\b",
    re.IGNORECASE,
)
_AWAY = ("DOWN", "DRAIN", "DRNG", "FAIL", "MAINT", "NOT_RESP", "UNK", "RES")  # states begin with
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "K": 10**3, "M": 10**6, "G": 10**9, "": 1}
_RDMA = re.compile(r"rdma|infiniband|efa$|roce|/hca", re.IGNORECASE)


class NodeKind(Struct, frozen=True):
    """Nodes that are alike. free: those that take jobs and run none; away: those that take none; bytes of each.
    gpu_memory: of one GPU; None where nothing tells, as free is of Kubernetes. fabric: "" where nothing tells."""

    partition: str
    nodes: int = 1
    free: int | None = 0
    away: int = 0
    gpus: int = 0
    gpu: str = ""
    gpu_memory: int | None = None
    memory: int | None = None
    cores: int | None = None
    fabric: str = ""


def cluster_here() -> tuple[list[NodeKind], list[str]]:
    """What the first program that answers reports, and why the others did not answer."""
    problems = []
    for command in PROGRAMS:
        told = output(command, _PROGRAM_S)
        if kinds := read_cluster(told.text):
            return kinds, []
        problems.append(f"{' '.join(command)}: {told.problem or 'no nodes'}")
    return [], problems


def read_cluster(text: str) -> list[NodeKind]:
    """From the output of `scontrol show node`, `sinfo` with a header, or `kubectl get nodes -o json`; [] of others."""
    if text.lstrip().startswith("{"):
        return _alike(_kubernetes(text))
    if "NodeName=" in text:
        return _alike(_scontrol(text))
    return _alike(_sinfo(text))


def _alike(nodes: Iterator[NodeKind]) -> list[NodeKind]:
    counts: dict[NodeKind, Counter[str]] = {}
    for node in nodes:
        kind = replace(node, nodes=0, free=None if node.free is None else 0, away=0)
        counts.setdefault(kind, Counter()).update(nodes=node.nodes, free=node.free or 0, away=node.away)
    kinds = [
        replace(kind, nodes=count["nodes"], free=None if kind.free is None else count["free"], away=count["away"])
        for kind, count in counts.items()
    ]
    return sorted(kinds, key=lambda kind: (kind.partition, -kind.gpus, kind.gpu))


def _scontrol(text: str) -> Iterator[NodeKind]:
    for part in re.split(r"(?m)(?=\bNodeName=)", text)[1:]:
        told = dict(_FIELD.findall(part))
        gpus, name = _gpus(told.get("Gres", "")) if "gpu" in told.get("Gres", "") else _gpus(told.get("CfgTRES", ""))
        node = _with_state(NodeKind(""), told.get("State", ""))
        node = replace(
            node, gpus=gpus, gpu=name, memory=_mib(told.get("RealMemory", "")), cores=_whole(told.get("CPUTot", "")),
            fabric=_fabric(told.get("AvailableFeatures", "")),
        )  # fmt: skip
        for partition in told.get("Partitions", "").split(",") or [""]:
            yield replace(node, partition=partition)


def _sinfo(text: str) -> Iterator[NodeKind]:
    lines = [line for line in text.splitlines() if line.strip()]
    mark = "|" if lines and "|" in lines[0] else None
    header: list[str] = []
    for cells in ([cell.strip() for cell in line.split(mark)] for line in lines):
        if not header:
            header = cells if "PARTITION" in cells else []
            continue
        told = dict(zip(header, cells, strict=False))
        if len(told) < len(header):
            continue
        gpus, name = _gpus(told.get("GRES", ""))
        node = NodeKind(
            told["PARTITION"].rstrip("*"), nodes=_whole(told.get("NODES", "1")) or 1, gpus=gpus, gpu=name,
            memory=_mib(told.get("MEMORY", "").rstrip("+")), cores=_whole(told.get("CPUS", "").rstrip("+")),
            fabric=_fabric(told.get("AVAIL_FEATURES", told.get("AVAIL_FE", told.get("FEATURES", "")))),
        )  # fmt: skip
        yield _with_state(node, told.get("STATE", "").upper())


def _kubernetes(text: str) -> Iterator[NodeKind]:
    try:
        items = json.loads(text).get("items")
    except (ValueError, AttributeError):
        return
    for item in items if isinstance(items, list) else ():
        try:
            yield _kubernetes_node(item)
        except (AttributeError, TypeError, KeyError):  # no node
            continue


def _kubernetes_node(item: Mapping[str, Any]) -> NodeKind:
    labels, status = item["metadata"].get("labels") or {}, item["status"]
    has = {str(name): str(count) for name, count in (status.get("allocatable") or status["capacity"]).items()}
    gpus = sum(_whole(count) or 0 for name, count in has.items() if name.endswith((".com/gpu", "/gaudi")))
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())
    away = not ready or bool(item.get("spec", {}).get("unschedulable"))
    memory, cpu = _whole(str(labels.get("nvidia.com/gpu.memory", ""))), has.get("cpu", "")
    kind = str(labels.get("nvidia.com/gpu.product", labels.get("cloud.google.com/gke-accelerator", ""))) if gpus else ""
    networks = sorted((name, count) for name, count in has.items() if _RDMA.search(name) and count != "0")
    return NodeKind(
        str(labels.get("node.kubernetes.io/instance-type", "")), free=None, away=int(away), gpus=gpus, gpu=kind,
        gpu_memory=memory * _MIB if memory and gpus else None, memory=_quantity(has.get("memory", "")),
        cores=(_whole(cpu[:-1]) or 0) // 1000 if cpu.endswith("m") else _whole(cpu),
        fabric=", ".join(f"{count} {name}" for name, count in networks),
    )  # fmt: skip


def _gpus(text: str) -> tuple[int, str]:
    """How many of which kind: gpu:a100:8(S:0-1), gpu:4, or gres/gpu=8,gres/gpu:a100=8, where the first counts all."""
    found = [(name, int(count)) for name, count in _GPU.findall(text.replace("gres/", ""))]
    named = sum(count for name, count in found if name)
    names = dict.fromkeys(name for name, _ in found if name)
    return max(named, sum(count for name, count in found if not name)), ", ".join(names)


def _fabric(features: str) -> str:
    return ", ".join(dict.fromkeys(_FABRIC.findall(features.replace("_", " "))))


def _with_state(node: NodeKind, state: str) -> NodeKind:
    """States of Slurm: IDLE+CLOUD, ALLOCATED+DRAIN, down*, and sinfo's short ones."""
    words = re.split(r"[^A-Z_]", state)
    away = "*" in state or any(word.startswith(_AWAY) for word in words)
    free = not away and any(word.startswith("IDLE") for word in words)
    return replace(node, away=node.nodes if away else 0, free=node.nodes if free else 0)


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,12}", text) else None


def _mib(text: str) -> int | None:
    count = _whole(text)
    return None if count is None else count * _MIB


def _quantity(text: str) -> int | None:
    match = re.fullmatch(r"(\d{1,18})([KMGT]i?)?", text)
    return int(match[1]) * _UNITS.get(match[2] or "", 1) if match else None
