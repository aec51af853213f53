"""Where the nodes of a run send their files, and which files of a run folder travel."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path, PurePosixPath

from msgspec import Struct

from traceops.core.errors import UsageError
from traceops.launch.plan import Cluster
from traceops.traces.windows import SUFFIX, trace_stem

SECRET_ENV = "TRACEOPS_GATHER_SECRET"  # the same on all nodes: who does not know it is told and changes nothing
C10D_PORT = 29400  # torch's, where a c10d endpoint names none
STATIC_PORT = 29500
_APART = 10_000  # from the rendezvous's port: runs of one machine differ in that already
_TOP = re.compile(r"rank_\d+|logs|evidence")
_FILE = re.compile(r"machine\..+\.jsonl")
_TRACES = (".pt.trace.json", ".pt.trace.json.gz")


class Meeting(Struct, frozen=True):
    """address, port: of the first node's launcher. first: whether that is this one; None: the endpoint's host is."""

    address: str
    port: int
    first: bool | None


def meeting_of(cluster: Cluster, port: int | None) -> Meeting:
    """Beside the rendezvous of `cluster`, which names one. port: as asked for. Raises UsageError for an endpoint
    without a host, and a port that is none."""
    if cluster.rdzv_endpoint is not None:
        host, colon, text = cluster.rdzv_endpoint.rpartition(":")
        if not colon or not text.isdecimal():
            host, text = cluster.rdzv_endpoint, str(C10D_PORT)
        host, near = host.strip("[]"), int(text)
    else:
        host, near = cluster.master_addr or "", cluster.master_port or STATIC_PORT
    if not host:
        raise UsageError("--gather needs the host of the rendezvous: --rdzv-endpoint HOST:PORT")
    chosen = port or (near - _APART if near > _APART + 1023 else near + _APART)
    if not 0 < chosen < 65536:
        raise UsageError(f"--gather-port {chosen}: must be 1 to 65535")
    return Meeting(host, chosen, None if cluster.node_rank is None else cluster.node_rank == 0)


def seal(secret: str, *parts: str) -> str:
    """What shows that these parts of a request come from a node that knows the run's secret; empty without one."""
    return hmac.new(secret.encode(), "\0".join(parts).encode(), hashlib.sha256).hexdigest() if secret else ""


def may_travel(name: str) -> bool:
    """Whether a run folder of another node has a file of that name to give: none that leads out of the folder."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or "\\" in name or not name.isprintable() or not parts:
        return False
    if any(part.startswith(".") for part in parts) or "/".join(parts) != name:
        return False
    return _FILE.fullmatch(name) is not None if len(parts) == 1 else _TOP.fullmatch(parts[0]) is not None


def files_to_send(folder: Path, *, summaries_only: bool) -> list[str]:
    """Names of the files of a run folder that go to the first node, manifests last: then their rank is complete.
    summaries_only: a trace that has a summary beside it stays."""
    names = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or not may_travel(name):
            continue
        if summaries_only and name.endswith(_TRACES) and Path(trace_stem(str(path)) + SUFFIX).is_file():
            continue
        names.append(name)
    return sorted(names, key=lambda name: (name.endswith("/manifest.json"), name))
