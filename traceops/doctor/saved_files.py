"""The checkup of files that others saved: of links and NCCL, and of what programs printed about a host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from traceops.core.errors import InputError
from traceops.doctor.checkup import findings_of
from traceops.doctor.judge_tests import judge_tests
from traceops.doctor.model import Checkup
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Machine, same_host
from traceops.fabric.read import named_fabric, named_files
from traceops.machine.saved import CUT_OFF, Apart, SavedOutputs, read_outputs, with_bus_ids
from traceops.rules.explained import judged_checks
from traceops.rules.fabric.judge import judge_fabric
from traceops.rules.machine.judge import judge_looks
from traceops.rules.machine.saved import judge_log, judge_outputs


def check_files(paths: Sequence[str | Path]) -> Checkup:
    """What the files tell; nothing is tested. Raises InputError where a named file tells nothing, or all do."""
    outputs, used, problems = read_outputs(named_files(paths))
    fabric = named_fabric(paths, used | {Path(path) for path, _ in problems})
    if not fabric.tells and not outputs:
        raise InputError("\n".join(f"{path}: {_without(what)}" for path, what in problems))
    return _judged(replace(fabric, problems=(*fabric.problems, *problems)), outputs)


def _without(problem: str) -> str:
    return f"nothing is told before {problem.removeprefix('what comes after ')}" if problem == CUT_OFF else problem


def _with_machine(
    one: SavedOutputs, machines: Sequence[Machine], *, alone: bool
) -> tuple[SavedOutputs, Machine | None]:
    """The outputs with the topology of their host.

    It has its name; without names, what one folder holds of one machine is of the same one, unless GPUs differ.
    """
    named = [machine for machine in machines if one.host is not None and same_host(machine.host, one.host)]
    if not named and alone and len(machines) == 1 and None in (machines[0].host, one.host):
        named = list(machines)
    if len(named) != 1:
        return one, None
    [machine] = named
    if (why := one.difference(machine)) is not None:
        return replace(one, apart=Apart(one.files[0], machine.sources[0], why)), None
    return replace(one, name=machine.host or one.name), machine


def _judged(fabric: Fabric, outputs: Sequence[SavedOutputs]) -> Checkup:
    pairs = [_with_machine(one, fabric.machines, alone=len(outputs) == 1) for one in outputs]
    outputs = [one for one, _ in pairs]
    looks = [look for one, machine in pairs for look in judge_outputs(one, machine.paths if machine else None)]
    told = {id(machine): with_bus_ids(machine, one.outputs) for one, machine in pairs if machine is not None}
    machines = tuple(told.get(id(machine), machine) for machine in fabric.machines)
    fabric = replace(fabric, machines=machines)
    of_log = judge_log(fabric, looks)
    looks += of_log
    hosts = dict.fromkeys(machine.host for machine in fabric.machines if machine.host)
    hosts |= dict.fromkeys(host for benchmark in fabric.benchmarks for host in benchmark.hosts)
    hosts |= dict.fromkeys(one.name for one in outputs)
    hosts |= dict.fromkeys(look.host for look in of_log)
    verdicts = [*judge_fabric(fabric), *judge_looks(looks, tuple(hosts), tested=False), judge_tests((), ())]
    return Checkup(
        tuple(hosts), "nccl", time.time(), 0.0, fabric.machines, tuple(looks), (), findings_of(verdicts),
        tuple(judged_checks(verdicts)), references=fabric.references, problems=fabric.problems, log=fabric.log,
        benchmarks=fabric.benchmarks, inspector=fabric.inspector,
    )  # fmt: skip
