"""The checkup of files that others saved: of links and NCCL, and of what programs printed about a host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceops.core.errors import InputError
from traceops.doctor.checkup import findings_of
from traceops.doctor.judge_tests import judge_tests
from traceops.doctor.model import Checkup
from traceops.fabric.discover import named_fabric, named_files
from traceops.fabric.fabric import Fabric
from traceops.machine.saved import SavedOutputs, read_outputs
from traceops.rules.fabric import judge_fabric
from traceops.rules.machine import judge_looks
from traceops.rules.machine_saved import judge_outputs
from traceops.rules.results import judged_checks


def check_files(paths: Sequence[str | Path]) -> Checkup:
    """What the files tell; nothing is tested. Raises InputError where a named file tells nothing, or all do."""
    outputs, used, problems = read_outputs(named_files(paths))
    fabric = named_fabric(paths, used | {Path(path) for path, _ in problems})
    if not fabric.tells and not outputs:
        raise InputError("\n".join(f"{path}: {what}" for path, what in problems))
    return _judged(replace(fabric, problems=(*fabric.problems, *problems)), outputs)


def _judged(fabric: Fabric, outputs: Sequence[SavedOutputs]) -> Checkup:
    if len(outputs) == len(fabric.machines) == 1:  # what one folder holds of one machine is of the same one
        [machine] = fabric.machines
        outputs = [replace(outputs[0], name=machine.host or outputs[0].name)]
        looks = list(judge_outputs(outputs[0], machine.paths))
    else:
        looks = [look for one in outputs for look in judge_outputs(one)]
    hosts = dict.fromkeys(machine.host for machine in fabric.machines if machine.host)
    hosts |= dict.fromkeys(host for benchmark in fabric.benchmarks for host in benchmark.hosts)
    hosts |= dict.fromkeys(one.name for one in outputs)
    verdicts = [*judge_fabric(fabric), *judge_looks(looks, tuple(hosts), tested=False), judge_tests((), ())]
    return Checkup(
        tuple(hosts), "nccl", time.time(), 0.0, fabric.machines, tuple(looks), (), findings_of(verdicts),
        tuple(judged_checks(verdicts)), references=fabric.references, problems=fabric.problems, log=fabric.log,
        benchmarks=fabric.benchmarks, inspector=fabric.inspector,
    )  # fmt: skip
