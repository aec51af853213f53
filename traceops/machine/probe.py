"""Reads everything of a host: programs and files side by side, each with a deadline."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from traceops.machine.cpus import Cpus, Near, read_cpus, read_near
from traceops.machine.efa import Plugin, read_plugin
from traceops.machine.interfaces import Interface, read_interfaces
from traceops.machine.limits import Limits, read_limits
from traceops.machine.nccl_files import nccl_files
from traceops.machine.platform import PlatformFacts, read_platform
from traceops.machine.programs import NO_ANSWER, Output, output
from traceops.machine.rdma import Rdma, can_open, read_rdma
from traceops.machine.smi import Smi, parse_smi
from traceops.machine.software import Software, read_software
from traceops.machine.xids import DriverLog, parse_driver_log

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


@dataclass(frozen=True)
class HostFacts:
    """What was read of a host, before anything of it is judged; None for what was not read in time.

    smi to log: what the programs printed. near: where each GPU sits, by bus id. openable: programs may use the RDMA
    devices. plugin: of NCCL, for EFA. files: NCCL's own, see `nccl_files`.
    """

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

    def asking(command: Sequence[str], limit: float) -> Callable[[], Output]:
        return lambda: _ask(command, limit, environ, run)

    programs = {name: (asking(command, limit), limit + _AFTER_S) for name, (command, limit) in _PROGRAMS.items()}
    files: dict[str, Callable[[], Any]] = {
        "interfaces": lambda: read_interfaces(root, _addressed() if root == Path("/") else None),
        "rdma": lambda: read_rdma(root),
        "openable": lambda: can_open(root),
        "plugin": lambda: read_plugin(environ, root),
        "cpus": lambda: read_cpus(root),
        "limits": lambda: read_limits(root),
        "platform": lambda: read_platform(environ, root),
        "software": lambda: read_software(environ, root),
        "files": lambda: nccl_files(environ, root),
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
    """What jobs that run side by side gave, by name; without those that took longer than their seconds.

    Their threads are daemons: one that never comes back holds up nothing, not even the end of this process.
    """
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
