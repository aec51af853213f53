"""A whole checkup: look at every node, test, try changes and judge; or judge what others saved of a machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from traceops.capture.environment import printable
from traceops.core.claims import reason
from traceops.core.errors import InputError, UsageError
from traceops.core.findings import Finding
from traceops.core.rule import Verdict
from traceops.core.torch_here import gpu_count
from traceops.doctor.candidates import NodeContext, change_of, costly_variables, node_context_of, visible_gpus
from traceops.doctor.checkup_plan import CheckupPlan
from traceops.doctor.conclusions import conclusions, judge_measured
from traceops.doctor.document import judge_tests
from traceops.doctor.job import Backend
from traceops.doctor.model import Checkup, Remedy, Trial
from traceops.doctor.nodes import NodeError, NodeIdentity, Nodes
from traceops.doctor.runs import Runner
from traceops.doctor.trials import run_job
from traceops.doctor.try_changes import WORTH_IT
from traceops.fabric.discover import named_fabric, named_files
from traceops.fabric.fabric import Circumstances, Fabric
from traceops.fabric.model import Machine, Reference, same_host
from traceops.fabric.reference import fingerprint, kept_reference, make_reference, save_reference
from traceops.machine.look import Look
from traceops.machine.probe import nccl_files
from traceops.machine.saved import CUT_OFF, Apart, SavedOutputs, read_outputs, with_bus_ids
from traceops.rules.explained import judged_checks, most_important_first
from traceops.rules.fabric.judge import judge_fabric
from traceops.rules.machine.host import inspect_host
from traceops.rules.machine.judge import judge_looks
from traceops.rules.machine.limits import looked
from traceops.rules.machine.saved import judge_log, judge_outputs

BUDGET_S = 165.0  # for tests: with looking and the last job's end within three minutes


class Options(Struct, frozen=True):
    """gpus: to test, as nvidia-smi counts, None for all visible ones. nproc: ranks on the CPU. quick: fewer tests.
    tests: False only looks. budget_s: for all tests together."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpus: tuple[int, ...] | None = None
    nproc: int | None = None
    quick: bool = False
    tests: bool = True
    budget_s: float = BUDGET_S


class Tools(Struct, frozen=True):
    """What a checkup calls: to look at this machine, to run a job, and to judge. Tests put others in their place.
    count_gpus: for machines whose GPUs nvidia-smi does not tell of."""

    look: Callable[[Mapping[str, str]], tuple[Machine, tuple[Look, ...]]]
    run_job: Callable[..., tuple[Trial, ...]]
    judge: Callable[[Fabric, Circumstances], Sequence[Verdict]]
    read_logs: Callable[[Path], Fabric | None]
    count_gpus: Callable[[Mapping[str, str]], int]


def check_up(
    options: Options, environ: Mapping[str, str], nodes: Nodes | None = None, tools: Tools | None = None,
    report: Callable[[str], None] = lambda text: None, logs: Path | None = None,
) -> Checkup:  # fmt: skip
    """Everything the doctor finds on the nodes. Node 0's options count, but for which GPUs and how many ranks. report:
    called with what is being done, a line each. logs: folder for NCCL's logs of the first job, None keeps none. Raises
    UsageError for options that fit no machine here, NodeError where a node does not come."""
    nodes = nodes or Nodes(NodeIdentity())
    options = replace(nodes.first(options, Options), gpus=options.gpus, nproc=options.nproc)
    began, until = time.time(), time.monotonic() + options.budget_s
    # Tools look at this machine and start processes on it.
    tools = tools or Tools(inspect_host, run_job, judge_fabric, _read_logs, gpu_count)
    report(reason("doctor", "looking_one" if len(nodes.hosts) == 1 else "looking", nodes=len(nodes.hosts)))
    # Looks are sent and written as UTF-8.
    readable = {name: printable(value) for name, value in environ.items()}
    told = nodes.gather(tools.look(readable), tuple[Machine, tuple[Look, ...]])
    machines = tuple(machine for machine, _ in told)
    looks = tuple(look for _, seen in told for look in seen)
    plan, why_not = _prepare(options, environ, nodes, tools, machines, until, report, logs)
    if plan is not None:
        try:
            plan.run()
        except NodeError as error:
            looks += (looked(nodes.hosts[0], "tests", "node_lost", problem=str(error)),)
        looks += conclusions(plan)
    elif why_not:
        looks += (looked(nodes.hosts[0], "tests", "no_communication", why=why_not),)
    checkup = Checkup(
        nodes.hosts, plan.runner.backend if plan else "gloo", began, 0.0, machines, looks,
        tuple(plan.trials) if plan else (), (), (),
    )  # fmt: skip
    if plan is not None and plan.best is not None:
        checkup = _with_search(checkup, plan)
    return replace(_judged(checkup, plan, tools, logs), seconds=time.time() - began)


def _read_logs(folder: Path) -> Fabric | None:
    try:
        return named_fabric([folder])
    except InputError:  # gloo writes none, and NCCL may have failed before it said anything
        return None


def _prepare(
    options: Options, environ: Mapping[str, str], nodes: Nodes, tools: Tools, machines: tuple[Machine, ...],
    until: float, report: Callable[[str], None], logs: Path | None,
) -> tuple[CheckupPlan | None, str]:  # fmt: skip
    """The tests, ready to go; None and the reason where there will be none."""
    machine = machines[nodes.identity.node]
    if not options.tests:
        return None, reason("doctor", "no_tests")
    torch_here = find_spec("torch") is not None
    if not all(nodes.gather(torch_here, bool)):
        return None, reason("doctor", "no_torch")
    gpus = () if options.device == "cpu" else visible_gpus(machine, environ)
    if options.device != "cpu" and not machine.gpus:
        gpus = tuple(range(tools.count_gpus(environ)))
    with_gpus = nodes.gather(len(gpus), int)
    if options.device == "cuda" and not all(with_gpus):
        raise UsageError("--device cuda: torch sees no GPU that it can use here; use --device cpu")
    backend: Backend = "nccl" if all(with_gpus) else "gloo"
    if backend == "gloo":
        gpus = ()
    devices = _devices(options, gpus)
    counts = nodes.gather(len(devices), int)
    runner = Runner(nodes, tools.run_job, environ, backend, gpus, devices, counts)
    contexts = nodes.gather(node_context_of(machine, environ), NodeContext)
    # On the CPU bandwidth depends on what else runs: an earlier measurement tells nothing.
    past = kept_reference(machine.host or "unknown", fingerprint(machine)) if gpus else None
    costly = nodes.gather(costly_variables(environ, machine, backend, len(devices)), tuple[str, ...])
    plan = CheckupPlan(
        runner, machines, contexts, tuple(dict.fromkeys(name for names in costly for name in names)), past, until,
        options.quick, logs if backend == "nccl" else None, report,
    )  # fmt: skip
    return plan, ""


def _devices(options: Options, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """What takes part, as CUDA counts; ranks on the CPU. Raises UsageError for GPUs that are not visible."""
    if not gpus:
        if options.gpus is not None:
            raise UsageError("--gpus: there is no GPU here; use --nproc N to test N ranks on the CPU")
        return tuple(range(options.nproc or 2))
    if options.gpus is None:
        return tuple(range(min(options.nproc or len(gpus), len(gpus))))
    if missing := [gpu for gpu in options.gpus if gpu not in gpus]:
        raise UsageError(
            f"--gpus {','.join(map(str, options.gpus))}: GPU {missing[0]} is not visible; "
            f"those that are: {','.join(map(str, gpus))}"
        )
    return tuple(gpus.index(gpu) for gpu in dict.fromkeys(options.gpus))


def _with_search(checkup: Checkup, plan: CheckupPlan) -> Checkup:
    assert plan.best is not None and plan.first is not None
    before = None if plan.state.failed else plan.state.gbs
    remedies = plan.search.remedies(before)
    chosen = plan.search.chosen
    settings = None
    if chosen is not None:
        best = plan.best.of(plan.scope).gbs
        settings = Remedy(chosen.change, best if best is not None else chosen.gbs, before)
        remedies = (settings, *remedies[1:])  # with the number of the full test
    elif plan.stand_in is not None:
        key = "first_sound" if plan.isolation.alone else "first_tested"
        change = change_of(key, plan.isolation.shown((plan.stand_in,)), gpu=plan.stand_in)
        settings = Remedy(change, None, None)
    references = _references(checkup, plan)
    return replace(
        checkup, measured=plan.best.measured, remedies=remedies, settings=settings,
        fallback=plan.fallback, references=references,
    )  # fmt: skip


def _references(checkup: Checkup, plan: CheckupPlan) -> tuple[Reference, ...]:
    """What each node gave at its best. Each keeps its own, unless something holds it down."""
    if (best := plan.best) is None or best.failed or _held_down(plan):
        return ()
    found = []
    own = plan.runner.nodes.identity.node
    for number, machine in enumerate(checkup.machines):
        rows = [row for row in best.measured if row.host == machine.host and row.host is not None]
        if not rows:
            continue
        environ = plan.contexts[number].environ  # what was set for the library that carries the data
        names = [name for name in environ if name.startswith(("NCCL_", "GLOO_")) and name not in best.change.unset]
        settings = {name: environ[name] for name in names} | best.change.set
        reference = make_reference(machine, rows, settings, checkup.started_at)
        kept = save_reference(reference) if number == own else None
        found.append(reference if kept is None else replace(reference, source=str(kept)))
    return tuple(found)


def _held_down(plan: CheckupPlan) -> bool:
    """Whether what was measured may be less than the machine gives: slow, slow pairs, or a costly variable set. A
    variable that was measured not to cost anything holds nothing down."""
    best = plan.best
    assert best is not None
    left = set(plan.costly) - set(best.change.unset)
    removed = set(best.change.unset)
    for one in plan.search.tried:
        more = set(one.change.unset)
        if one.works and removed <= more and (one.gbs or 0.0) < WORTH_IT * (best.node.gbs or 0.0):
            left -= more
    return plan.is_slow(best) or bool(best.node.slow_pairs) or bool(left) or bool(_costly_besides(plan))


def _costly_besides(plan: CheckupPlan) -> tuple[str, ...]:
    """Costly variables that files set for NCCL, beyond any change of the environment, or that the cure sets."""
    runner = plan.runner
    set_ = {name: value for _, settings in nccl_files(runner.environ) for name, value in settings.items()}
    besides = {name: value for name, value in set_.items() if name not in runner.environ}
    if plan.best is not None and plan.state.failed:
        besides |= plan.best.change.set
    machine = plan.machines[runner.nodes.identity.node]
    return costly_variables(besides, machine, runner.backend, len(runner.devices))


def _judged(checkup: Checkup, plan: CheckupPlan | None, tools: Tools, logs: Path | None) -> Checkup:
    seen = tools.read_logs(logs) if logs is not None and logs.is_dir() else None
    fabric = Fabric(checkup.machines, seen.log if seen else None, checkup.references)
    first = plan.first if plan else None
    slow = plan is not None and plan.is_slow(first)
    hung = first is not None and any(trial.outcome == "hung" for trial in first.trials)
    rows = first.measured if first else ()
    verdicts = [
        *tools.judge(fabric, Circumstances(slow="error" if slow else None, hung=hung, measured=rows)),
        *judge_measured(rows, checkup.machines, plan.before if plan else None),
        *judge_looks(checkup.looks, checkup.hosts, bool(checkup.trials)),
        judge_tests(checkup.trials, checkup.hosts),
    ]
    return replace(checkup, findings=findings_of(verdicts), checks=tuple(judged_checks(verdicts)), log=fabric.log)


def findings_of(verdicts: Sequence[Verdict]) -> tuple[Finding, ...]:
    """The findings of all verdicts, the most important first."""
    return tuple(most_important_first([finding for verdict in verdicts for finding in verdict.findings]))


def check_files(paths: Sequence[str | Path]) -> Checkup:
    """What the files tell; nothing is tested. Raises InputError where a named file tells nothing, or all do."""
    outputs, used, problems = read_outputs(named_files(paths))
    fabric = named_fabric(paths, used | {Path(path) for path, _ in problems})
    if not fabric.tells and not outputs:
        before = reason("doctor", "nothing_comes_before", what=CUT_OFF.removeprefix("what comes after "))
        raise InputError("\n".join(f"{path}: {before if what == CUT_OFF else what}" for path, what in problems))
    fabric = replace(fabric, problems=(*fabric.problems, *problems))
    pairs = [_with_machine(one, fabric.machines, alone=len(outputs) == 1) for one in outputs]
    outputs = tuple(one for one, _ in pairs)
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


def _with_machine(
    one: SavedOutputs, machines: Sequence[Machine], *, alone: bool
) -> tuple[SavedOutputs, Machine | None]:
    """The outputs with the topology of their host. It has its name; without names, what one folder holds of one machine
    is of the same one, unless GPUs differ."""
    named = [machine for machine in machines if one.host is not None and same_host(machine.host, one.host)]
    if not named and alone and len(machines) == 1 and None in (machines[0].host, one.host):
        named = list(machines)
    if len(named) != 1:
        return one, None
    [machine] = named
    if (why := one.difference(machine)) is not None:
        return replace(one, apart=Apart(one.files[0], machine.sources[0], why)), None
    return replace(one, name=machine.host or one.name), machine
