"""Inspects this host: reads it, and judges what was read by all rules of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from traceops.fabric.model import Machine
from traceops.machine.files import output
from traceops.machine.look import HostContext, Look
from traceops.machine.platform import parse_nvlink_status, parse_p2p
from traceops.machine.probe import HostFacts, Run, machine_of, probe
from traceops.rules.machine.gpus import judge_gpus, judge_xids
from traceops.rules.machine.limits import judge_cpus, judge_limits, looked
from traceops.rules.machine.links import judge_lanes, judge_nvlink, judge_p2p
from traceops.rules.machine.network import judge_efa, judge_gdr, judge_interfaces, judge_rdma
from traceops.rules.machine.platform import judge_container, judge_fabric_manager, judge_pcie_ways, judge_software
from traceops.rules.machine.variables import check_variables


def inspect_host(
    environ: Mapping[str, str], root: Path = Path("/"), run: Run = output
) -> tuple[Machine, tuple[Look, ...]]:
    """What this machine is and has, and everything that was looked at, in the order of the doctor's table. Programs and
    files are asked side by side, each with a deadline: it ends within 45 s whatever hangs. root and run: where files
    are read and how programs are run, for tests."""
    return judge(probe(environ, root, run), environ)


def judge(facts: HostFacts, environ: Mapping[str, str]) -> tuple[Machine, tuple[Look, ...]]:
    """The machine, and the Looks that follow from what was read."""
    machine = machine_of(facts)
    looks = [*_gpus(facts, machine), *_host(facts, environ, machine), *_network(facts), *_software(facts, environ)]
    return machine, tuple(looks)


def _gpus(facts: HostFacts, machine: Machine) -> list[Look]:
    host, driver = facts.host, facts.driver
    if driver is None or not driver.gpus:
        unseen = [
            looked(host, about, "no_gpu", problem=facts.smi.problem) for about in ("gpus", "nvlink", "gpu_link", "p2p")
        ]
        if facts.platform is None or not facts.platform.has_gpus:
            if facts.smi.timed_out:  # without a GPU it says so at once
                unseen[0] = looked(host, "driver", "no_answer", problem=facts.smi.problem)
            return [*unseen, looked(host, "xid", "no_gpu", problem=facts.smi.problem)]
        return [*unseen, *judge_xids(facts.driver_log, facts.log.problem, {}, host)]
    gpus = driver.gpus
    labels = {gpu.bus_id: gpu.label for gpu in gpus if gpu.bus_id}
    links = parse_nvlink_status(facts.nvlink.text) if facts.nvlink.problem is None else None
    if not links and facts.nvlink.text.strip():  # words of another driver: no proof that there are none
        links = None
    looks = [*judge_gpus(driver, host), *judge_xids(facts.driver_log, facts.log.problem, labels, host)]
    looks += judge_nvlink(gpus, links, machine.paths, host)
    looks += judge_lanes(gpus, host)
    virtual = facts.cpus.virtual if facts.cpus else None
    if len(gpus) > 1:
        looks += judge_p2p(parse_p2p(facts.p2p.text), machine.paths, bool(virtual), host)
    else:
        looks.append(looked(host, "p2p", "one_gpu"))
    if facts.platform is not None:
        shown = any(gpu.fabric_state is not None for gpu in gpus)
        looks += judge_fabric_manager(facts.platform, shown, len(gpus), host)
        looks += judge_pcie_ways(facts.platform, virtual, _all_linked(machine), len(gpus), host)
    return looks


def _all_linked(machine: Machine) -> bool:
    """Whether NVLink joins every pair of GPUs."""
    paths = [machine.path(one.label, other.label) for one, other in combinations(machine.gpus, 2)]
    return bool(paths) and all(path is not None and path.kind == "NV" for path in paths)


def _host(facts: HostFacts, environ: Mapping[str, str], machine: Machine) -> list[Look]:
    host, count = facts.host, len(machine.gpus)
    rdma = any(one.active for one in facts.rdma or ())
    looks: list[Look] = []
    if facts.cpus is not None:
        near = [(gpu.label, place) for gpu in machine.gpus if (place := facts.near.get(gpu.bus_id or ""))]
        quota = facts.limits.processors if facts.limits else None
        looks += judge_cpus(facts.cpus, near, quota, host)
    else:
        looks.append(looked(host, "cores", "unanswered"))
    looks += judge_limits(facts.limits, count, rdma, host) if facts.limits else [looked(host, "limits", "unanswered")]
    if facts.platform is not None:
        looks += judge_container(facts.platform, environ, count, facts.smi.problem, host, timed_out=facts.smi.timed_out)
    else:
        looks.append(looked(host, "container", "unanswered"))
    return looks


def _network(facts: HostFacts) -> list[Look]:
    host = facts.host
    if facts.rdma is None or facts.interfaces is None or facts.openable is None:
        return [looked(host, "interfaces", "unanswered")]
    active = [one for one in facts.rdma if one.active]
    looks = [*judge_interfaces(facts.interfaces, bool(active), host), *judge_rdma(facts.rdma, facts.openable, host)]
    gpus = [gpu.name for gpu in facts.driver.gpus] if facts.driver else []
    if facts.plugin is not None:
        looks += judge_efa(facts.rdma, facts.plugin, len(gpus), host)
    if facts.platform is not None:
        efa = any(one.family == "EFA" for one in active)
        looks.append(judge_gdr(facts.platform, bool(active), efa, gpus, host))
    return looks


def _software(facts: HostFacts, environ: Mapping[str, str]) -> list[Look]:
    host, driver, software = facts.host, facts.driver, facts.software
    gpus = driver.gpus if driver else ()
    looks: list[Look] = []
    if software is not None:
        looks += judge_software(software, driver.cuda if driver else None, len(gpus), host)
    else:
        looks.append(looked(host, "torch", "unanswered"))
    context = HostContext(
        facts.interfaces,
        facts.rdma,
        None if driver is None and facts.platform and facts.platform.has_gpus else len(gpus),
        tuple(gpu.uuid for gpu in gpus if gpu.uuid),
        software.nccl if software else None,
        software.torch if software else None,
    )
    return [*looks, *check_variables(environ, host, context, facts.files or ())]
