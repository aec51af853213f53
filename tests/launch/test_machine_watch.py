"""What the launcher sees of the machine, from a driver and a /proc of the test's own."""

import ctypes
import json
import os
import threading
import time
from pathlib import Path

import pytest

from traceops.capture.environment import host
from traceops.capture.progress import ProgressWriter
from traceops.core.rank_files import machine_file
from traceops.hangs.discover import find_evidence
from traceops.hangs.in_report import diagnosis_of_run
from traceops.launch import machine_watch
from traceops.launch.evidence import nccl_log_variables, tidy
from traceops.launch.machine_watch import FabricEvidence, MachineWatch
from traceops.machine.usage import (
    Nvml,
    Stat,
    all_processes,
    bytes_read,
    cores_ms,
    descendants,
    network_bytes,
    process_time,
    quota_ms,
    started_with,
    storage_of,
)
from traceops.traces.observed import read_machines

STAT = (
    "{pid} (a (b) c) S {parent} 1 1 0 -1 0 0 0 {faults} 0 {user} {system} 0 0 20 0 1 0 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 "
    "17 {core} 0"
)


class Library:
    """NVML with one GPU, on which process 4242 works. missing: functions that this driver has not."""

    def __init__(self, missing=()):
        self._missing = missing
        self.closed = False

    def __getattr__(self, name):
        if name in self._missing or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self, f"_{name}", lambda *arguments: 3)

    def _nvmlInit_v2(self):
        return 0

    def _nvmlShutdown(self):
        self.closed = True
        return 0

    def _nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 1
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        return 0

    def _nvmlDeviceGetUUID(self, handle, text, size):
        text.value = b"GPU-aaaa"
        return 0

    def _nvmlDeviceGetClockInfo(self, handle, which, value):
        value._obj.value = 1200
        return 0

    def _nvmlDeviceGetMaxClockInfo(self, handle, which, value):
        value._obj.value = 1980
        return 0

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, handle, bits):
        bits._obj.value = 4
        return 0

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found):
        count._obj.value = 2
        found[0].pid, found[0].used = 4242, 5 << 30
        found[1].pid, found[1].used = 4343, (1 << 64) - 1
        return 0

    def _nvmlDeviceGetProcessUtilization(self, handle, found, count, since):
        count._obj.value = 2
        for n, (pid, sm) in enumerate(((4242, 60), (4242, 40))):
            found[n].pid, found[n].sm, found[n].time = pid, sm, 7
        return 0


def test_a_gpu_as_its_driver_tells_of_it():
    nvml = Nvml(Library())
    [gpu] = nvml.gpus()
    assert (gpu.uuid, gpu.most_mhz, gpu.name, gpu.limit_w) == ("GPU-aaaa", 1980, None, None)
    now = nvml.now(0)
    assert (now.mhz, now.reasons, now.power_w, now.used_bytes) == (1200, 4, None, None)
    assert now.processes == ((4242, 5 << 30), (4343, None)) and now.active == ((4242, 60),)


def test_an_older_driver_tells_less():
    nvml = Nvml(Library(missing=("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetProcessUtilization")))
    now = nvml.now(0)
    assert now.processes == () and now.active == () and now.mhz == 1200


def test_structures_are_laid_out_as_in_c():
    from traceops.machine import usage as nvml

    assert ctypes.sizeof(nvml._Process) == 24 and ctypes.sizeof(nvml._ProcessUse) == 32


def process(proc: Path, pid, parent=1, user=100, wait_ns=None, core=1, faults=2):
    (proc / str(pid)).mkdir(parents=True)
    text = STAT.format(pid=pid, parent=parent, user=user, system=0, core=core, faults=faults)
    (proc / str(pid) / "stat").write_text(text)
    if wait_ns is not None:
        (proc / str(pid) / "schedstat").write_text(f"1000000000 {wait_ns} 500\n")


def test_processes_and_how_long_they_wait(tmp_path):
    process(tmp_path, 10, wait_ns=2_500_000_000, core=3)
    process(tmp_path, 11, parent=10)
    process(tmp_path, 12)
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 80 0 0\n")
    used = process_time(10, tmp_path)
    tick = 1000 / os.sysconf("SC_CLK_TCK")
    assert (used.cpu_ms, used.wait_ms, used.ran_ms, used.faults, used.core) == (100 * tick, 2500.0, 1000.0, 2, 3)
    assert process_time(11, tmp_path).wait_ms is None and process_time(99, tmp_path) is None
    assert descendants(all_processes(tmp_path), 10) == {10, 11}
    assert cores_ms(tmp_path) == (80 * tick, (1 + 2 + 3 + 6 + 7 + 80) * tick)


def test_a_quota(tmp_path):
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/job\n")
    assert quota_ms(7, tmp_path) == (None, None)
    (tmp_path / "sys/fs/cgroup/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/job/cpu.stat").write_text("usage_usec 5\nthrottled_usec 1500\n")
    assert quota_ms(7, tmp_path) == (1.5, 0.005)
    (tmp_path / "proc/7/cgroup").write_text("9:name=systemd:/\n1:cpu,cpuacct:/job\n0::/\n")  # version 1
    (tmp_path / "sys/fs/cgroup/cpu/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu/job/cpu.stat").write_text("nr_throttled 2\nthrottled_time 2500000\n")
    assert quota_ms(7, tmp_path) == (2.5, None)
    (tmp_path / "sys/fs/cgroup/cpuacct/job").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpuacct/job/cpuacct.usage").write_text("4000000\n")
    assert quota_ms(7, tmp_path) == (2.5, 4.0)
    (tmp_path / "proc/7/cgroup").write_text("2:cpuacct:/\n1:cpu:/job\n")
    assert quota_ms(7, tmp_path) == (2.5, None), "that is another group's"
    assert quota_ms(8, tmp_path) == (None, None)


def test_what_ranks_and_their_workers_read(tmp_path):
    for pid, counts in ((7, "rchar: 100\nread_bytes: 10\n"), (8, "rchar: 1000\nread_bytes: 0\n"), (9, "")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "io").write_text(counts)
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/children").write_text("8 9 10 \n")
    assert bytes_read(7, tmp_path) == {7: (10, 100), 8: (0, 1000)} and bytes_read(11, tmp_path) == {}


def test_the_storage_of_the_largest_file_that_is_open(tmp_path):
    data, small = tmp_path / "data/train.bin", tmp_path / "small.txt"
    data.parent.mkdir()
    data.write_bytes(bytes(200_000))
    small.write_bytes(b"x")
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/mounts").write_text(f"/dev/sda1 / ext4 rw 0 0\nnas:/x {tmp_path}/data nfs4 rw 0 0\n")
    (tmp_path / "7/fd/3").symlink_to(small)
    assert storage_of(7, tmp_path) is None
    (tmp_path / "7/fd/4").symlink_to(data)
    assert storage_of(7, tmp_path) == (f"{tmp_path}/data", "nfs4")


def test_what_networks_carried(tmp_path):
    assert network_bytes(tmp_path) is None
    for name, device in (("eth0", True), ("lo", False)):
        (tmp_path / "net" / name / "statistics").mkdir(parents=True)
        for count, value in (("rx_bytes", 10), ("tx_bytes", 20)):
            (tmp_path / "net" / name / "statistics" / count).write_text(f"{value}\n")
        if device:
            (tmp_path / "net" / name / "device").mkdir()
    counters = tmp_path / "infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("100\n")
    (counters / "port_xmit_data").write_text("200\n")
    assert network_bytes(tmp_path) == (10 + 400, 20 + 800)


def test_workers_that_have_ended_still_count(tmp_path, monkeypatch):
    made, writer = watch(tmp_path, gpus=False)
    for seen in ({1: (5, 50), 2: (0, 10)}, {1: (6, 60)}):
        monkeypatch.setattr(machine_watch.usage, "bytes_read", lambda pid, seen=seen: seen)
        monkeypatch.setattr(machine_watch.usage, "storage_of", lambda pid: ("/data", "lustre"))
        made._write(made.look(1_800_000_000_000))
    writer.close()
    [log] = read_machines(str(tmp_path))
    assert [row[2:] for row in log.reads] == [(5, 60), (6, 70)] and log.storage == {0: ("/data", "lustre")}


def watch(tmp_path, **more):
    progress = tmp_path / "progress"
    progress.mkdir()
    writer = ProgressWriter(progress, 0)
    writer.write("active", 3, None)
    return MachineWatch(tmp_path, progress, **more), writer


def test_a_look_names_ranks_and_gpus(tmp_path):
    library = Library()
    made, writer = watch(tmp_path, gpus=True, nvml=lambda: Nvml(library))
    made._write(made._begin())
    for second in range(3):
        made._write(made.look(1_800_000_000_000 + 1000 * second))
    writer.close()
    [log] = read_machines(str(tmp_path))
    assert log.gpus[0].uuid == "GPU-aaaa" and len(log.devices) == 3
    assert {(row[1], row[2]) for row in log.ranks} == {(0, os.getpid())} and len(log.hosts) == 3


def test_what_fails_costs_the_looks_only(tmp_path):
    class Broken(Library):
        def _nvmlDeviceGetClockInfo(self, *arguments):
            raise ValueError("a driver that goes away")

    library = Broken()
    made, writer = watch(tmp_path, gpus=True, nvml=lambda: Nvml(library), every_s=0.001)
    made.start()
    made._thread.join(10)
    assert not made._thread.is_alive() and library.closed
    made.finish()
    writer.close()


def test_a_machine_without_a_driver(tmp_path):
    def none():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    made, writer = watch(tmp_path, gpus=True, nvml=none)
    assert made._begin() == []
    [kind] = {line[0] for line in made.look(time.time_ns() // 1_000_000)} - {"h", "p", "n", "d", "m"}
    assert kind == "r"
    writer.close()
    assert not (tmp_path / machine_file("x")).exists() and json.dumps(kind)


def test_ranks_of_another_launcher_are_of_the_run(tmp_path, monkeypatch):
    """With --gather on one machine each launcher told the other's rank, and its loader's worker, as others' work."""
    own = ("10.0.0.1", "29500", "2", "0")
    started = {os.getpid(): own, 4321: (*own[:3], "1"), 5000: ("10.0.0.1", "29501", "2", "0"), 6000: None}
    seen = ({pid: Stat("python", 1, 400.0 * t, 0, 0) for pid in started} for t in range(1, 3))
    monkeypatch.setattr(machine_watch.usage, "all_processes", lambda: next(seen))
    monkeypatch.setattr(machine_watch.usage, "started_with", lambda pid, names: started[pid])
    made, writer = watch(tmp_path, gpus=False)
    ranks = machine_watch.read_progress(tmp_path / "progress")
    assert made._others(1_800_000_000_000, ranks) == []
    assert [line[2] for line in made._others(1_800_000_001_000, ranks)] == [5000, 6000]
    writer.close()


def test_what_a_process_was_started_with(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/environ").write_bytes(b"A=1\0B=x=y\0C=\0")
    assert started_with(7, ("B", "A"), tmp_path) == ("x=y", "1")
    assert started_with(7, ("A", "C"), tmp_path) is None and started_with(8, ("A",), tmp_path) is None


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
