"""Secrets planted in a run are in none of the files that its products are made of, and on no terminal."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from pathlib import Path

import pytest

from traceops.capture.folder import write_run
from traceops.capture.manifest import RankManifest, read_ranks, write_rank
from traceops.cli import main

DATA = Path(__file__).parent / "data"
KEY = "sk" + "-proj-4f9Kd02mZq71LxTbV8nR3sWy"  # in pieces, so that no scanner takes it for one that leaked
OWN = "correct-horse-battery"  # which only its name gives away
PASSWORD = "hunter2swordfish"
URL = f"https://bot:{PASSWORD}@hub.example.org/model"
PLANTED = (KEY, OWN, PASSWORD)
ARGV = [
    "train.py",
    "--api-key",
    KEY,
    f"--db-password={OWN}",
    "--data",
    URL,
    "--tokenizer",
    "gpt2",
    "--max-tokens",
    "512",
]
ERROR = f"cannot log in to {URL} with token={KEY}"


def found_in(folder: Path) -> list[tuple[str, str]]:
    """(file, secret) for each that a file holds, gzipped or not."""
    held = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            held += [
                (str(path), secret)
                for secret in PLANTED
                if secret.encode() in data or secret.encode() in path.name.encode()
            ]
    return held


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with secrets in whatever its user controls: words, variables, what the training says, errors."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "profile" / "mine"
    monkeypatch.setattr(sys, "argv", ARGV)
    monkeypatch.setattr(sys, "orig_argv", ["python", *ARGV])
    monkeypatch.setenv("TORCH_HUB_URL", URL)
    monkeypatch.setenv("NCCL_NET_PLUGIN", f"x?token={KEY}")
    for rank in range(4):
        write_rank(folder, manifest(rank))
    write_run(folder)
    for trace in (DATA / "ddp4").iterdir():
        shutil.copy(trace, folder / trace.name)
    return folder


def manifest(rank: int) -> RankManifest:
    return RankManifest(
        rank, rank, 4, "node0", 100 + rank, {"type": "cpu", "index": None, "name": "x"}, {"active": 2}, {},
        status="failed", exit_code=1, error=f"RuntimeError: 401 for {URL}", note=f"no trace: token={KEY}",
        training={"model": "gpt2", "hub_token": KEY, "config": {"password": OWN, "layers": 2, "source": Path(URL)}},
        started_ns=1_700_000_000_000_000_000,
    )  # fmt: skip


def test_what_a_run_records_of_itself_holds_no_secret(run: Path) -> None:
    assert found_in(run) == []
    told = json.loads((run / "run.json").read_text())
    assert told["argv"] == [
        "train.py", "--api-key", "***", "--db-password=***", "--data", "https://***@hub.example.org/model",
        "--tokenizer", "gpt2", "--max-tokens", "512",
    ]  # fmt: skip
    assert told["training"]["hub_token"] == "***" and told["training"]["config"]["layers"] == 2
    assert read_ranks(run)[1].error == "RuntimeError: 401 for https://***@hub.example.org/model"


@pytest.mark.slow
def test_no_product_of_a_run_holds_a_secret(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where an earlier version, or somebody else, wrote run.json: here as it was before."""
    told = json.loads((run / "run.json").read_text())
    told |= {"argv": ARGV, "command": ["traceops", "run", "--env", f"MY_API_KEY={OWN}", "--", *ARGV]}
    told["environment"] |= {"TORCH_HUB_URL": URL, "NCCL_API_KEY": OWN}
    told["training"] = {"model": "gpt2", "hub_token": KEY, "config": {"password": OWN}}
    told["notes"] = [f"could not reach {URL}"]
    (run / "run.json").write_text(json.dumps(told))
    (run / "rank_1.pt.trace.json.gz").write_bytes(b"")  # a problem, which names the file
    second = tmp_path / "profile" / "other"
    shutil.copytree(run, second)
    second_told = {**told, "argv": [*ARGV, "--more"], "started_ns": told["started_ns"] + 10**9}
    (second / "run.json").write_text(json.dumps(second_told))
    hung = tmp_path / "hung"
    hung.mkdir()
    log = (DATA / "hang_logs" / "gloo_raise.txt").read_text()
    (hung / "log.txt").write_text(log.replace("ValueError: bad batch", f"ValueError: {ERROR}"))
    for words in (
        ["analyze", "profile/mine"],
        ["analyze", "profile/other"],
        ["diagnose", "hung"],
        ["compare", "profile/mine", "profile/other"],
        ["baseline", "save", "profile/mine"],
        ["baseline", "list"],
        ["baseline", "show", "gpt2*", "--json"],
        ["baseline", "history", "-o", "reports/history"],
        ["compare", "baseline:auto", "reports/other/report.json", "-o", "reports/against"],
        ["analyze", f"{URL.replace('https', 'nothing')}"],
        ["run", "--env", f"MY_API_KEY {OWN}", "--", "train.py"],
    ):
        main(words)
    made = {path.name for path in tmp_path.rglob("*")}
    assert {"report.json", "summary.html", "hang.json", "compare.json", "compare.md", "history.json"} <= made
    assert found_in(tmp_path / "reports") == [] and found_in(tmp_path / "baselines") == []
    shown = "".join(capfd.readouterr())
    assert not [secret for secret in PLANTED if secret in shown]
    assert "cannot log in to https://***@hub.example.org/model" in (tmp_path / "reports/hung/hang.json").read_text()


def test_wrong_words_of_a_command_are_not_repeated_with_their_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["analyze", "x", "--api-key", KEY, f"--password={OWN}"])
    said = capsys.readouterr().err
    assert "unrecognized arguments" in said and KEY not in said and OWN not in said
