"""`traceops diagnose` as a user runs it: files, places, exit codes; and the hang as a part of `traceops analyze`."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from traceops.cli import main
from traceops.schemas import schema_path

DATA = Path(__file__).parents[1] / "data"
RANKS = 4
LAST = 64  # the collective that rank 3 never calls


def entry(record: int, completed: bool) -> dict[str, Any]:
    """A collective as torch's flight recorder writes it, version 2.10."""
    return {
        "record_id": record, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": record,
        "p2p_seq_id": 0, "op_id": record, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_700_000_000_000_000_000 + record, "input_sizes": [[1024, 1024]],
        "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]], "output_dtypes": ["Float"],
        "state": "completed" if completed else "started", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": completed, "timeout_ms": 20000, "is_p2p": False,
        "frames": [{"name": "step", "filename": "train.py", "line": 128}],
    }  # fmt: skip


def write_dumps(folder: Path, ranks: int = RANKS, late: int | None = RANKS - 1) -> None:
    """Dumps of an all_reduce that rank `late` never calls; without a late rank all have completed it."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        last = LAST - 1 if rank == late else LAST
        held = {
            "version": "2.10", "nccl_version": "2.28.9",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
            "pg_status": {"0": {"last_enqueued_collective": last, "last_started_collective": last,
                                "last_completed_collective": LAST if late is None else LAST - 1}},
            "entries": [entry(n, n < LAST or late is None) for n in range(LAST - 3, last + 1)],
        }  # fmt: skip
        (folder / f"flight_recorder_{rank}").write_bytes(pickle.dumps(held, 2))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with traces and evidence of a hang."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "item_sync4", tmp_path / "profile" / "some run")
    write_dumps(tmp_path / "profile" / "some run" / "evidence")
    return Path("profile", "some run")


def test_it_says_who_hangs_and_writes_beside_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(folder)]) == 0
    out = Path("reports", "some run")
    assert {path.name for path in out.iterdir()} == {"hang.html", "hang.json", "hang_ranks.csv", "hang_waits.csv"}
    said = capsys.readouterr().out
    assert said.startswith("✖ Rank 3 never ") and "TO-H001" in said
    assert said.splitlines()[-1] == f"Report: {out / 'hang.html'}"
    held = json.loads((out / "hang.json").read_text())
    jsonschema.validate(held, json.loads(schema_path("hang").read_text()))
    assert held["hang"]["roots"][0]["ranks"] == [3] and held["hang"]["roots"][0]["waiting"] == [0, 1, 2]
    assert {check["rule"] for check in held["checks"]} == {
        *(f"TO-H00{n}" for n in range(1, 7)),
        *(f"TO-E00{n}" for n in range(1, 9)),
    }


def test_analyze_and_diagnose_leave_each_others_files_alone(folder: Path) -> None:
    for command in ("analyze", "diagnose", "analyze"):
        assert main([command, str(folder), "-q", "--format", "json"]) == 0
    assert {path.name for path in Path("reports", "some run").iterdir()} == {"report.json", "hang.json"}


def test_an_evidence_folder_and_one_dump_will_do(folder: Path, tmp_path: Path) -> None:
    assert main(["diagnose", str(folder / "evidence"), "-o", str(tmp_path / "a"), "-q"]) == 0
    assert json.loads((tmp_path / "a" / "hang.json").read_text())["hang"]["roots"][0]["ranks"] == [3]
    assert main(["diagnose", str(folder / "evidence" / "flight_recorder_0"), "-o", str(tmp_path / "b"), "-q"]) == 0
    assert json.loads((tmp_path / "b" / "hang.json").read_text())["run"]["ranks_present"] == [0]


@pytest.mark.parametrize(("late", "code"), [(3, 1), (None, 0)])
def test_fail_on(tmp_path: Path, late: int | None, code: int) -> None:
    write_dumps(tmp_path / "dumps", late=late)
    args = ["diagnose", str(tmp_path / "dumps"), "-o", str(tmp_path / "out"), "-q", "--fail-on", "error"]
    assert main(args) == code


def test_quiet_prints_one_path_and_formats_are_chosen(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(folder), "-o", str(tmp_path / "out"), "-q", "--format", "csv"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'hang_ranks.csv'}\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"hang_ranks.csv", "hang_waits.csv"}
    assert main(["diagnose", str(folder), "--format", "pdf"]) == 2


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"")])
def test_nothing_to_read_ends_with_3(tmp_path: Path, make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "run")
    assert main(["diagnose", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.startswith("traceops diagnose: ")
    assert not (tmp_path / "out").exists()


def test_analyze_leads_with_the_hang(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(folder)]) == 0
    out = Path("reports", "some run")
    held = json.loads((out / "report.json").read_text())
    jsonschema.validate(held, json.loads(schema_path("report").read_text()))
    assert held["findings"][0]["rule"] == "TO-H001" and len(held["findings"]) > 1
    assert held["hang"]["roots"][0]["ranks"] == [3]
    status = {check["rule"]: check["status"] for check in held["checks"]}
    assert status["TO-H001"] == "fired" and status["TO-H002"] == "clear"
    page = (out / "summary.html").read_text()
    assert '<section id="hang">' in page and page.index('id="hang"') < page.index('id="findings"')
    assert "✖ Rank 3 never " in capsys.readouterr().out


def test_analyze_without_evidence_judges_no_hang(tmp_path: Path) -> None:
    assert main(["analyze", str(DATA / "item_sync4"), "-o", str(tmp_path), "-q", "--format", "json"]) == 0
    held = json.loads((tmp_path / "report.json").read_text())
    assert held["hang"] is None
    checks = [check for check in held["checks"] if check["rule"].startswith("TO-H")]
    assert len(checks) == 6
    assert all(c["status"] == "not_evaluated" and "no evidence of a hang" in c["reason"] for c in checks)


def test_evidence_that_cannot_be_used_stops_no_analysis(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "evidence").iterdir():
        path.write_bytes(b"")
    assert main(["analyze", str(folder), "-o", str(tmp_path / "out"), "-q", "--format", "json"]) == 0
    held = json.loads((tmp_path / "out" / "report.json").read_text())
    reasons = {check["reason"] for check in held["checks"] if check["rule"].startswith("TO-H")}
    assert held["hang"] is None and all("could not be used" in reason for reason in reasons)


@pytest.mark.parametrize("command", ["analyze", "memory"])
def test_evidence_of_a_hang_reaches_its_answer_by_whichever_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dumps(tmp_path / "run" / "evidence")
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", "run", "-q"]) == 0
    report = capsys.readouterr().out
    assert main([command, "run", "-q"]) == 0
    assert capsys.readouterr().out == report


@pytest.mark.parametrize("command", [["analyze"], ["memory"], ["doctor", "--from"]])
def test_a_text_that_shows_no_trouble_stays_an_error_of_the_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("hello\n", encoding="utf-8")
    assert main([*command, str(tmp_path / "notes.txt")]) != 0
    assert f"traceops {command[0]}: " in capsys.readouterr().err


def test_doctor_judges_the_rest_and_says_first_what_ended_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n", encoding="utf-8")
    gloo = "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. "
    (tmp_path / "job.log").write_text(gloo + "Unable to find address for: ens99\n", encoding="utf-8")
    files = [str(tmp_path / name) for name in ("topo.txt", "job.log")]
    assert main(["doctor", "--from", *files, "-o", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"traceops diagnose {files[1]}: ") and "ens99" in lines[0]
    assert any("GPU0-1" in line or "2 GPUs" in line for line in lines[1:])


def test_diagnose_never_imports_torch_pandas_or_plotly(folder: Path) -> None:
    program = (
        "import sys; from traceops.cli import main; "
        f"code = main(['diagnose', {str(folder)!r}, '-o', 'out', '-q']); "
        "print(code, *({'torch', 'pandas', 'plotly', 'hta'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"


def test_a_paste_is_read_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pasted = b"> [rank3]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pasted)))
    assert main(["diagnose", "-", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("✖ Rank 3 made an illegal memory access") and "compute-sanitizer" in said
    assert json.loads((tmp_path / "out" / "hang.json").read_text())["hang"]["roots"][0]["ranks"] == [3]
