"""What the launcher sees of the machine, from a driver and a /proc of the test's own."""

import ctypes
import json
import os
import time
from pathlib import Path

from traceops.capture.progress import ProgressWriter
from traceops.core.rank_files import machine_file
from traceops.launch import machine_watch
from traceops.launch.machine_watch import MachineWatch
from traceops.machine.usage import (
    Nvml,
    Stat,
    all_processes,
    cores_ms,
    descendants,
    process_time,
    quota_ms,
    started_with,
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
    [kind] = {line[0] for line in made.look(time.time_ns() // 1_000_000)} - {"h", "p"}
    assert kind == "r"
    writer.close()
    assert not (tmp_path / machine_file("x")).exists() and json.dumps(kind)


def test_ranks_of_another_launcher_are_of_the_run(tmp_path, monkeypatch):
    """With --gather on one machine each launcher told the other's rank, and its loader's worker, as others' work."""
    own = ("10.0.0.1", "29500", "2", "0")
    started = {os.getpid(): own, 4321: (*own[:3], "1"), 5000: ("10.0.0.1", "29501", "2", "0"), 6000: None}
    seen = ({pid: Stat("python", 1, 400.0 * t, 0, 0) for pid in started} for t in range(1, 3))
    monkeypatch.setattr(machine_watch, "all_processes", lambda: next(seen))
    monkeypatch.setattr(machine_watch, "started_with", lambda pid, names: started[pid])
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
