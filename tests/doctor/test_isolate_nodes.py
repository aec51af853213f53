"""Of several nodes the one with the GPU at fault is named, and those that work; all take the same steps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
from changed import replace
from paper_machine import PaperMachine
from ports import free_port

from traceops.doctor.model import Checkup
from traceops.doctor.nodes import NodeIdentity, Nodes, meet
from traceops.render.doctor.text import doctor_verdict

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="no torch")]

BUSY = "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB"
DIES = "rank 3 was killed by SIGSEGV"
HOSTS = ("a", "b")


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))


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


@pytest.mark.parametrize(("why", "gpu"), [(BUSY, 2), (DIES, 0), (DIES, 3)])
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


def test_pairs_are_named_with_their_host():
    checkup = check_up(PaperMachine(bad_gpus=(1,)), PaperMachine(bad_gpus=(3,)))
    pairs = {look.host: look.facts["gpus"] for look in checkup.looks if look.what.startswith("pairs")}
    assert pairs == {"a": [1], "b": [3]}
    assert checkup.fallback == 8 and not [look for look in checkup.looks if look.what == "nodes"]


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
