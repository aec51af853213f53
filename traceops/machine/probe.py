"""Reads everything of a host: programs and files side by side, each with a deadline."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.errors import InputError
from traceops.fabric.model import Gpu, Machine, Nic
from traceops.fabric.readers.topo_matrix import read_topo_matrices
from traceops.machine.files import NO_ANSWER, Output, listed, output, text
from traceops.machine.network import Interface, Plugin, Rdma, can_open, nics, read_interfaces, read_plugin, read_rdma
from traceops.machine.platform import (
    Cpus,
    Limits,
    Links,
    Near,
    PlatformFacts,
    Software,
    parse_nvlink_status,
    read_cpus,
    read_limits,
    read_near,
    read_platform,
    read_software,
)
from traceops.machine.smi import Smi, SmiGpu, parse_smi
from traceops.machine.xids import DriverLog, parse_driver_log

# The files by which NCCL sets variables that the environment does not show.


def nccl_files(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[tuple[str, dict[str, str]], ...]:
    """The files by which NCCL sets variables unseen and what they set, the one that wins first. They are
    NCCL_CONF_FILE, or ``~/.nccl.conf`` without it, and ``/etc/nccl.conf``; the environment beats both."""
    own = environ.get("NCCL_CONF_FILE") or str(Path(environ.get("HOME", "/root")) / ".nccl.conf")
    found = []
    for path in (own, "/etc/nccl.conf"):
        content = text(root / path.lstrip("/") if path.startswith("/") else Path(path))
        if content is not None:
            found.append((path, parse_nccl_file(content)))
    return tuple(found)


def parse_nccl_file(content: str) -> dict[str, str]:
    """What a file like ``/etc/nccl.conf`` sets; blanks count, as for NCCL."""
    lines = (line for line in content.splitlines() if not line.startswith("#") and "=" in line)
    return {name: value for name, _, value in (line.partition("=") for line in reversed(list(lines)))}


Run = Callable[[Sequence[str], float], Output]

_SMI_S = 30.0  # without persistence mode the driver wakes eight GPUs one after the other
_LOG_S = 5.0
_FILES_S = 10.0  # /sys does not wait, a home on a dead file server does
_AFTER_S = 2.0  # what `output` itself may take to give up
_PROGRAMS: dict[str, tuple[tuple[str, ...], float]] = {
    "smi": (("nvidia-smi", "-q", "-x"), _SMI_S),
    "matrix": (("nvidia-smi", "topo", "-m"), _SMI_S),
    "p2p": (("nvidia-smi", "topo", "-p2p", "r"), _SMI_S),
    "nvlink": (("nvidia-smi", "nvlink", "-s"), _SMI_S),
    "log": (("dmesg",), _LOG_S),
}
_NOTHING = Output("", "not asked")


class HostFacts(Struct, frozen=True, dict=True):
    """What was read of a host, before anything of it is judged; None for what was not read in time. smi to log: what
    the programs printed. near: where each GPU sits, by bus id. openable: programs may use the RDMA devices. plugin: of
    NCCL, for EFA. files: NCCL's own, see `nccl_files`."""

    host: str
    smi: Output = _NOTHING
    matrix: Output = _NOTHING
    p2p: Output = _NOTHING
    nvlink: Output = _NOTHING
    log: Output = _NOTHING
    interfaces: tuple[Interface, ...] | None = None
    rdma: tuple[Rdma, ...] | None = None
    openable: bool | None = None
    plugin: Plugin | None = None
    cpus: Cpus | None = None
    near: Mapping[str, Near] = field(default_factory=dict)
    limits: Limits | None = None
    platform: PlatformFacts | None = None
    software: Software | None = None
    files: tuple[tuple[str, dict[str, str]], ...] | None = None

    @cached_property
    def driver(self) -> Smi | None:
        """What nvidia-smi says of the driver and the GPUs; None without an answer."""
        return parse_smi(self.smi.text)

    @property
    def driver_log(self) -> DriverLog:
        """What the kernel's log holds of the driver; nothing where it could not be read."""
        return parse_driver_log(self.log.text)


def probe(environ: Mapping[str, str], root: Path = Path("/"), run: Run = output) -> HostFacts:
    """Reads everything; it ends within 45 s whatever hangs. root and run: for tests."""

    programs = {
        name: (partial(_ask, command, limit, environ, run), limit + _AFTER_S)
        for name, (command, limit) in _PROGRAMS.items()
    }
    files: dict[str, Callable[[], Any]] = {
        "interfaces": lambda: read_interfaces(root, _addressed() if root == Path("/") else None),
        "rdma": partial(read_rdma, root),
        "openable": partial(can_open, root),
        "plugin": partial(read_plugin, environ, root),
        "cpus": partial(read_cpus, root),
        "limits": partial(read_limits, root),
        "platform": partial(read_platform, environ, root),
        "software": partial(read_software, environ, root),
        "files": partial(nccl_files, environ, root),
    }
    done = _within({**programs, **{name: (read, _FILES_S) for name, read in files.items()}})
    for name, (_, limit) in _PROGRAMS.items():
        done.setdefault(name, Output("", f"{NO_ANSWER} within {limit:.0f} s", timed_out=True))
    smi = parse_smi(done["smi"].text)
    ids = [gpu.bus_id for gpu in smi.gpus if gpu.bus_id] if smi else []
    done.update(_within({"near": (lambda: {bus_id: read_near(root, bus_id) for bus_id in ids}, _FILES_S)}))
    return HostFacts(socket.gethostname(), **done)


def _addressed() -> set[str]:
    """Interfaces of this host that have an IPv4 or IPv6 address."""
    import psutil  # type: ignore[import-untyped, unused-ignore]

    families = (socket.AF_INET, socket.AF_INET6)
    return {name for name, found in psutil.net_if_addrs().items() if any(one.family in families for one in found)}


def _ask(command: Sequence[str], limit: float, environ: Mapping[str, str], run: Run) -> Output:
    program = shutil.which(command[0], path=environ.get("PATH")) if run is output else command[0]
    if program is None:
        return Output("", f"{command[0]} is not installed")
    return run((program, *command[1:]), limit)


def _within(jobs: Mapping[str, tuple[Callable[[], Any], float]]) -> dict[str, Any]:
    """What jobs that run side by side gave, by name; without those that took longer than their seconds. Their threads
    are daemons: one that never comes back holds up nothing, not even the end of this process."""
    results: dict[str, Any] = {}
    failures: list[Exception] = []

    def work(name: str, job: Callable[[], Any]) -> None:
        try:
            results[name] = job()
        except Exception as error:  # raised again below, where it is seen
            failures.append(error)

    began = time.monotonic()
    threads = []
    for name, (job, limit) in jobs.items():
        thread = threading.Thread(target=work, args=(name, job), daemon=True)
        thread.start()
        threads.append((thread, limit))
    for thread, limit in threads:
        thread.join(max(began + limit - time.monotonic(), 0.0))
    if failures:
        raise failures[0]
    return dict(results)


def machine_of(facts: HostFacts) -> Machine:
    """GPUs of nvidia-smi with their places, NICs of /sys, and the paths of the matrix between them."""
    try:
        machines = read_topo_matrices("nvidia-smi topo -m", facts.matrix.text) if facts.matrix.text.strip() else ()
    except InputError:  # one GPU alone, or a driver that prints something else: there are no paths to know
        machines = ()
    matrix = machines[0] if machines else Machine(facts.host)
    gpus = facts.driver.gpus if facts.driver else ()
    links = parse_nvlink_status(facts.nvlink.text)
    rows = {gpu.index: gpu for gpu in matrix.gpus}
    found = tuple(
        _gpu(gpu, rows.get(gpu.index), facts.near.get(gpu.bus_id or ""), links.get(gpu.index)) for gpu in gpus
    )
    return Machine(facts.host, found or matrix.gpus, _nics(facts, matrix), matrix.paths)


def _gpu(gpu: SmiGpu, row: Gpu | None, near: Near | None, links: Links | None) -> Gpu:
    """One GPU from its three sources; the matrix's own numbers stand where /sys has none."""
    numa = near.numa if near and near.numa is not None else row.numa if row else None
    cpus = listed(near.cpus) if near and near.cpus else row.cpus if row else None
    return Gpu(
        gpu.index, gpu.name, gpu.bus_id, gpu.uuid, numa, cpus, gpu.pcie,
        len(links.up) if links else None, links.down if links else 0, min(links.up) if links and links.up else None,
    )  # fmt: skip


def _nics(facts: HostFacts, matrix: Machine) -> tuple[Nic, ...]:
    """RDMA devices under the labels the matrix gives them, then network cards that are no part of one."""
    labels = {nic.name: nic for nic in matrix.nics}
    found, cards = list[Nic](), list[Nic]()
    for nic in nics(facts.rdma or ()):
        row = labels.pop(nic.name, None)
        numa = nic.numa if nic.numa is not None else row.numa if row else None
        found.append(replace(nic, label=row.label if row else nic.name or nic.label, numa=numa))
    behind = {port.interface for one in facts.rdma or () for port in one.ports}
    for one in facts.interfaces or ():
        if one.physical and one.name not in behind:
            speed = None if one.mbits is None else one.mbits / 8000
            cards.append(Nic(one.name, one.name, "Ethernet", speed_gbs=speed, bonded=bool(one.ports), up=one.up))
    return (*found, *labels.values(), *cards)
