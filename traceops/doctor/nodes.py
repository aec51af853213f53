"""The nodes of a checkup: one process a node. All of them decide alike, from the same facts."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from traceops.capture.environment import host
from traceops.core.errors import InputError, UsageError

T = TypeVar("T")

MEET_S = 60.0
DEFAULT_PORT = 29500  # torchrun's own


class NodeError(InputError):
    """A node did not come, or answers no more."""


class NodeIdentity(Struct, frozen=True):
    """This process's node among all nodes, and where they meet. agent: torchrun's agent already serves a store there.
    names: of the nodes as the launcher has them, by number."""

    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    agent: bool = False
    names: tuple[str, ...] = ()


def find_identity(
    environ: Mapping[str, str], nnodes: int | None = None, node_rank: int | None = None,
    master_addr: str | None = None, master_port: int | None = None,
) -> NodeIdentity | None:  # fmt: skip
    """Where this process belongs, from options, else from torchrun's, Slurm's or Kubeflow's variables, else alone. None
    where another process of this node does the work. Raises UsageError for options that cannot work."""
    if nnodes is not None:
        if nnodes == 1:
            return NodeIdentity()
        if master_addr is None or node_rank is None:
            raise UsageError(f"--nnodes {nnodes} needs --master-addr HOST and, on each node, --node-rank")
        if not 0 <= node_rank < nnodes:
            raise UsageError(f"--node-rank {node_rank}: must be 0 to {nnodes - 1}")
        return NodeIdentity(node_rank, nnodes, master_addr, master_port or DEFAULT_PORT)
    if node_rank is not None or master_addr is not None:
        raise UsageError("--node-rank and --master-addr need --nnodes N")
    if "LOCAL_RANK" in environ and "WORLD_SIZE" in environ:
        if _number(environ, "LOCAL_RANK"):
            return None
        each = _number(environ, "LOCAL_WORLD_SIZE") or 1
        nodes = _number(environ, "GROUP_WORLD_SIZE") or max(1, _number(environ, "WORLD_SIZE") // each)
        node = _number(environ, "GROUP_RANK") if "GROUP_RANK" in environ else _number(environ, "RANK") // each
        if nodes == 1:
            return NodeIdentity()
        if "MASTER_ADDR" not in environ:
            raise UsageError(
                f"{nodes} nodes by WORLD_SIZE, but no MASTER_ADDR; set it to the address of the first node"
            )
        agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        port = _number(environ, "MASTER_PORT") or DEFAULT_PORT
        return NodeIdentity(node, nodes, environ["MASTER_ADDR"], port, agent)
    if "SLURM_STEP_NUM_NODES" in environ:  # srun sets it: the script of a batch job runs on one node only
        return _by_slurm(environ, master_port)
    if environ.get("PET_NNODES"):
        return _by_pod(environ, master_port)
    return NodeIdentity()


def _by_slurm(environ: Mapping[str, str], port: int | None) -> NodeIdentity | None:
    if _number(environ, "SLURM_LOCALID"):
        return None
    if (nodes := _number(environ, "SLURM_STEP_NUM_NODES")) <= 1:
        return NodeIdentity()
    names = expand_nodes(environ.get("SLURM_STEP_NODELIST", ""))
    address = names[0] if names else environ.get("SLURM_LAUNCH_NODE_IPADDR")
    if not address:
        raise UsageError("Slurm does not say which nodes the job has; give --nnodes, --node-rank and --master-addr")
    chosen = port or 20_000 + _number(environ, "SLURM_JOB_ID") % 10_000  # another job may share the node
    return NodeIdentity(_number(environ, "SLURM_NODEID"), nodes, address, chosen, False, names)


def _by_pod(environ: Mapping[str, str], port: int | None) -> NodeIdentity:
    """In a pod of a PyTorchJob: the operator sets what torchrun takes for its options."""
    nodes = environ["PET_NNODES"]
    if not nodes.isdecimal():
        raise UsageError(
            f"PET_NNODES is {nodes!r}: an elastic job, but the doctor needs a fixed number of nodes; leave "
            "elasticPolicy out, or give --nnodes, --node-rank and --master-addr"
        )
    if int(nodes) <= 1:
        return NodeIdentity()
    if not environ.get("PET_MASTER_ADDR") or not environ.get("PET_NODE_RANK"):
        raise UsageError(
            f"PET_NNODES says {nodes} nodes, and no PET_MASTER_ADDR and PET_NODE_RANK where they meet: give the "
            "PyTorchJob a Master, or --nnodes, --node-rank and --master-addr"
        )
    node, chosen = _number(environ, "PET_NODE_RANK"), port or _number(environ, "PET_MASTER_PORT")
    for name, number, most in (("PET_NODE_RANK", node, int(nodes) - 1), ("PET_MASTER_PORT", chosen, 65535)):
        if number > most:
            raise UsageError(
                f"{name} is {number}, at most {most} is possible; correct it, or give --nnodes, --node-rank and "
                "--master-addr"
            )
    return NodeIdentity(node, int(nodes), environ["PET_MASTER_ADDR"], chosen or DEFAULT_PORT)


def count_told(environ: Mapping[str, str], name: str) -> int:
    """A number of nodes or tasks in a variable of Slurm's, 1 where it tells none."""
    text = environ.get(name, "1")
    return int(text) if text.isdecimal() else 1


def expand_nodes(text: str) -> tuple[str, ...]:
    """The names in a list as Slurm writes it: ``a[01-02,7]-ib,b`` is a01-ib, a02-ib, a7-ib, b."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        found = [""]
        for plain, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            found = [name + end for name in found for end in ([plain] if plain else _range(ranges))]
        names += found
    return tuple(names)


def _range(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last.isdecimal() and first.isdecimal():
            numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
        else:
            numbers.append(part)
    return numbers


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "0")
    if not text.isdecimal():
        raise UsageError(f"{name} is {text!r}, and should be a number; remove it or start with torchrun or srun")
    return int(text)


class Nodes:
    """The nodes of a checkup; where there is one, there is nobody to wait for."""

    def __init__(self, identity: NodeIdentity, store: Any = None) -> None:
        self.identity = identity
        self.hosts: tuple[str, ...] = (host(),)
        self._store = store
        self._said = 0

    @property
    def leads(self) -> bool:
        """Whether this node decides what only one can, and writes the report."""
        return self.identity.node == 0

    def gather(self, value: T, kind: Any, within_s: float = MEET_S) -> tuple[T, ...]:
        """Every node's value of type `kind`, in the order of nodes; each calls this as often as the others. Raises
        NodeError that names the nodes which do not answer within so many seconds, on every node."""
        if self._store is None:
            return (value,)
        self._said += 1
        with _as_node_error(self._names([0])):
            self._store.set(f"{self._said}/{self.identity.node}", msgspec.msgpack.encode(value))
            told = self._collect(within_s)
        if told is None or None in told:
            missing = [0] if told is None else [node for node, data in enumerate(told) if data is None]
            raise NodeError(
                f"{self._names(missing)} did not answer within {within_s:.0f} s; see there whether the same "
                f"command runs and reaches {self.identity.address}, port {self.identity.port}"
            )
        return tuple(_decoded(data, kind) for data in told if data is not None)

    def first(self, value: T, kind: Any, within_s: float = MEET_S) -> T:
        """Node 0's value, on every node."""
        return self.gather(value, kind, within_s)[0]

    def end(self) -> None:
        """Tell the others that this node needs nothing more; node 0 serves until all have, or 5 s."""
        if self._store is None:
            return
        store, self._store = self._store, None
        with suppress(NodeError), _as_node_error("node 0"):
            store.set(f"left/{self.identity.node}", b"")
            if self.leads and not self.identity.agent:
                store.wait([f"left/{node}" for node in range(self.identity.nodes)], timedelta(seconds=5))

    def _collect(self, within_s: float) -> list[bytes | None] | None:
        """What each node said, as node 0 has it, so that all agree on who is missing; None where that one is."""
        if self.leads:
            until = time.monotonic() + within_s
            told = [self._wait(f"{self._said}/{node}", until) for node in range(self.identity.nodes)]
            self._store.set(f"{self._said}/all", msgspec.msgpack.encode(told))
            return told
        # Node 0 may have come to this later than we, and then waits as long for a third one.
        data = self._wait(f"{self._said}/all", time.monotonic() + 2 * within_s + 5)
        answers: list[bytes | None] | None = None if data is None else _decoded(data, list[bytes | None])
        return answers

    def _wait(self, key: str, until: float) -> bytes | None:
        """What stands under a key, None where nothing does until then, by this node's monotonic clock."""
        from torch.distributed import DistStoreError

        try:
            self._store.wait([key], timedelta(seconds=max(0.1, until - time.monotonic())))
        except DistStoreError:
            return None
        return bytes(self._store.get(key))

    def _names(self, nodes: Sequence[int]) -> str:
        known = self.hosts if len(self.hosts) == self.identity.nodes else self.identity.names
        hosts = [f" (host {known[node]})" if node < len(known) else "" for node in nodes]
        return ", ".join(f"node {node}{name}" for node, name in zip(nodes, hosts, strict=True))


def meet(identity: NodeIdentity, within_s: float = MEET_S) -> Nodes:
    """The nodes that this process's belongs to, once all have come. Raises NodeError that names those which do not come
    within so many seconds."""
    if identity.nodes == 1:
        return Nodes(identity)
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined, unused-ignore]

    serves = identity.node == 0 and not identity.agent
    wait = timedelta(seconds=within_s)
    with _as_node_error(f"node 0 at {identity.address}, port {identity.port},"):
        store = TCPStore(identity.address, identity.port, is_master=serves, timeout=wait, wait_for_workers=False)
    nodes = Nodes(identity, PrefixStore("traceops-doctor", store))
    names = nodes.gather(host(), str, within_s)
    nodes.hosts = tuple(f"{name}#{n}" if names.count(name) > 1 else name for n, name in enumerate(names))
    return nodes


def _decoded(data: bytes, kind: Any) -> Any:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NodeError(f"a node runs another version of traceops ({error})") from error


@contextmanager
def _as_node_error(who: str) -> Iterator[None]:
    from torch.distributed import DistError

    try:
        yield
    except DistError as error:
        reason = str(error).partition("\n")[0][:200]
        raise NodeError(f"{who} cannot be reached ({reason}); is the same command running there?") from error
