"""`traceops doctor` as a user runs it: on this machine's CPU over real gloo, and on files that others saved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from started import python_path

from traceops.cli import main
from traceops.doctor.settings import Settings, read_settings
from traceops.fabric.reference import references_here
from traceops.schemas import schema_path

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_LOGS = Path(__file__).parents[1] / "data" / "nccl_logs"
# As `nvidia-smi topo -m` shows a host with two L4 on different NUMA nodes.
TWO_L4 = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tSYS\tSYS\tSYS\tNODE\t0-23\t0\t\tN/A
GPU1\tSYS\t X \tNODE\tNODE\tSYS\t24-47\t1\t\tN/A
NIC0\tSYS\tNODE\t X \tPIX\tSYS
NIC1\tSYS\tNODE\tPIX\t X \tSYS
NIC2\tNODE\tSYS\tSYS\tSYS\t X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_bond_0
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", python_path(os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TRACEOPS_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith(("NCCL_", "GLOO_"))]:
        monkeypatch.delenv(name)


def told() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(Path("reports/doctor/doctor.json").read_text())
    jsonschema.validate(document, json.loads(schema_path("doctor").read_text()))
    return document


def on_cpu(*more: str) -> int:
    return main(["doctor", "--device", "cpu", *more])


def test_a_healthy_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(compiler=True))
    assert on_cpu("--fail-on", "error") == 0
    document = told()
    assert {trial["outcome"] for trial in document["trials"]} == {"ok"}
    assert [trial["name"] for trial in document["trials"]] == [
        "start", "all_reduce", "pairs", "ddp_step", "sweep", "pair_bandwidth",
    ]  # fmt: skip
    assert document["settings"] is None and read_settings("reports/doctor/doctor.json") == Settings()
    assert Path("reports/doctor/doctor.html").is_file()
    [kept] = references_here()
    assert kept.gpu is None and {row.backend for row in kept.measured} == {"gloo"}
    shown = capsys.readouterr()
    assert "doctor: testing 2 ranks on the CPU" in shown.err
    assert "export " not in shown.out and "unset " not in shown.out


def test_the_way_back_from_an_interface_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert on_cpu("--quick", "--fail-on", "error", "--format", "json") == 1
    shown = capsys.readouterr()
    assert "doctor: trying without GLOO_SOCKET_IFNAME" in shown.err
    assert "\nunset GLOO_SOCKET_IFNAME\n" in shown.out
    assert read_settings("reports/doctor/doctor.json") == Settings({}, ("GLOO_SOCKET_IFNAME",))
    as_it_is, *_ = told()["trials"]
    assert as_it_is["outcome"] == "failed" and "nosuch0" in as_it_is["message"]
    assert not any("omitting python frames" in line for line in as_it_is["said"])


def test_wrong_sums_are_cured_by_the_first_setting_that_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACEOPS_DOCTOR_FAULT", "all_reduce:0:wrong:GLOO_SOCKET_IFNAME")
    assert on_cpu("--quick", "--json") == 0
    assert json.loads(capsys.readouterr().out) == told()
    settings = read_settings("reports/doctor/doctor.json")
    assert set(settings.set) == {"GLOO_SOCKET_IFNAME"} and settings.fallback is None
    outcomes = [trial["outcome"] for trial in told()["trials"] if trial["name"] == "all_reduce"]
    assert outcomes[0] == "wrong" and outcomes[-1] == "ok"


def test_where_nothing_works_one_process_stands_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACEOPS_DOCTOR_FAULT", "start:0:die")
    assert on_cpu("--quick", "--nproc", "3", "--format", "json") == 0
    assert read_settings("reports/doctor/doctor.json") == Settings(fallback=3)
    assert "--fallback single" in capsys.readouterr().out


def test_nothing_is_started_where_only_looking_was_asked_for() -> None:
    assert main(["doctor", "--no-tests", "-q"]) == 0
    document = told()
    assert document["looks"] and not document["trials"]


def test_files_that_others_saved_are_judged_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    Path("topo.txt").write_text(TWO_L4)
    code = "import sys; from traceops.cli import main\n"
    code += "code = main(sys.argv[1:])\nsys.exit(9 if 'torch' in sys.modules else code)"
    command = [sys.executable, "-c", code, "doctor", "--from", "topo.txt", "--fail-on", "info"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Read: topology in topo.txt." in done.stdout
    document = told()
    assert [finding["rule"] for finding in document["findings"]] == ["TO-P001"]
    assert document["findings"][0]["severity"] == "info" and not document["trials"]
    assert main(["doctor", "--from", "topo.txt", "--fail-on", "warning"]) == 0


def test_what_nccl_said_in_a_saved_log_is_in_the_document() -> None:
    shutil.copy(_LOGS / "socket.txt", "nccl.log")
    assert main(["doctor", "--from", "nccl.log", "-q"]) == 0
    nccl = told()["nccl"]
    assert nccl["versions"] and nccl["files"] == ["nccl.log"]
    assert {(one["transport"], one["detail"]) for one in nccl["connections"]} == {("NET", "Socket")}
    assert main(["doctor", "--no-tests", "-q"]) == 0 and told()["nccl"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--from", "nowhere.txt"], 3, "nowhere.txt"),
        (["--from", "text.txt"], 3, "text.txt holds no"),
        (["--from", "text.txt", "--gpus", "0"], 2, "--gpus: --from only reads files"),
        (["--device", "cpu", "--gpus", "0"], 2, "--nproc"),
        (["--nnodes", "2"], 2, "--master-addr"),
        (["--node-rank", "1"], 2, "--nnodes"),
        (["--format", "pdf"], 2, "--format"),
        (["-o", "text.txt"], 3, "-o DIR"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text.txt").write_text("nothing of a fabric\n")
    assert main(["doctor", *arguments]) == code
    shown = capsys.readouterr()
    assert says in shown.err and "testing" not in shown.err


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine may have a GPU")
def test_asking_for_gpus_where_there_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cuda"]) == 2
    assert "--device cpu" in capsys.readouterr().err


def test_the_other_processes_of_a_node_end_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 0
    assert capsys.readouterr() == ("", "") and not Path("reports").exists()


def test_a_checkup_made_elsewhere_is_shown_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-tests"]) == 0
    before = capsys.readouterr().out
    assert main(["doctor", "--from", "reports/doctor/doctor.json", "-o", "again"]) == 0
    assert capsys.readouterr().out == before.replace("reports/doctor", "again")


def test_what_was_measured_here_is_not_overwritten_by_files_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["doctor", "--no-tests", "-q"]) == 0
    monkeypatch.setattr("traceops.cli.doctor.read_checkup", lambda path: SimpleNamespace(trials=("a test",)))
    measured = Path("reports/doctor/doctor.json").read_bytes()
    for name in ("a", "b"):
        Path(f"{name}.txt").write_text(TWO_L4)
    assert main(["doctor", "--from", "a.txt", "b.txt", "-q"]) == 0
    assert Path("reports/doctor/doctor.json").read_bytes() == measured
    assert Path("reports/doctor-from-files/doctor.json").is_file()


def test_variables_that_a_job_left_in_a_shell_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["doctor"]) == 0
    assert "LOCAL_RANK" in capsys.readouterr().err


def test_the_script_of_a_batch_job_learns_that_the_other_nodes_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    assert main(["doctor", "--no-tests", "--format", "json"]) == 0
    assert "4 nodes" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    assert main(["doctor", "--no-tests", "--format", "json"]) == 0
    assert "srun" not in capsys.readouterr().err


def test_under_torchrun_one_process_does_the_work() -> None:
    """On one node; what torchrun tells its children is not passed on to the tests' own processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "traceops"]
    doctor = ["doctor", "--device", "cpu", "--quick", "--format", "json"]
    done = subprocess.run([*command, *doctor], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("doctor: testing 2 ranks") == 1
    assert {trial["outcome"] for trial in told()["trials"]} == {"ok"}
