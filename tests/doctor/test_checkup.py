"""What the doctor decides: on machines with GPUs that exist on paper, with jobs that give what such machines gave."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from changed import replace
from paper_machine import PaperMachine

from traceops.core.errors import UsageError
from traceops.doctor.checkup import Options, Tools, check_up
from traceops.doctor.model import Checkup, Trial
from traceops.doctor.nodes import NodeError, NodeIdentity, Nodes
from traceops.fabric.model import Machine
from traceops.fabric.reference import references_here
from traceops.machine.look import Look

pytestmark = pytest.mark.torch


def said(checkup: Checkup, what: str) -> Look:
    [look] = [look for look in checkup.looks if what in look.what]
    return look


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))


def test_a_healthy_machine_needs_nothing_and_its_numbers_are_kept():
    machine = PaperMachine()
    checkup = machine.check_up({"NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"})
    assert len(machine.jobs) == 1 + len(machine.tried)
    assert checkup.settings is None and checkup.fallback is None
    assert not any("NCCL_NVLS_ENABLE" in (*set_, *unset) for set_, unset in machine.tried)
    assert all(look.level == "ok" for look in checkup.looks)
    [reference] = references_here()
    assert reference.gpu == "NVIDIA H200"
    assert reference.settings == {"NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"}
    assert {row.busbw_gbs for row in reference.measured if row.op == "all_reduce"} == {350.0}


@pytest.mark.parametrize(
    ("environ", "with_it"),
    [({"NCCL_P2P_DISABLE": "1"}, 40.0), ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, 3.0)],
)
def test_a_setting_that_costs_speed_is_measured_with_and_without(environ, with_it):
    checkup = PaperMachine().check_up(environ)
    assert checkup.settings is not None
    assert checkup.settings.change.unset == ("NCCL_P2P_DISABLE",) and not checkup.settings.change.set
    assert (checkup.settings.before_gbs, checkup.settings.after_gbs) == (with_it, 350.0)
    look = said(checkup, "NCCL_P2P_DISABLE=1")
    assert look.level == "error" and look.facts["lost_gbs"] == 350.0 - with_it
    # What the link gives is what it gave without the setting.
    [reference] = references_here()
    assert {row.busbw_gbs for row in reference.measured if row.op == "all_reduce"} == {350.0}
    assert {row.busbw_gbs for row in checkup.measured if row.op == "all_reduce"} == {350.0}


def test_a_setting_that_only_looks_costly_is_cleared():
    checkup = PaperMachine(way=lambda environ: ("P2P/CUMEM", 350.0)).check_up({"NCCL_ALGO": "Ring"})
    assert checkup.settings is None
    assert said(checkup, "NCCL_ALGO=Ring").level == "ok"
    assert references_here()


def test_numbers_of_a_machine_that_is_held_down_are_not_kept():
    """Its time ran out before it could be measured without the setting."""
    checkup = PaperMachine().check_up({"NCCL_P2P_DISABLE": "1"}, budget_s=1.0)
    assert checkup.settings is None and said(checkup, "alternatives").level == "not_evaluated"
    assert not checkup.references and not references_here()


def no_such_interface(environ: Mapping[str, str]) -> str | None:
    return "no socket interface found" if environ.get("NCCL_SOCKET_IFNAME") == "nosuch0" else None


def test_the_one_setting_at_fault_is_found_before_anything_is_set():
    machine = PaperMachine(starts=no_such_interface)
    checkup = machine.check_up({"NCCL_SOCKET_IFNAME": "nosuch0", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"})
    assert checkup.settings is not None and checkup.settings.before_gbs is None
    assert checkup.settings.change.unset == ("NCCL_SOCKET_IFNAME",)
    assert machine.tried[0] == ({}, ("NCCL_SOCKET_IFNAME",))
    assert not any(set_ for set_, _ in machine.tried)
    # Everything was then tested with it.
    assert {trial.name for trial in checkup.trials if trial.unset == ("NCCL_SOCKET_IFNAME",)} >= {"pairs", "ddp_step"}


def test_of_several_settings_only_those_at_fault_are_removed():
    def starts(environ: Mapping[str, str]) -> str | None:
        bad = {"NCCL_SOCKET_IFNAME", "NCCL_NET"} & set(environ)
        return f"failed for {bad}" if bad else None

    checkup = PaperMachine(starts=starts).check_up(
        {"NCCL_SOCKET_IFNAME": "nosuch0", "NCCL_NET": "IB", "NCCL_ALGO": "Ring"}
    )
    assert checkup.settings is not None
    assert set(checkup.settings.change.unset) == {"NCCL_SOCKET_IFNAME", "NCCL_NET"}


def test_the_smallest_change_that_is_fast_is_taken_where_direct_sending_hangs():
    """As where IPC through cuMem is broken: without P2P it works slowly, without cuMem at full speed."""

    def sums(environ: Mapping[str, str]) -> str:
        return "ok" if environ.get("NCCL_P2P_DISABLE") == "1" or environ.get("NCCL_CUMEM_ENABLE") == "0" else "hung"

    machine = PaperMachine(sums=sums)
    checkup = machine.check_up()
    assert checkup.settings is not None
    assert checkup.settings.change.set == {"NCCL_CUMEM_ENABLE": "0"} and checkup.settings.change.costs

    machine = PaperMachine(sums=lambda environ: "ok" if environ.get("NCCL_P2P_DISABLE") == "1" else "hung")
    checkup = machine.check_up()
    assert checkup.settings is not None
    assert checkup.settings.change.set == {"NCCL_P2P_DISABLE": "1"} and checkup.settings.after_gbs == 40.0
    assert [look.level for look in checkup.looks if "all-reduce inside" in look.what] == ["error"]


def test_wrong_sums_on_the_pairs_of_one_gpu_name_it_and_the_others_work_without_it():
    machine = PaperMachine(bad_gpus=(2,))
    checkup = machine.check_up()
    look = said(checkup, "pairs")
    assert look.level == "error" and look.facts["gpus"] == [2]
    assert sorted(look.facts["pairs"]) == [[0, 2], [1, 2], [2, 3]]
    assert "GPUs 0, 1, 3 work without the others" in look.why
    assert checkup.settings is not None
    assert checkup.settings.change.set == {"CUDA_VISIBLE_DEVICES": "0,1,3"}
    without = [trial for trial in checkup.trials if trial.set == {"CUDA_VISIBLE_DEVICES": "0,1,3"}]
    assert {trial.gpus for trial in without} == {(0, 1, 3)}
    assert not references_here() or all(2 not in row.gpus for row in references_here()[0].measured)


def test_visible_gpus_are_named_as_nvidia_smi_counts_them():
    machine = PaperMachine(gpus=6, bad_gpus=(4,))
    checkup = machine.check_up({"CUDA_VISIBLE_DEVICES": "5,4,0,1"})
    assert machine.jobs[0].devices == (0, 1, 2, 3)
    assert checkup.trials[0].gpus == (5, 4, 0, 1)
    assert said(checkup, "pairs").facts["gpus"] == [4]
    assert checkup.settings is not None
    assert checkup.settings.change.set == {"CUDA_VISIBLE_DEVICES": "5,0,1"}


def test_some_of_the_gpus_only():
    machine = PaperMachine()
    assert machine.check_up(gpus=(3, 1)).trials[0].gpus == (3, 1)
    assert machine.jobs[0].devices == (3, 1)
    with pytest.raises(UsageError, match="GPU 7 is not visible; those that are: 0,1,2,3"):
        machine.check_up(gpus=(1, 7))


def test_where_nothing_works_one_gpu_stands_in_for_all():
    machine = PaperMachine(starts=lambda environ: "unhandled system error", alone=False)
    checkup = machine.check_up({"NCCL_ALGO": "Ring"})
    machine.jobs = [job for job in machine.jobs if len(job.devices) > 1]
    assert checkup.fallback == 4 and checkup.settings is None and not checkup.remedies
    tried = [{**set_, **dict.fromkeys(unset, "")} for set_, unset in machine.tried]
    assert {"NCCL_ALGO": ""} in tried and {"NCCL_P2P_DISABLE": "1"} in tried
    assert {"NCCL_SOCKET_IFNAME": "lo"} in tried and {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"} in tried
    assert [len(change) for change in tried] == sorted(len(change) for change in tried)  # the smallest first
    assert len({str(sorted(change.items())) for change in tried}) == len(tried)
    assert all(job.deadline_s("start") <= 20 for job in machine.jobs[1:])  # whatever the first one took to fail
    assert not any(change.get("NCCL_NVLS_ENABLE", "0") != "0" for change in tried)


def test_nothing_is_tried_against_a_torch_that_sees_no_gpu():
    machine = PaperMachine(starts=lambda environ: "torch 2.13 (built for the CPU only) finds no GPU")
    checkup = machine.check_up()
    assert not machine.tried and checkup.fallback is None
    assert "finds no GPU" in said(checkup, "alternatives").why


def test_multicast_that_somebody_switched_off_stays_off():
    machine = PaperMachine(starts=lambda environ: "unhandled system error")
    machine.check_up({"NCCL_NVLS_ENABLE": "0"})
    assert not any("NCCL_NVLS_ENABLE" in unset for _, unset in machine.tried)
    assert not any(set_.get("NCCL_NVLS_ENABLE", "0") != "0" for set_, _ in machine.tried)


def test_one_gpu_alone_is_tested_and_has_no_fallback():
    checkup = PaperMachine(gpus=1).check_up()
    assert checkup.settings is None and checkup.fallback is None and not checkup.references
    broken = PaperMachine(gpus=1, starts=no_such_interface).check_up({"NCCL_SOCKET_IFNAME": "nosuch0"})
    assert broken.settings is not None and broken.settings.change.unset == ("NCCL_SOCKET_IFNAME",)


def test_slow_without_a_reason_is_said_and_no_reference():
    checkup = PaperMachine(way=lambda environ: ("P2P/CUMEM", 40.0)).check_up()
    assert said(checkup, "all-reduce inside").level == "error"
    assert checkup.settings is None and not references_here()


def test_slower_than_it_once_was_where_nobody_knows_the_link():
    assert PaperMachine(nvlink=False, way=lambda environ: ("P2P", 20.0)).check_up().settings is None
    checkup = PaperMachine(nvlink=False, way=lambda environ: ("P2P", 5.0)).check_up()
    assert {f.rule: f.severity for f in checkup.findings} == {"TO-C001": "warning", "TO-D606": "error"}
    [reference] = references_here()
    assert {row.busbw_gbs for row in reference.measured if row.op == "all_reduce"} == {20.0}


def test_pairs_far_slower_than_their_siblings_share_a_gpu():
    checkup = PaperMachine(slow_pairs=((0, 3), (1, 3), (2, 3))).check_up()
    (found,) = [found for found in checkup.findings if found.rule == "TO-C002"]
    assert found.severity == "warning" and "GPU3 is in all of them" in found.message


def test_nothing_but_looking():
    machine = PaperMachine()
    checkup = machine.check_up(tests=False)
    assert not machine.jobs and not checkup.trials
    assert said(checkup, "communication").level == "not_evaluated"


class _Lost(Nodes):
    """The other node answers until the first tests are over."""

    def gather(self, value, kind, within_s=60.0):
        if kind == tuple[Trial, ...] and self._said:
            raise NodeError("node 1 (host b) did not answer within 60 s")
        self._said += kind == tuple[Trial, ...]
        return (value,)


def test_what_was_found_before_a_node_was_lost_is_told():
    checkup = PaperMachine().check_up({"NCCL_P2P_DISABLE": "1"}, nodes=_Lost(NodeIdentity()))
    look = said(checkup, "nodes")
    assert look.level == "error" and "node 1 (host b)" in look.why
    assert {trial.name for trial in checkup.trials} >= {"start", "pairs", "sweep"}
    assert checkup.settings is None and not checkup.references


def test_three_minutes_are_kept_where_test_after_test_hangs(monkeypatch):
    """And what works at last, though slowly, is tested in full."""
    machine = PaperMachine(gpus=8, sums=lambda environ: "ok" if environ.get("NCCL_P2P_DISABLE") == "1" else "hung")
    clock = SimpleNamespace(monotonic=lambda: machine.now, time=lambda: machine.now)
    monkeypatch.setattr("traceops.doctor.checkup_plan.time", clock)
    monkeypatch.setattr("traceops.doctor.checkup.time", clock)
    checkup = machine.check_up()
    assert checkup.settings is not None and checkup.settings.change.set == {"NCCL_P2P_DISABLE": "1"}
    assert machine.jobs[-1].set == {"NCCL_P2P_DISABLE": "1"} and "ddp_step" in machine.jobs[-1].stages
    assert 100 < checkup.seconds < 180

    machine = PaperMachine(gpus=8, sums=lambda environ: "hung")
    checkup = machine.check_up()
    assert checkup.fallback == 8 and said(checkup, "alternatives").level == "not_evaluated"
    assert checkup.seconds < 180


@pytest.mark.parametrize("environ", [{}, {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0"}])
def test_p2p_that_hangs_from_the_first_barrier_on_is_found_in_time(environ, monkeypatch):
    """As on hosts where an IOMMU or ACS is in its way: NCCL connects, and nothing ever arrives."""

    class Hangs(PaperMachine):
        def _trials(self, job, environ):
            trials = super()._trials(job, environ)
            if len(job.devices) == 1 or job.set.get("NCCL_P2P_DISABLE") == "1":
                return trials
            start = replace(trials[0], outcome="hung", transports=("P2P/IPC",))
            return start, *(replace(one, outcome="not_evaluated", measured=(), pairs=()) for one in trials[1:])

    machine = Hangs(8, nvlink=False)
    clock = SimpleNamespace(monotonic=lambda: machine.now, time=lambda: machine.now)
    monkeypatch.setattr("traceops.doctor.checkup_plan.time", clock)
    monkeypatch.setattr("traceops.doctor.checkup.time", clock)
    checkup = machine.check_up(environ)
    assert checkup.settings is not None and checkup.settings.change.set == {"NCCL_P2P_DISABLE": "1"}
    assert machine.jobs[-1].set == {"NCCL_P2P_DISABLE": "1"} and "ddp_step" in machine.jobs[-1].stages
    assert checkup.seconds < 180 and checkup.fallback is None


def test_a_change_must_stand_the_full_test():
    environ = {"NCCL_SOCKET_IFNAME": "x", "NCCL_NET": "y"}

    class Half(PaperMachine):
        """Does not start over the interface; with the other variable set a later stage hangs."""

        stage = "ddp_step"

        def _trials(self, job, environ):
            trials = super()._trials(job, environ)
            if "NCCL_NET" in job.unset or len(job.devices) == 1 or trials[0].outcome != "ok":
                return trials
            return tuple(replace(one, outcome="hung") if one.name == self.stage else one for one in trials)

    def starts(environ):
        return "no interface" if "NCCL_SOCKET_IFNAME" in environ else None

    checkup = Half(starts=starts).check_up(environ)
    assert checkup.settings is not None and set(checkup.settings.change.unset) == set(environ)
    Half.stage = "pair_bandwidth"  # no short test has it
    checkup = Half(starts=starts).check_up(environ)
    assert checkup.settings is None and checkup.fallback == 4


def test_a_change_that_was_luck_is_not_advised():
    speeds = iter((100.0, 170.0))
    checkup = PaperMachine(way=lambda environ: ("P2P/CUMEM", next(speeds, 100.0))).check_up()
    assert checkup.settings is None and checkup.remedies
    assert all(remedy.after_gbs == 100.0 for remedy in checkup.remedies)


def test_what_failed_once_and_works_the_next_time_is_no_reason_for_a_setting():
    class Once(PaperMachine):
        def run_job(self, job, environ, logs=None):
            self.sums = lambda kept: "ok" if self.jobs[1:] else "hung"
            return super().run_job(job, environ, logs)

    machine = Once()
    checkup = machine.check_up({})
    assert checkup.settings is None and checkup.fallback is None and not checkup.references
    assert said(checkup, "the same again").level == "warning"
    assert not machine.jobs[-1].set and not machine.jobs[-1].unset
    always = PaperMachine(sums=lambda environ: "ok" if environ.get("NCCL_P2P_DISABLE") == "1" else "hung")
    checkup = always.check_up({})
    assert checkup.settings is not None and checkup.settings.change.set == {"NCCL_P2P_DISABLE": "1"}
    assert not any(look.what == "the same again" for look in checkup.looks)


def test_what_something_holds_down_is_no_reference():
    slow = tuple((min(2, other), max(2, other)) for other in range(6) if other != 2)
    checkup = PaperMachine(6, slow_pairs=slow).check_up()
    assert checkup.measured and not checkup.references and not references_here()


def test_gpus_are_named_as_cuda_counts_what_is_left():
    machine = PaperMachine(4, bad_gpus=(2,))
    checkup = machine.check_up(gpus=(3, 2, 1))
    assert checkup.settings is not None and checkup.settings.change.set == {"CUDA_VISIBLE_DEVICES": "1,3"}
    [without] = {trial.gpus for trial in checkup.trials if "CUDA_VISIBLE_DEVICES" in trial.set}
    assert without == (1, 3)


def test_a_costly_variable_that_is_needed_is_said_to_be():
    checkup = PaperMachine(sums=lambda environ: "ok" if environ.get("NCCL_P2P_DISABLE") == "1" else "hung").check_up(
        {"NCCL_P2P_DISABLE": "1"}
    )
    look = said(checkup, "NCCL_P2P_DISABLE=1")
    assert checkup.settings is None and "needed: without it all_reduce hung" in look.found
    assert look.level == "note" and look.facts["variables"] == ["NCCL_P2P_DISABLE"]  # hides the general advice


def test_what_a_file_of_nccl_holds_down_is_no_reference(tmp_path):
    (tmp_path / ".nccl.conf").write_text("NCCL_P2P_DISABLE=1\n")
    checkup = PaperMachine(nvlink=False, way=lambda environ: ("SHM", 10.0)).check_up({"HOME": str(tmp_path)})
    assert checkup.measured and not checkup.references and not references_here()


def test_what_a_cure_costs_is_no_reference():
    """Where nobody knows the link: shared memory instead of direct sending, which hangs."""
    checkup = PaperMachine(
        nvlink=False, sums=lambda environ: "ok" if environ.get("NCCL_P2P_DISABLE") == "1" else "hung"
    ).check_up()
    assert checkup.settings is not None and checkup.settings.change.set == {"NCCL_P2P_DISABLE": "1"}
    assert checkup.measured and not checkup.references and not references_here()


def test_looks_are_told_of_variables_that_can_be_written():
    seen: dict[str, str] = {}

    def look(environ):
        seen.update(environ)
        return Machine("paper"), ()

    tools = Tools(look, PaperMachine().run_job, lambda fabric, contexts: [], lambda folder: None, lambda e: 0)
    check_up(Options(tests=False), {"NCCL_IB_HCA": "\udcff"}, Nodes(NodeIdentity()), tools)
    assert seen["NCCL_IB_HCA"].encode() == b"\\udcff"
