"""Trials on real gloo processes, of one host and of two: right numbers, or a result that says what is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from changed import replace
from started import environment

from traceops.across.links import bus_factor
from traceops.core.errors import InputError
from traceops.doctor import trials as workers
from traceops.doctor.job import Job, Rendezvous, Reports
from traceops.doctor.model import Trial
from traceops.doctor.trials import run_job

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="no torch")]


_ALL = ("start", "all_reduce", "pairs", "ddp_step", "sweep", "pair_bandwidth")
_SMALL = (1 << 16, 1 << 20)
_PATIENT = dict.fromkeys(("launch", *_ALL), 600.0)


def _job(*stages: str, ranks: int = 2, **deadlines_s: float) -> Job:
    return Job(stages, tuple(range(ranks)), "gloo", deadlines_s=_PATIENT | deadlines_s, sizes=_SMALL)


def _environ(**changes: str) -> dict[str, str]:
    return environment() | changes


def _workers_of(pid: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(pid).children(recursive=True) if _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    """Not so what other tests have left to itself, such as the tracker of multiprocessing."""
    try:
        return "traceops.doctor.worker" in process.cmdline()
    except psutil.Error:  # gone meanwhile
        return False


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _by_name(trials: tuple[Trial, ...]) -> dict[str, Trial]:
    return {trial.name: trial for trial in trials}


def test_a_healthy_machine_passes_everything_and_is_measured(tmp_path: Path) -> None:
    # As if under torchrun: what it tells its own ranks must not reach ours.
    outer = environment(RANK="5", WORLD_SIZE="9", MASTER_ADDR="192.0.2.1", MASTER_PORT="1", LOCAL_RANK="5")
    trials = run_job(replace(_job(*_ALL, ranks=3), devices=(4, 5, 7)), outer, tmp_path)
    assert [(trial.name, trial.outcome, trial.message) for trial in trials] == [(name, "ok", "") for name in _ALL]
    found = _by_name(trials)
    assert {state.gpus: state.outcome for state in found["pairs"].pairs} == dict.fromkeys(
        [(4, 5), (4, 7), (5, 7)], "ok"
    )
    swept = {(row.op, row.bytes) for row in found["sweep"].measured}
    fitting = {size // 12 * 12 for size in _SMALL}  # whole float32 on each of three ranks
    assert swept == {(op, size) for op in ("all_reduce", "all_gather", "reduce_scatter") for size in fitting}
    for row in found["sweep"].measured:
        assert row.gpus == (4, 5, 7)
        assert row.busbw_gbs == pytest.approx(row.bytes / row.time_us / 1e3 * bus_factor(row.op, 3))
    one_way = {row.gpus for row in found["pair_bandwidth"].measured if row.op == "send_recv"}
    assert one_way == {(4, 5), (5, 4), (4, 7), (7, 4), (5, 7), (7, 5)}
    assert not _workers_of(os.getpid())
    assert (tmp_path / "rank_2.stderr.txt").exists()


def test_a_rank_that_hangs_is_named_and_what_follows_is_not_evaluated() -> None:
    trials = run_job(
        _job("start", "all_reduce", "pairs", ranks=3, all_reduce=4.0),
        _environ(TRACEOPS_DOCTOR_FAULT="all_reduce:1:hang"),
    )
    assert [trial.outcome for trial in trials] == ["ok", "hung", "not_evaluated"]
    assert "rank 1 never came to it" in trials[1].message
    assert "ranks 0, 2 stood at: all-reduce of 1 × float32" in trials[1].message
    assert "all_reduce hung" in trials[2].message
    assert not _workers_of(os.getpid())


def test_a_rank_that_dies_is_the_cause_and_the_others_are_not() -> None:
    trials = run_job(_job("start", "ddp_step"), _environ(TRACEOPS_DOCTOR_FAULT="ddp_step:0:die"))
    assert [trial.outcome for trial in trials] == ["ok", "failed"]
    assert trials[1].message == "rank 0 was killed by SIGKILL; rank 1 then lost a connection"
    assert trials[1].failed == (0,) and trials[0].failed == ()
    assert any("onnection" in line for line in trials[1].said)


def test_wrong_values_are_told_with_their_rank_and_their_pairs() -> None:
    first, *_, pairs, ddp = run_job(
        _job("start", "pairs", "ddp_step", ranks=3), _environ(TRACEOPS_DOCTOR_FAULT="pairs:2:wrong")
    )
    assert (first.outcome, pairs.outcome, ddp.outcome) == ("ok", "wrong", "ok")
    assert pairs.message.startswith("wrong values on rank 2: ranks 1 and 2: send and receive of 1 × float32")
    assert {state.gpus: state.outcome for state in pairs.pairs} == {
        (0, 1): "ok", (0, 2): "wrong", (1, 2): "wrong"
    }  # fmt: skip


def test_a_fault_is_cured_by_the_variable_it_names() -> None:
    job = replace(_job("start", "all_reduce"), set={"NCCL_P2P_DISABLE": "1"})
    faulty = _environ(TRACEOPS_DOCTOR_FAULT="all_reduce:1:wrong:NCCL_P2P_DISABLE")
    assert [trial.outcome for trial in run_job(job, faulty)] == ["ok", "ok"]
    assert [trial.outcome for trial in run_job(replace(job, set={}), faulty)] == ["ok", "wrong"]


def test_an_interface_that_is_not_there_is_told_in_the_words_of_torch() -> None:
    job = replace(_job("start", "all_reduce"), set={"GLOO_SOCKET_IFNAME": "nope0"})
    start, after = run_job(job, _environ())
    assert (start.outcome, after.outcome) == ("failed", "not_evaluated")
    assert "nope0" in start.message
    assert any("nope0" in line for line in start.said)
    # And one that the environment has broken is mended by taking it away.
    mended = replace(job, set={}, unset=("GLOO_SOCKET_IFNAME",))
    assert run_job(mended, _environ(GLOO_SOCKET_IFNAME="nope0"))[0].outcome == "ok"


def test_no_gpu_and_no_torch_are_told_as_such(tmp_path: Path) -> None:
    job = Job(("start", "sweep"), (0, 1), "nccl", deadlines_s=_PATIENT)
    start, _ = run_job(job, _environ(CUDA_VISIBLE_DEVICES=""))
    assert start.outcome == "failed"
    assert "ranks 0–1 (GPUs 0–1) said RuntimeError: torch" in start.message
    assert "finds no GPU" in start.message
    start, _ = run_job(replace(job, names=(6, 2)), _environ(CUDA_VISIBLE_DEVICES=""))
    assert "ranks 0–1 (GPUs 2, 6) said" in start.message
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    start, _ = run_job(job, _environ(PYTHONPATH=str(tmp_path)))
    assert start.outcome == "failed"
    assert "No module named 'torch'" in start.message


_FAKE_TORCH = """
import os
with open(os.environ["NCCL_DEBUG_FILE"].replace("%h", "vm").replace("%p", str(os.getpid())), "w") as log:
    log.write(
        "vm:1:1 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 "
        "commId 0x3ef1 - Init START\\n"
        "vm:2:2 [1] NCCL INFO ncclCommInitRankConfig comm 0x2 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 70 "
        "commId 0x3ef1 - Init START\\n"
        "vm:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\\n"
        "vm:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\\n"
        "vm:1:1 [0] transport/p2p.cc:1 NCCL WARN Cuda failure 'out of memory'\\n"
    )
raise RuntimeError(
    "NCCL error in: NCCLUtils.hpp:77, unhandled system error\\n"
    "ncclSystemError: System call or external library call failed.\\nLast error:\\nno socket interface found\\n"
    "Exception raised from create at NCCLUtils.cpp:1\\nframe #0: c10::Error"
)
"""


def test_what_nccl_said_is_part_of_the_result(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(_FAKE_TORCH)
    job = Job(("start",), (0, 1), "nccl", deadlines_s=_PATIENT)
    [start] = run_job(job, _environ(PYTHONPATH=str(tmp_path), NCCL_DEBUG_FILE=str(tmp_path / "of_the_user")))
    assert start.message.endswith("unhandled system error: no socket interface found")
    assert "rank 0: ncclSystemError: System call or external library call failed." in start.said
    assert "NCCL WARN Cuda failure 'out of memory'" in start.said
    assert not any("frame" in line for line in start.said)
    assert set(start.transports) == {"P2P/CUMEM", "SHM"}
    assert not (tmp_path / "of_the_user").exists()


def test_what_ranks_print_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        'os.write(1, b\'{"event": "end", "stage": "start"}\\n\\xff\\x00\')\n'
        "os.write(2, b'\\xff\\x00garbage\\x1b[31m' * 10_000)\n"
    )
    trials = run_job(_job("start", "all_reduce"), _environ(PYTHONPATH=str(tmp_path)))
    assert [trial.outcome for trial in trials] == ["ok", "ok"]


def test_one_device_has_no_pairs_and_no_bandwidth() -> None:
    trials = run_job(_job(*_ALL, ranks=1), _environ())
    assert [trial.outcome for trial in trials] == ["ok", "ok", "not_evaluated", "ok", "not_evaluated", "not_evaluated"]


def test_ranks_of_two_nodes_meet() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    jobs = [
        replace(_job("start", "pairs", "sweep"), devices=(0,), rendezvous=Rendezvous("127.0.0.1", port, rank, 2))
        for rank in (0, 1)
    ]
    with ThreadPoolExecutor() as pool:
        nodes = list(pool.map(lambda job: run_job(job, _environ()), jobs))
    for trials in nodes:
        assert [trial.outcome for trial in trials] == ["ok"] * 3
        assert [(state.gpus, state.outcome) for state in trials[1].pairs] == [((0, 1), "ok")]
        assert {row.gpus for row in trials[2].measured} == {(0, 1)}  # ranks, of a job over nodes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_doctor(tmp_path: Path, number: signal.Signals) -> None:
    room = tmp_path / "room"
    room.mkdir()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # of a test in the background it is ignored
    try:
        doctor = subprocess.Popen(
            [sys.executable, "-m", "traceops", "doctor", "--device", "cpu", "-o", str(tmp_path / "out")],
            env=_environ(TRACEOPS_DOCTOR_FAULT="start:1:hang", TMPDIR=str(room)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    while len(ranks := _workers_of(doctor.pid)) < 2 or not all(map(_has_begun, ranks)):
        assert doctor.poll() is None
        time.sleep(0.02)
    doctor.send_signal(number)
    doctor.communicate()
    assert doctor.returncode != 0
    _, left = psutil.wait_procs(ranks, timeout=600)  # the kernel's signals take their time on a busy machine
    assert not left
    if number != signal.SIGKILL:
        assert not list(room.iterdir())


def _has_begun(rank: psutil.Process) -> bool:
    """Whether it has loaded torch's library, so that it is well past its start."""
    return any("libtorch" in mapped.path for mapped in rank.memory_maps())


def test_a_rank_that_cannot_be_killed_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_DEATH_S", 0.1)
    killed: list[int] = []
    with monkeypatch.context() as deaf:
        deaf.setattr(os, "killpg", lambda pid, number: killed.append(pid))
        [start] = run_job(_job("start", start=3.0), _environ(TRACEOPS_DOCTOR_FAULT="start:1:hang"))
    for rank in _workers_of(os.getpid()):
        rank.kill()
        assert f"process {rank.pid} of rank" in start.message
        assert rank.pid in killed
    assert start.outcome == "hung"
    assert "did not die" in start.message


def test_what_a_rank_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib, subprocess\n"
        "if os.environ.get('TRACEOPS_DOCTOR_JOB'):\n"
        f"    folder = pathlib.Path({str(tmp_path)!r})\n"
        "    (folder / f'pid.{os.getpid()}').write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
    )
    trials = run_job(_job("start"), _environ(PYTHONPATH=str(tmp_path)))
    assert [trial.outcome for trial in trials] == ["ok"]
    left = [int(path.read_text()) for path in tmp_path.glob("pid.*")]
    assert left
    for _ in range(12_000):  # what was killed may take a moment
        if not any(map(_runs, left)):
            return
        time.sleep(0.05)
    raise AssertionError(f"{left} still run")


def test_a_full_disk_is_told_before_anything_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.shutil, "disk_usage", lambda where: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(InputError, match="no space"):
        run_job(_job("start"), _environ())


def test_a_line_that_a_full_disk_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rank_0.jsonl"
    path.write_text('{"event": "be{"event": "end"}\n{"event": "left"}\n')
    reports = Reports(path)
    reports.refresh()
    assert reports.events == [{"event": "left"}]


_MBITS = 100


def _try(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a link of 100 Mbit/s; skips where they cannot be made."""
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here: two hosts cannot be played")
    names = (f"traceops_{os.getpid()}_a", f"traceops_{os.getpid()}_b")
    try:
        for name in names:
            _try("ip", "netns", "add", name)
            _try("ip", "-n", name, "link", "set", "lo", "up")
        _try("ip", "link", "add", "net0", "netns", names[0], "type", "veth", "peer", "name", "net0", "netns", names[1])
        for number, name in enumerate(names, 1):
            _try("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "net0")
            _try("ip", "-n", name, "link", "set", "net0", "up")
            limit = ("tbf", "rate", f"{_MBITS}mbit", "burst", "64kb", "latency", "400ms")
            _try("tc", "-n", name, "qdisc", "add", "dev", "net0", "root", *limit)
            _try("ip", "netns", "exec", name, "unshare", "--uts", "hostname", f"10.77.0.{number}")
    except subprocess.CalledProcessError as error:
        _remove(names)
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.strip()}")
    yield names
    _remove(names)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _doctor(space: str, node: int, folder: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    # gloo asks for the address of the host's name, and an address as the name needs no name server
    script = f'hostname 10.77.0.{node + 1}; exec "$@"'
    doctor = [
        sys.executable, "-m", "traceops", "doctor", "--device", "cpu", "--nproc", "1", "--quick", "-o", str(folder),
        "--format", "json", "--nnodes", "2", "--node-rank", str(node), "--master-addr", "10.77.0.1", "-q",
    ]  # fmt: skip
    return subprocess.Popen(
        ["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", script, "sh", *doctor],
        env=environment(**environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_wrong_interface_on_one_node_is_found_and_the_slow_link_between_them_said(tmp_path, spaces):
    second = _doctor(spaces[1], 1, tmp_path / "second", {"GLOO_SOCKET_IFNAME": "nosuch0"})
    first = _doctor(spaces[0], 0, tmp_path / "first", {})
    errors = first.communicate()[1]
    assert first.returncode == 0, errors
    assert second.communicate()[0] == "" and second.returncode == 0
    assert not (tmp_path / "second").exists()  # one report, of node 0

    told = json.loads((tmp_path / "first" / "doctor.json").read_text())
    assert told["hosts"] == ["10.77.0.1", "10.77.0.2"]
    starts = [trial for trial in told["trials"] if trial["name"] == "start" and not trial["unset"]]
    outcomes = {tuple(trial["hosts"]): trial["outcome"] for trial in starts}
    assert outcomes[("10.77.0.1",)] == "ok" and outcomes[("10.77.0.2",)] == "failed"
    assert told["settings"]["unset"] == ["GLOO_SOCKET_IFNAME"]

    both = [trial for trial in told["trials"] if trial["hosts"] == told["hosts"] and trial["outcome"] == "ok"]
    rows = [row for trial in both for row in trial["measured"] if row["op"] == "all_reduce"]
    largest = max(rows, key=lambda row: row["bytes"])
    assert 0.2 < largest["busbw_gbs"] / (_MBITS / 8000) < 1.3
    [look] = [look for look in told["looks"] if look["what"] == "all-reduce between the nodes"]
    assert look["level"] == "error"
