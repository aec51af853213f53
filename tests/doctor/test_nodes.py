"""GPUs and nodes that keep the others from working together: found, named, and left out; how nodes agree."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
from changed import replace
from hypothesis import given
from hypothesis import strategies as st
from paper_machine import PaperMachine
from ports import free_port
from started import environment

from traceops.core.errors import UsageError
from traceops.doctor.candidates import Situation
from traceops.doctor.isolate import Isolation, _at_once
from traceops.doctor.model import Checkup, PairState, Trial
from traceops.doctor.nodes import NodeError, NodeIdentity, Nodes, expand_nodes, find_identity, meet
from traceops.doctor.runs import Runner, shared_by, shared_text, to_leave_out
from traceops.doctor.trials import run_job
from traceops.fabric.model import Gpu, Machine, Path
from traceops.render.doctor.rows import attempts
from traceops.render.doctor.text import doctor_verdict, fallback_lines

pytestmark = pytest.mark.torch

BUSY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"
DIES = "exit code -11: killed by SIGSEGV"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))


def shown(checkup: Checkup) -> str | None:
    return checkup.settings.change.set.get("CUDA_VISIBLE_DEVICES") if checkup.settings else None


@pytest.mark.parametrize("why", [BUSY, DIES])
def test_a_gpu_that_fails_alone_is_left_out_and_no_setting_is_tried_against_it(why):
    machine = PaperMachine(broken={2: why})
    checkup = machine.check_up()
    assert shown(checkup) == "0,1,3" and checkup.fallback is None
    assert checkup.settings is not None and checkup.settings.after_gbs == 350.0
    assert {name for set_, _ in machine.tried for name in set_} == {
        "CUDA_VISIBLE_DEVICES", "NCCL_IB_DISABLE", "NCCL_NET_PLUGIN",
    }  # fmt: skip
    [look] = [look for look in checkup.looks if look.what == "GPU 2 alone"]
    assert look.level == "error" and why in look.why and "GPUs 0, 1, 3 work without the others" in look.why
    # Trials of one GPU are no attempt to let several work together.
    assert [one.chosen for one in attempts(checkup)] == [False, True]
    assert {row.gpus for row in checkup.measured if row.op == "all_reduce"} == {(0, 1, 3)}


@pytest.fixture
def timed(monkeypatch):
    """Checks a machine up by its own clock."""

    def check_up(machine: PaperMachine, *args: Any, **options: Any) -> Checkup:
        clock = SimpleNamespace(monotonic=lambda: machine.now, time=lambda: machine.now)
        monkeypatch.setattr("traceops.doctor.checkup_plan.time", clock)
        monkeypatch.setattr("traceops.doctor.checkup.time", clock)
        return machine.check_up(*args, **options)

    return check_up


@pytest.mark.parametrize(
    "environ", [{"NCCL_SOCKET_IFNAME": "eth0"}, {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5"}]
)
def test_the_likeliest_variable_is_looked_into_first_and_then_each_gpu(environ, timed):
    """Else the time is used up by settings, which all fail, and nobody knows of the GPU."""
    machine = PaperMachine(8, broken={0: DIES})
    checkup = timed(machine, environ)
    assert machine.tried[0] == ({}, ("NCCL_SOCKET_IFNAME",))
    assert [set_ for set_, unset in machine.tried if unset][1:] == [machine.jobs[1 + 1].set] * 8  # each alone
    assert shown(checkup) == "1,2,3,4,5,6,7" and checkup.seconds < 140


@pytest.mark.parametrize("why", [BUSY, DIES])
def test_a_variable_and_a_gpu_are_at_fault(why, timed):
    def starts(environ):
        return "no socket interface found" if environ.get("NCCL_SOCKET_IFNAME") == "nosuch0" else None

    machine = PaperMachine(4, broken={3: why}, starts=starts)
    checkup = timed(machine, {"NCCL_SOCKET_IFNAME": "nosuch0", "NCCL_ALGO": "Ring"})
    assert checkup.settings is not None and checkup.fallback is None
    change = checkup.settings.change
    assert (change.set, change.unset) == ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, ("NCCL_SOCKET_IFNAME",))
    assert change.does.startswith("leaves GPU 3 out; lets NCCL find a network interface")
    [look] = [look for look in checkup.looks if look.what == "GPU 3 alone"]
    assert "GPUs 0, 1, 2 work without the others" in look.why


def test_what_kept_every_gpu_from_working_alone_is_not_told_where_it_is_mended():
    def starts(environ):
        return "invalid usage" if environ.get("NCCL_PROTO") == "bogus" else None

    checkup = PaperMachine(starts=starts).check_up({"NCCL_ALGO": "Ring", "NCCL_PROTO": "bogus"})
    assert checkup.settings is not None and checkup.settings.change.unset == ("NCCL_PROTO",)
    assert not [look for look in checkup.looks if look.what.endswith("alone")]


def test_time_is_kept_for_two_halves_that_do_not_reach_each_other(timed):
    across = tuple((one, other) for one in range(4) for other in range(4, 8))
    checkup = timed(PaperMachine(8, bad_pairs=across))
    assert shown(checkup) == "0,1,2,3" and checkup.seconds < 180


def test_a_quick_checkup_tests_pairs_where_sums_are_wrong():
    checkup = PaperMachine(8, bad_gpus=(2,)).check_up(quick=True)
    assert shown(checkup) == "0,1,3,4,5,6,7"


def test_a_gpu_to_stand_in_is_one_of_those_that_were_to_be_tested(timed):
    checkup = PaperMachine(broken={1: DIES}).check_up(gpus=(3, 1))
    assert checkup.fallback == 2 and shown(checkup) == "3"
    checkup = timed(PaperMachine(broken={1: DIES}), gpus=(3, 1), budget_s=5.0)
    assert checkup.fallback == 2 and shown(checkup) == "3"
    [look] = [look for look in checkup.looks if look.what == "one GPU alone"]
    assert look.level == "not_evaluated"


def test_two_gpus_whose_pairs_fail():
    checkup = PaperMachine(8, bad_gpus=(1, 5)).check_up()
    assert shown(checkup) == "0,2,3,4,6,7"
    [look] = [look for look in checkup.looks if look.what.startswith("pairs")]
    assert look.facts["gpus"] == [1, 5] and "GPU1 or GPU5 is in each of them" in look.why


def test_pairs_that_share_no_gpu_leave_one_of_each_out():
    """Which of two is at fault nobody can tell; before one GPU alone, two that work together are better."""
    checkup = PaperMachine(bad_pairs=((0, 1), (2, 3))).check_up()
    assert shown(checkup) == "0,2" and checkup.fallback is None
    [look] = [look for look in checkup.looks if look.what.startswith("pairs")]
    assert look.facts["gpus"] == [] and "GPUs 0, 2 work" in look.why


def test_a_setting_that_lets_all_work_is_better_than_to_leave_some_out():
    class Mended(PaperMachine):
        def _trials(self, job, environ):
            self.bad_gpus = () if "NCCL_CUMEM_ENABLE" in job.set else (3,)
            return super()._trials(job, environ)

    checkup = Mended().check_up()
    assert checkup.settings is not None and checkup.settings.change.set == {"NCCL_CUMEM_ENABLE": "0"}


@pytest.mark.parametrize(("nvlink", "advised"), [(True, "CUDA_VISIBLE_DEVICES"), (False, "NCCL_P2P_DISABLE")])
def test_most_gpus_at_full_speed_are_better_than_all_at_a_ninth_of_it(nvlink, advised):
    class Mended(PaperMachine):
        def _trials(self, job, environ):
            self.bad_gpus = () if "NCCL_P2P_DISABLE" in job.set else (3,)
            return super()._trials(job, environ)

    checkup = Mended(8, nvlink=nvlink).check_up()  # without NVLink nobody knows what is slow
    assert checkup.settings is not None and set(checkup.settings.change.set) == {advised}
    assert {name for one in checkup.remedies for name in one.change.set} == {
        "CUDA_VISIBLE_DEVICES", "NCCL_P2P_DISABLE",
    }  # fmt: skip


def test_of_two_gpus_the_one_that_works_stands_in():
    checkup = PaperMachine(2, broken={0: DIES}).check_up()
    assert checkup.fallback == 2 and shown(checkup) == "1"
    assert "GPU 0 fails by itself too. Train on one GPU" in doctor_verdict(checkup).sentence
    assert fallback_lines(checkup, "d.json")[1] == "traceops run --settings d.json --fallback single -- YOUR_SCRIPT"
    checkup = PaperMachine(2, broken={0: DIES}).check_up({"NCCL_ALGO": "Ring"})  # which is tried, and not to blame
    assert "GPU 0 fails by itself too. Train on one GPU" in doctor_verdict(checkup).sentence
    checkup = PaperMachine(2, broken={1: DIES}).check_up()
    assert checkup.fallback == 2 and checkup.settings is None
    assert fallback_lines(checkup)[1] == "traceops run --fallback single -- YOUR_SCRIPT"


def test_where_not_even_one_works_alone_none_is_to_stand_in():
    checkup = PaperMachine(2, broken={0: DIES, 1: DIES}).check_up()
    assert checkup.fallback is None and checkup.settings is None
    [look] = [look for look in checkup.looks if look.what == "GPUs 0, 1 alone"]
    assert look.level == "error" and doctor_verdict(checkup).level == "error"


def test_pairs_are_tested_where_an_all_reduce_of_all_hangs():
    class Hangs(PaperMachine):
        """Two GPUs hang with each other, whatever is set, and with them every sum of all."""

        def _trials(self, job, environ):
            self.bad_pairs = () if "all_reduce" in job.stages else ((1, 3),)
            hidden = "CUDA_VISIBLE_DEVICES" in job.set or len(job.devices) == 1
            self.sums = lambda kept: "ok" if hidden else "hung"
            return super()._trials(job, environ)

    checkup = Hangs().check_up()
    assert shown(checkup) == "0,1,2"


def test_messages_name_gpus_as_nvidia_smi_does():
    machine = PaperMachine(6, broken={4: DIES})
    machine.check_up({"CUDA_VISIBLE_DEVICES": "5,4,0,1"})
    assert machine.jobs[0].names == (5, 4, 0, 1) and machine.jobs[-1].names == (5, 0, 1)
    assert {job.names for job in machine.jobs if len(job.devices) == 1} == {(5,), (4,), (0,), (1,)}


def test_who_hangs_with_all_is_found_though_the_first_pair_accuses_another():
    """A pair that hangs ends the test: of GPU 0's pairs only one is seen at a time."""

    class Hangs(PaperMachine):
        def _trials(self, job, environ):
            trials = super()._trials(job, environ)
            real = job.names
            if 0 not in real or len(real) == 1:
                return trials
            if "all_reduce" in job.stages:
                outcomes = {"start": "ok", "all_reduce": "hung"}
                return tuple(Trial(n, outcomes.get(n, "not_evaluated"), job.devices, 1.0, 9.0) for n in job.stages)
            hung = PairState((0, len(real) - 1), "hung"), PairState((1, 2), "ok")
            return trials[0], replace(trials[1], outcome="hung", pairs=hung)

    assert shown(Hangs().check_up()) == "1,2,3"


@pytest.mark.parametrize("why", ["NCCL: Cuda failure 2 'out of memory'", "uncorrectable ECC error encountered"])
def test_a_gpu_that_fails_only_with_the_others(why, timed):
    """Alone it needs little memory, and may not touch the memory that is bad."""

    class Partly(PaperMachine):
        def _trials(self, job, environ):
            trials = super()._trials(job, environ)
            if 5 not in job.names or len(job.names) == 1:
                return trials
            failed = replace(trials[1], outcome="failed", message=why, failed=(job.names.index(5),))
            rest = (replace(one, outcome="not_evaluated", measured=(), pairs=()) for one in trials[2:])
            return trials[0], failed, *rest

    checkup = timed(Partly(8), {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"})
    assert shown(checkup) == "7,6,4,3,2,1,0" and checkup.seconds < 180
    [look] = [look for look in checkup.looks if look.what == "GPU 5"]
    assert look.level == "error" and why in look.why and "2, 1, 0 work without the others" in look.why


def test_half_of_them_where_nothing_tells_who_hangs_the_first_barrier(timed):
    class Hangs(PaperMachine):
        """Two GPUs never hear of each other, whatever is set, so no test comes to their pair."""

        one = 5

        def _trials(self, job, environ):
            trials = super()._trials(job, environ)
            if not {self.one, self.one + 1} <= set(job.names):
                return trials
            start = replace(trials[0], outcome="hung", transports=("P2P/IPC",))
            return start, *(replace(one, outcome="not_evaluated", measured=(), pairs=()) for one in trials[1:])

    checkup = timed(Hangs(7))
    assert shown(checkup) == "0,1,2" and checkup.fallback is None and checkup.seconds < 180
    machine = Hangs(3)
    machine.one = 1
    assert timed(machine).fallback == 3  # a half would be one
    machine = Hangs(7)
    machine.one = 1
    runner = Runner(Nodes(NodeIdentity()), machine.run_job, {}, "nccl", tuple(range(7)), (6, 5, 4, 3, 2, 1, 0), (7,))
    stuck = Situation("nccl", 7, failed=frozenset({"start"}), transports=frozenset({"P2P/IPC"}), hung=True)
    fewer = Isolation(runner, lambda: 600.0, lambda text: None, lambda trials: None).fewer(stuck, None)
    assert fewer.chosen is not None
    assert fewer.chosen.change.set == {"CUDA_VISIBLE_DEVICES": "3,4,5,6"} and len(fewer.tried) == 2


def test_gpus_of_other_makes_are_counted_as_nvidia_smi_does():
    class Mixed(PaperMachine):
        @property
        def machine(self):
            found = super().machine
            return type(found)(found.host, (*found.gpus[:3], Gpu(3, "NVIDIA L4")), paths=found.paths)

    checkup = Mixed(broken={0: DIES}).check_up()
    assert checkup.settings is not None
    assert checkup.settings.change.set == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,2,3"}


@given(st.sets(st.sampled_from(list(combinations(range(6), 2))), min_size=1))
def test_what_is_left_has_no_bad_pair(pairs):
    out = to_leave_out(sorted(pairs))
    assert all(set(pair) & set(out) for pair in pairs) and len(out) < 6
    blamed = shared_by(sorted(pairs))
    if blamed:
        assert all(set(pair) & set(blamed) for pair in pairs)
        others = [some for some in combinations(range(6), len(blamed)) if all(set(p) & set(some) for p in pairs)]
        assert others == [blamed] and len(out) >= len(blamed)
    assert bool(shared_text(blamed)) is bool(blamed)


def test_an_exception_of_one_call_is_raised():
    def fails() -> int:
        raise ValueError("no room")

    assert _at_once([lambda: 1, lambda: 2]) == [1, 2]
    with pytest.raises(ValueError, match="no room"):
        _at_once([lambda: 1, fails])


@pytest.mark.slow
def test_each_rank_alone_in_processes():
    """At the same time; one of them dies wherever it takes part."""
    pytest.importorskip("torch")
    environ = environment(TRACEOPS_DOCTOR_FAULT="start:1:die")
    runner = Runner(Nodes(NodeIdentity()), run_job, environ, "gloo", (), (0, 1, 2), (3,))
    kept: list[Trial] = []
    isolation = Isolation(runner, lambda: 600.0, lambda text: None, kept.extend)
    isolation.test_alone()
    assert (isolation.broken, isolation.sound) == ((1,), (0, 2))
    assert [(trial.name, trial.gpus, trial.outcome) for trial in kept] == [
        ("start", (0,), "ok"), ("ddp_step", (0,), "ok"), ("start", (1,), "failed"),
        ("ddp_step", (1,), "not_evaluated"), ("start", (2,), "ok"), ("ddp_step", (2,), "ok"),
    ]  # fmt: skip
    assert kept[2].message.startswith("rank 1 was killed")
    assert isolation.without((1,)) is None  # ranks on the CPU cannot be hidden


KILLED = "rank 3 was killed by SIGSEGV"
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
HOSTS = ("a", "b")


def check_up(*machines: PaperMachine) -> Checkup:
    """Node 0's checkup; each node in a thread, so that steps that differ end as a node that does not answer."""
    port = free_port()

    def node(number: int) -> Checkup:
        nodes = meet(NodeIdentity(number, len(machines), "127.0.0.1", port), 20.0)
        nodes.hosts = HOSTS
        try:
            return machines[number].check_up({}, _Impatient(nodes))
        finally:
            nodes.end()

    with ThreadPoolExecutor(len(machines)) as pool:
        first, other = pool.map(node, range(len(machines)))
    assert not [look for look in first.looks if look.what == "nodes" and look.found == "one was lost"]
    assert (first.settings, first.fallback, first.trials) == (other.settings, other.fallback, other.trials)
    return first


class _Impatient(Nodes):
    def __init__(self, nodes: Nodes) -> None:
        self.__dict__ = nodes.__dict__

    def gather(self, value, kind, within_s=0.0):
        return super().gather(value, kind, 10.0)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(("why", "gpu"), [(BUSY, 2), (KILLED, 0), (KILLED, 3)])
def test_a_gpu_that_fails_alone_is_named_with_its_host(why, gpu):
    machine = PaperMachine(broken={gpu: why})
    checkup = check_up(PaperMachine(), machine)
    [look] = [look for look in checkup.looks if look.what == f"GPU {gpu} alone"]
    assert look.host == "b" and look.level == "error" and why in look.why
    [look] = [look for look in checkup.looks if look.what == "nodes"]
    assert look.level == "error" and look.why.startswith("a works by itself") and look.advice == "start jobs without b"
    # Four GPUs of a work together: one that stands in for eight is no advice.
    assert checkup.fallback is None and checkup.settings is None
    assert doctor_verdict(checkup).sentence.startswith("start failed on b: ")
    assert len([job for job in machine.jobs if len(job.devices) > 1]) <= 2  # no setting is tried against it
    assert not [look for look in checkup.looks if "install a torch" in look.advice]


@needs_torch
@pytest.mark.slow
def test_pairs_are_named_with_their_host():
    checkup = check_up(PaperMachine(bad_gpus=(1,)), PaperMachine(bad_gpus=(3,)))
    pairs = {look.host: look.facts["gpus"] for look in checkup.looks if look.what.startswith("pairs")}
    assert pairs == {"a": [1], "b": [3]}
    assert checkup.fallback == 8 and not [look for look in checkup.looks if look.what == "nodes"]


@needs_torch
@pytest.mark.slow
def test_nodes_that_do_not_reach_each_other_work_by_themselves():
    class Apart(PaperMachine):
        def _trials(self, job, environ):
            trials = super()._trials(job, environ)
            if job.rendezvous is None:
                return trials
            return replace(trials[0], outcome="failed", message="no route"), *(
                replace(trial, outcome="not_evaluated", measured=()) for trial in trials[1:]
            )

    checkup = check_up(Apart(), Apart())
    assert checkup.fallback is None
    [look] = [look for look in checkup.looks if look.what == "nodes"]
    assert look.why == "a, b work, each by itself, with all its GPUs" and "one node alone can train" in look.advice


TORCHRUN = {
    "RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True",
}  # fmt: skip
SLURM = {
    "SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "123456",
    "SLURM_STEP_NODELIST": "gpu[09-10],c1",
}  # fmt: skip


def test_the_launcher_says_where_a_process_belongs():
    assert find_identity({}) == NodeIdentity(0, 1)
    assert find_identity(TORCHRUN) == NodeIdentity(1, 2, "a", 29400, agent=True)
    assert find_identity(TORCHRUN | {"LOCAL_RANK": "3"}) is None  # the node's first process does the work
    assert find_identity(TORCHRUN | {"GROUP_WORLD_SIZE": "1", "WORLD_SIZE": "8", "GROUP_RANK": "0"}) == NodeIdentity()
    by_hand = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}
    assert find_identity(by_hand) == NodeIdentity(1, 2, "a", 29500)
    assert find_identity(SLURM) == NodeIdentity(2, 3, "gpu09", 20_000 + 3456, names=("gpu09", "gpu10", "c1"))
    assert find_identity(SLURM | {"SLURM_LOCALID": "1"}) is None
    batch_script = {"SLURM_NNODES": "3", "SLURM_NODEID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "1"}
    assert find_identity(batch_script) == NodeIdentity()  # the other nodes run nothing
    assert find_identity(TORCHRUN, nnodes=2, node_rank=1, master_addr="b", master_port=7) == NodeIdentity(1, 2, "b", 7)
    assert find_identity(SLURM, nnodes=1) == NodeIdentity()


@pytest.mark.parametrize(
    "options",
    [{"nnodes": 2}, {"nnodes": 2, "master_addr": "a"}, {"nnodes": 2, "master_addr": "a", "node_rank": 2},
     {"node_rank": 1}, {"master_addr": "a"}],
)  # fmt: skip
def test_options_with_which_nodes_could_not_meet_are_refused(options):
    with pytest.raises(UsageError, match=r"--node-rank|--master-addr"):
        find_identity({}, **options)
    with pytest.raises(UsageError, match="LOCAL_RANK is 'x'"):
        find_identity({"LOCAL_RANK": "x", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]), ("a,b", ["a", "b"]), ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[008-010,3]-ib", ["n008-ib", "n009-ib", "n010-ib", "n3-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]), ("a[1,5],b,c-d[2]", ["a1", "a5", "b", "c-d2"]), ("", []),
    ],
)  # fmt: skip
def test_slurms_lists_of_nodes(text, names):
    assert list(expand_nodes(text)) == names


def test_one_node_waits_for_nobody_and_needs_no_torch():
    code = """
        import sys
        from traceops.doctor.nodes import NodeIdentity, Nodes, meet
        nodes = meet(NodeIdentity())
        assert nodes.gather(3, int) == (3,) and nodes.first("x", str) == "x" and nodes.leads
        nodes.end()
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_all_nodes_hear_the_same_in_the_order_of_nodes():
    port = free_port()
    machines = [Machine("a"), Machine("b", paths={("GPU0", "GPU1"): Path("NV", 18)}), Machine("c")]

    def node(number: int) -> tuple[object, ...]:
        nodes = meet(NodeIdentity(number, 3, "127.0.0.1", port), 20.0)
        heard = nodes.gather(machines[number], Machine), nodes.first(number + 5, int), nodes.hosts
        nodes.end()
        return heard

    with ThreadPoolExecutor(3) as pool:
        heard = list(pool.map(node, [2, 0, 1]))
    assert heard[0] == heard[1] == heard[2]
    assert heard[0][:2] == (tuple(machines), 5)
    assert len(set(heard[0][2])) == 3  # one host here thrice: told apart by the node's number


def test_a_node_that_does_not_come_is_named_on_all_that_do():
    port = free_port()

    def node(number: int) -> str:
        with pytest.raises(NodeError) as missing:
            meet(NodeIdentity(number, 3, "127.0.0.1", port, names=("a", "b", "c")), 1.5)
        return str(missing.value)

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(node, [0, 2]))
    assert all("node 1 (host b) did not answer within 2 s" in one for one in said)


def test_a_node_that_is_lost_on_the_way_is_named_by_its_host():
    port = free_port()

    def node(number: int) -> str:
        nodes = meet(NodeIdentity(number, 2, "127.0.0.1", port), 20.0)
        nodes.hosts = ("one", "other")
        if number == 1:
            return ""
        with pytest.raises(NodeError) as missing:
            nodes.gather(1, int, 0.5)
        return str(missing.value)

    with ThreadPoolExecutor(2) as pool:
        assert "node 1 (host other) did not answer" in next(iter(pool.map(node, [0, 1])))


def test_without_node_0_nobody_waits_for_ever():
    with pytest.raises(NodeError, match=r"node 0 at 127\.0\.0\.1, port \d+, cannot be reached"):
        meet(NodeIdentity(1, 2, "127.0.0.1", free_port()), 1.0)


def test_an_answer_of_another_version_is_told_from_silence():
    nodes = Nodes(NodeIdentity(0, 1))
    assert nodes.gather("text", str) == ("text",)
    port = free_port()

    def node(number: int) -> None:
        nodes = meet(NodeIdentity(number, 2, "127.0.0.1", port), 20.0)
        with pytest.raises(NodeError, match="another version"):
            nodes.gather({"new": number}, Machine)
        nodes.end()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(node, [0, 1]))
