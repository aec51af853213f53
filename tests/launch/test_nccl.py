"""Launches on two GPUs: what gloo cannot show, because nothing there waits inside a kernel."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from traceops.core.torch_here import gpu_count
from traceops.hangs.discover import find_evidence

ROOT = Path(__file__).resolve().parents[2]
_DEADLOCK_S = 600

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")]

_SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
steps, fail = int(sys.argv[1]), sys.argv[2:]
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
layers = [torch.nn.Linear(2048, 2048) for _ in range(8)]
model = DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(steps):
    optimizer.zero_grad()
    loss = model(torch.randn(512, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 1 and step == 20 and fail:
        raise ValueError("boom")
    if fail or steps > 1000:
        loss.item()  # the host waits inside the driver when the peer is gone
dist.destroy_process_group()
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

    def run(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "traceops", "run", "--nproc", "2", *arguments],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, text=True, stderr=subprocess.PIPE,
        )  # fmt: skip

    return run


def names_in(trace):
    with gzip.open(trace) as handle:
        return [event.get("name", "") for event in json.load(handle)["traceEvents"]]


def run_json(tmp_path):
    return json.loads((tmp_path / "profile" / "train" / "run.json").read_text())


def test_steps_are_timed_on_the_device(start, tmp_path):
    process = start("--skip-first", "10", "--unprofiled", "10", "--", "train.py", "40")
    _, err = process.communicate(timeout=_DEADLOCK_S)
    assert process.returncode == 0, err
    run = run_json(tmp_path)
    print({key: run[key] for key in ("unprofiled_step_ms", "profiled_step_ms", "nccl_version", "driver_version")})
    assert (run["device"], run["backend"]) == ("cuda", "nccl") and run["nccl_version"]
    assert len({rank["device"]["uuid"] for rank in run["ranks"]}) == 2
    for rank in run["ranks"]:
        assert rank["step_clock"] == "cuda_event"
        assert (len(rank["unprofiled_step_ms"]), len(rank["profiled_step_ms"])) == (10, 4)
        print(rank["unprofiled_step_ms"], rank["unprofiled_host_ms"], rank["profiled_step_ms"])
        names = names_in(tmp_path / "profile" / "train" / rank["traces"][0])
        assert sum("ncclDevKernel_AllReduce" in name for name in names) >= 4
        assert sorted(name for name in names if name.startswith("ProfilerStep#")) >= ["ProfilerStep#22"] * 2


def test_a_rank_that_waits_in_a_kernel_for_a_dead_peer_still_saves_its_trace(start, tmp_path):
    schedule = ("--skip-first", "2", "--unprofiled", "2", "--active", "500")
    process = start(*schedule, "--", "train.py", "600", "raise")
    began = time.monotonic()
    _, err = process.communicate(timeout=_DEADLOCK_S)
    print(f"ended after {time.monotonic() - began:.1f} s", err)
    assert process.returncode == 1 and "rank 1 on " in err and "ValueError: boom" in err
    run = run_json(tmp_path)
    for rank in run["ranks"]:
        assert rank["traces"], f"rank {rank['rank']} lost its trace"
        assert "ProfilerStep#15" in names_in(tmp_path / "profile" / "train" / rank["traces"][0])


def test_an_interrupted_run_keeps_all_traces(start, tmp_path):
    process = start("--active", "100000", "--", "train.py", "200000")
    deadline = time.monotonic() + _DEADLOCK_S
    while "(active)" not in (line := process.stderr.readline()):
        assert process.poll() is None and time.monotonic() < deadline, line
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=_DEADLOCK_S)
    print(f"ended after {time.monotonic() - began:.1f} s", err)
    assert process.returncode == 130
    assert not [child for child in family if child.is_running()]
    assert [len(rank["traces"]) for rank in run_json(tmp_path)["ranks"]] == [1, 1]


def test_a_run_leaves_how_its_ranks_were_connected_and_no_line_for_each_collective(start, tmp_path):
    counts = []
    for steps in ("20", "220"):
        process = start("--hang-timeout", "0", "--name", steps, "--", "train.py", steps)
        _, err = process.communicate(timeout=_DEADLOCK_S)
        assert process.returncode == 0, err
        evidence = tmp_path / "profile" / steps / "evidence"
        logs = [path.read_text() for path in evidence.glob("nccl.*.log")]
        assert len(logs) == 2 and all("NCCL INFO Channel 00" in log and " via " in log for log in logs)
        assert all("NCCL INFO === System" in log and "NCCL INFO Pattern" in log for log in logs)
        counts.append(sum(len(log.splitlines()) for log in logs))
        if shutil.which("nvidia-smi"):
            (topology,) = evidence.glob("topo.*.txt")
            assert "GPU1" in topology.read_text()
        assert find_evidence(tmp_path / "profile" / steps).ends
    print("lines of NCCL's logs", counts)
    assert abs(counts[1] - counts[0]) < 20
