"""What a run keeps about its machine, and that it is no sign of a hang."""

import json
import os
import threading
from pathlib import Path

import pytest

from traceops.capture.environment import host
from traceops.hangs.discover import find_evidence
from traceops.hangs.in_report import diagnosis_of_run
from traceops.launch import machine_watch
from traceops.launch.evidence import nccl_log_variables, tidy
from traceops.launch.machine_watch import FabricEvidence

_MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\t0-7\nGPU1\tNV18\t X \t0-7\n\nLegend:\n\n  X    = Self\n"
)
# Lines of healthy jobs, as NCCL 2.21 and 2.28 write them.
_NCCL = """\
vm:2117:2117 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
vm:2117:2180 [0] NCCL INFO Call to connect returned Connection refused, retrying
vm:2117:2180 [0] NCCL INFO NET/IB : No device found.
vm:2117:2180 [0] NCCL INFO Using network Socket
vm:2117:2180 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
vm:2117:2217 [0] NCCL INFO misc/cudawrap.cc:56 Cuda failure 1 'invalid argument'
vm:2117:2217 [0] NCCL INFO [Service thread] Connection closed by localRank 1
vm:2117:2117 [0] NCCL INFO comm 0xe6d8760 rank 0 nranks 2 cudaDev 0 busId 70 - Destroy COMPLETE
"""
_REFERENCE = {
    "schema_version": 1, "host": host(), "topology": "a1", "measured_at": 1.0, "gpu": "NVIDIA L4", "settings": {},
    "measured": [
        {"op": "all_reduce", "gpus": [0, 1], "bytes": 1024, "time_us": 9.0, "busbw_gbs": 3.0, "host": host(),
         "backend": "nccl"},
    ],
}  # fmt: skip


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an nvidia-smi, and one reference of its own and one of another host."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))
    references = tmp_path / "cache" / "references"
    references.mkdir(parents=True)
    (references / "mine.json").write_text(json.dumps(_REFERENCE))
    (references / "other.json").write_text(json.dumps({**_REFERENCE, "host": "elsewhere"}))
    (tmp_path / "evidence").mkdir()
    return tmp_path


def nvidia_smi(machine, text):
    program = machine / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def names(machine):
    return sorted(path.name for path in (machine / "evidence").iterdir())


def test_the_matrix_and_the_reference_of_this_machine(machine):
    (machine / "matrix").write_text(_MATRIX)
    nvidia_smi(machine, f'[ "$*" = "topo -m" ] && cat {machine}/matrix')
    fabric = FabricEvidence(machine / "evidence", gpus=True)
    fabric._work.join()
    assert names(machine) == [f"reference.{host()}.json", f"topo.{host()}.txt"]
    assert (machine / "evidence" / f"topo.{host()}.txt").read_text() == _MATRIX
    kept = json.loads((machine / "evidence" / f"reference.{host()}.json").read_text())
    assert kept == {"references": [_REFERENCE]}


def test_a_run_on_the_cpu_leaves_nothing_that_is_not_about_it(machine):
    nvidia_smi(machine, "echo should not be asked")
    fabric = FabricEvidence(machine / "evidence", gpus=False)
    fabric._work.join()
    assert names(machine) == []


@pytest.mark.parametrize("program", ["exit 9", "echo half; kill -9 $$", ":"])
def test_an_nvidia_smi_that_fails_costs_its_file_only(machine, program):
    nvidia_smi(machine, program)
    fabric = FabricEvidence(machine / "evidence", gpus=True)
    fabric._work.join()
    assert names(machine) == [f"reference.{host()}.json"]


def test_nobody_waits_for_an_nvidia_smi_that_does_not_answer(machine, monkeypatch):
    assert machine_watch._FINISH_S <= 1.0
    released, output = threading.Event(), machine_watch.output
    monkeypatch.setattr(machine_watch, "_PROGRAM_S", 0.3)
    monkeypatch.setattr(machine_watch, "output", lambda *asked: released.wait(60) and output(*asked))
    nvidia_smi(machine, "exec sleep 1000")
    fabric = FabricEvidence(machine / "evidence", gpus=True)
    assert fabric._work.is_alive()  # for it is not released, however long the lines above took
    fabric.finish()
    assert fabric._work.is_alive()
    released.set()
    fabric._work.join()
    assert names(machine) == [f"reference.{host()}.json"]


def test_a_folder_that_is_gone_is_no_failure(machine):
    nvidia_smi(machine, "echo x")
    fabric = FabricEvidence(machine / "nowhere", gpus=True)
    fabric._work.join()
    assert not (machine / "nowhere").exists()


def test_a_healthy_run_with_such_files_is_not_taken_for_a_hang(tmp_path):
    evidence = tmp_path / "run" / "evidence"
    evidence.mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text(
        json.dumps({"schema_version": 1, "status": "finished", "exit_code": 0, "world_size": 2, "nnodes": 1})
    )
    (evidence / f"topo.{host()}.txt").write_text(_MATRIX)
    (evidence / f"reference.{host()}.json").write_text(json.dumps({"references": [_REFERENCE]}))
    (evidence / "nccl.vm.2117.log").write_text(_NCCL)
    tidy(evidence)
    assert len(list(evidence.iterdir())) == 3
    evidence = find_evidence(tmp_path / "run")
    assert evidence.ends and evidence.problems == () and evidence.log == ()
    diagnosis, why_not = diagnosis_of_run(str(tmp_path / "run"))
    assert diagnosis is None and why_not


def test_nccl_says_how_it_connected_and_nothing_for_each_collective():
    values = nccl_log_variables({}, Path("/data/100%h/evidence"))
    assert values == {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH",
        "NCCL_DEBUG_FILE": "/data/100%%h/evidence/nccl.%h.%p.log",
    }


def test_what_the_user_says_of_nccls_log_stays():
    for mine in ({"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "x"}):
        assert nccl_log_variables(mine, Path("evidence")) == {}
    values = nccl_log_variables({"NCCL_DEBUG_SUBSYS": "COLL"}, Path("evidence"))
    assert values["NCCL_DEBUG"] == "WARN" and "NCCL_DEBUG_SUBSYS" not in values
