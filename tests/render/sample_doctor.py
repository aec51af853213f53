"""Checkups as machines give them: healthy, slowed by a variable, broken, without GPUs, and a hostile one."""

from __future__ import annotations

from changed import replace
from sample_fabric import no_gpu, nvswitch, pair_sweep, sweep, two_l4, with_narrow

from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding
from traceops.doctor.model import Checkup, EnvironmentChange, PairState, Remedy, Trial
from traceops.fabric.model import Measured, Reference
from traceops.machine.look import Look
from traceops.rules.registry import RULES

HOST = "node-1"
LOOKS = (
    Look(HOST, "GPU", "GPUs", "4 × NVIDIA H200"),
    Look(HOST, "driver", "driver", "580.95.05, CUDA 13.0"),
    Look(HOST, "NVLink", "links", "18 of 18 up on every GPU"),
    Look(HOST, "memory", "/dev/shm", "128 GB", facts={"bytes": 128 << 30}),
    Look(HOST, "limits", "locked memory", "unlimited"),
    Look(HOST, "network", "InfiniBand", "–", "not_evaluated", "no InfiniBand device"),
)


def _trials(gpus: tuple[int, ...], ways: tuple[str, ...], **changed: str) -> tuple[Trial, ...]:
    names = ("start", "all_reduce", "pairs", "ddp_step", "sweep", "pair_bandwidth")
    return tuple(
        Trial(name, "ok", gpus, 1.5 + place, 45.0, set=changed, transports=ways) for place, name in enumerate(names)
    )


def _checkup(**parts: object) -> Checkup:
    usual: dict[str, object] = {
        "hosts": (HOST,),
        "backend": "nccl",
        "started_at": 1.7e9,
        "seconds": 52.4,
        "machines": (nvswitch(),),
        "looks": LOOKS,
        "trials": _trials((0, 1, 2, 3), ("P2P/CUMEM",)),
        "findings": (),
        "checks": tuple(Check(r.id, "clear") for r in RULES if r.id.startswith(("TO-P", "TO-C"))),
    }
    return Checkup(**{**usual, **parts})  # type: ignore[arg-type]


def _measured(peak: float, pairs: float, gpus: range = range(4), host: str = HOST) -> tuple[Measured, ...]:
    return (
        *sweep("all_reduce", gpus, peak, host),
        *sweep("all_gather", gpus, 0.94 * peak, host),
        *sweep("reduce_scatter", gpus, 0.95 * peak, host),
        *pair_sweep(gpus, pairs, host),
    )


def healthy() -> Checkup:
    """4 H200s at 351 GB/s, pairs at 380 GB/s."""
    measured = _measured(360.0, 380.0)
    before = Reference(HOST, "NVIDIA H200", "4xNV18", 1.6e9, sweep("all_reduce", range(4), 368.0))
    return _checkup(measured=measured, references=(before,))


def p2p_off() -> Checkup:
    """The same machine with NCCL_P2P_DISABLE=1 in its environment, and what removing it gives."""
    change = EnvironmentChange(
        unset=("NCCL_P2P_DISABLE",),
        does="Lets GPUs reach each other over NVLink again.",
        costs="nothing, unless somebody set it because of a crash",
    )
    found = Finding(
        "TO-P002",
        "warning",
        "high",
        "NVLink or P2P is there but not used",
        "All 6 pairs of GPUs have 18 NVLinks, and NCCL connected them through shared memory.",
        (
            Evidence(Fact.OTHER, 17.9, "GB/s", 110.0, subject="all-reduce"),
            Evidence(
                Fact.OTHER,
                "vm:2225:2225 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
                file="nccl.log",
                line=140,
                subject="NCCL log",
            ),
            Evidence(
                Fact.OTHER,
                "vm:2225:2225 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.",
                file="nccl.log",
                line=30,
                subject="NCCL log",
            ),
        ),
        advice="Remove NCCL_P2P_DISABLE from the environment.",
    )
    set_here = Look(
        HOST, "environment", "NCCL_P2P_DISABLE", "1", "warning", "GPUs do not reach each other directly",
        "unset NCCL_P2P_DISABLE",
    )  # fmt: skip
    unchanged = _trials((0, 1, 2, 3), ("SHM/direct",))
    with_change = tuple(
        replace(
            trial, unset=change.unset, measured=sweep("all_reduce", range(4), 360.0) if trial.name == "sweep" else ()
        )
        for trial in _trials((0, 1, 2, 3), ("P2P/CUMEM",))
    )
    other = tuple(
        replace(
            trial,
            set={"NCCL_ALGO": "Tree"},
            measured=sweep("all_reduce", range(4), 15.0) if trial.name == "sweep" else (),
        )
        for trial in unchanged
    )
    remedies = (Remedy(change, 351.1, 17.9),)
    return _checkup(
        looks=(*LOOKS, set_here),
        trials=(*unchanged, *with_change, *other),
        findings=(found,),
        checks=(Check("TO-P002", "fired"), Check("TO-P001", "clear", "every pair has NVLink")),
        measured=_measured(18.0, 18.0),
        remedies=remedies,
        settings=remedies[0],
        problems=(("nccl.2227.log", "it is cut off"),),
    )


def broken() -> Checkup:
    """Two L4s on two NUMA nodes whose P2P hangs; shared memory works."""
    change = EnvironmentChange(
        {"NCCL_P2P_DISABLE": "1"}, (), "GPUs talk through shared memory.", "a third of the bandwidth"
    )
    failing = (
        Trial("start", "ok", (0, 1), 4.1, 45.0),
        Trial(
            "all_reduce", "hung", (0, 1), 30.0, 30.0, "rank 1 stood at: all_reduce of 4 MiB",
            ("NCCL WARN Cuda failure 217 'peer access is not supported'", "second", "third", "fourth"),
            transports=("P2P/IPC",),
        ),
        Trial("pairs", "not_evaluated", (0, 1), 0.0, 60.0, "not begun", pairs=(PairState((0, 1), "hung"),)),
    )  # fmt: skip
    works = tuple(
        replace(trial, measured=sweep("all_reduce", range(2), 9.9, "l4-host") if trial.name == "sweep" else ())
        for trial in _trials((0, 1), ("SHM/direct",), NCCL_P2P_DISABLE="1")
    )
    shm = Look(
        "l4-host", "memory", "/dev/shm", "64 MB", "error", "NCCL's shared memory does not fit", "docker run --ipc=host"
    )
    remedy = Remedy(change, 9.2, None)
    return _checkup(
        hosts=("l4-host",),
        machines=(two_l4(),),
        looks=(*(replace(look, host="l4-host") for look in LOOKS[3:]), shm),
        trials=(*failing, *works),
        remedies=(remedy,),
        settings=remedy,
    )


def beyond_help() -> Checkup:
    """Nothing works: one GPU stands in for all."""
    dead = Trial("start", "hung", (0, 1), 45.0, 45.0, "rank 1 never came to it")
    return replace(
        broken(), trials=(dead, replace(dead, set={"NCCL_IB_DISABLE": "1"})), settings=None, remedies=(), fallback=2
    )


def cpu_only() -> Checkup:
    """A host without GPUs: gloo between two ranks."""
    return _checkup(
        hosts=("cpu-host",),
        backend="gloo",
        machines=(no_gpu(),),
        looks=(
            Look("cpu-host", "GPU", "GPUs", "none", "not_evaluated", "no NVIDIA driver"),
            Look("cpu-host", "memory", "/dev/shm", "4 GB"),
        ),
        trials=(Trial("start", "ok", (0, 1), 3.3, 45.0), Trial("sweep", "ok", (0, 1), 8.0, 60.0)),
        measured=sweep("all_reduce", range(2), 1.1, "cpu-host", "gloo"),
        checks=tuple(Check(r.id, "not_evaluated", "no GPU") for r in RULES if r.id.startswith("TO-P")),
    )


def eight_with_a_slow_pair() -> Checkup:
    """8 H200s, one with half a PCIe link and two NVLinks down; one pair far below the others."""
    machine = with_narrow(nvswitch(8, numas=2, nics=8), 3)
    measured = (*sweep("all_reduce", range(8), 470.0), *pair_sweep(range(8), 380.0, slow={(3, 5): 90.0}))
    width = Look(HOST, "PCIe", "GPU3", "Gen5 ×8", "warning", "its siblings have ×16", "Reseat the card or its riser.")
    return _checkup(
        machines=(machine,), looks=(*LOOKS, width), trials=_trials(tuple(range(8)), ("P2P/CUMEM",)), measured=measured
    )


def hostile(text: str) -> Checkup:
    """Text that tries to break out of a page, wherever a machine or a log can put one."""
    base = p2p_off()
    machine = nvswitch(2, text)
    evidence = (Evidence(Fact.OTHER, text, file=text, line=3, subject=text),)
    return replace(
        base,
        hosts=(text, text + "2"),
        machines=(replace(machine, gpus=tuple(replace(gpu, name=text, cpus=text) for gpu in machine.gpus)),),
        looks=(Look(text, text, text, text, "error", text, text, {text: text}),),
        trials=(Trial(text, "failed", (0, 1), 1.0, 2.0, text, (text,), {text: text}, (text,), transports=(text,)),),
        measured=(*sweep(text, range(2), 5.0, text), *pair_sweep(range(2), 5.0, text)),
        references=(Reference(text, text, text, 0.0, sweep(text, range(2), 7.0, text), {text: text}),),
        settings=Remedy(EnvironmentChange({"NCCL_X": text}, (), text, text), 2.0, 1.0),
        findings=(replace(base.findings[0], title=text, message=text, evidence=evidence),),
        problems=((text, text),),
    )  # fmt: skip


def many_hosts(hosts: int = 4) -> Checkup:
    """Hosts of the same make; one has less shared memory."""
    names = tuple(f"node-{number + 1}" for number in range(hosts))
    looks = tuple(replace(look, host=name) for name in names for look in LOOKS)
    small = Look(names[-1], "memory", "/dev/shm", "64 MB", "error", "too small", "--ipc=host")
    return _checkup(hosts=names, machines=tuple(nvswitch(4, name) for name in names), looks=(*looks, small))
