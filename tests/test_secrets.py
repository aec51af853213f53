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
from traceops.core.redaction import redact_text, redact_words

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


HEX = "0123456789abcdef0f1e2d3c4b5a69788796a5b4c3d2e1f00123456789abcdef"
DRAWN = "9fK2d0m7ZqX1LxTbV8nR3sWy5uHcJ4pQ"
# Begin and rest of keys of services, apart for the reason above.
OF_SERVICES = [
    ("AK", "IAIOSFODNN7EXAMPLE"),
    ("gh", f"p_{DRAWN}1234"),
    ("gh", f"o_{DRAWN}1234"),
    ("github", f"_pat_11ABCD_{DRAWN}"),
    ("gl", f"pat-{DRAWN[:20]}"),
    ("xo", f"xb-123456789012-{DRAWN}"),
    ("sk", f"-ant-api03-{DRAWN}"),
    ("sk", f"-{DRAWN}"),
    ("AI", f"zaSy{DRAWN}a"),
    ("ya", f"29.{DRAWN}"),
    ("np", f"m_{DRAWN}abcd"),
    ("py", f"pi-AgEI{DRAWN}"),
    ("nv", f"api-{DRAWN}"),
    ("dc", f"kr_pat_{DRAWN}"),
    ("hv", f"s.{DRAWN}"),
    ("hv", f"b.{DRAWN}"),
    ("S", f"G.{DRAWN[:22]}.{DRAWN}{DRAWN[:11]}"),
    ("ke", f"y-{HEX[:32]}"),
    ("sk", f"_live_{DRAWN}"),
    ("rk", f"_live_{DRAWN}"),
    ("sq", f"0atp-{DRAWN[:22]}"),
    ("sq", f"0csp-{DRAWN}"),
    ("EA", f"AA{DRAWN}{DRAWN}"),
    ("A", f"C{HEX[:32]}"),
    ("S", f"K{HEX[:32]}"),
    ("do", f"p_v1_{HEX}"),
    ("sh", f"pat_{HEX[:32]}"),
    ("li", f"n_api_{DRAWN}12345678"),
    ("PM", f"AK-{HEX[:24]}-{HEX[:34]}"),
    ("NR", f"AK-{DRAWN[:27].upper()}"),
    ("gl", f"sa_{DRAWN}_{HEX[:8]}"),
    ("ey", f"JrIjoi{DRAWN}{DRAWN}"),
    ("da", f"pi{HEX[:32]}"),
    ("12", f"34567890:AA{DRAWN}a"),
    ("gs", f"k_{DRAWN}{DRAWN}"),
    ("r8", f"_{DRAWN}abcde"),
    ("pp", f"lx-{DRAWN}{DRAWN}"),
    ("fi", f"gd_{DRAWN}{DRAWN}"),
    ("AG", f"E-SECRET-KEY-1{DRAWN.upper()}{DRAWN.upper()}"),
    ("AT", f"ATT3xFfGF0{DRAWN}"),
    ("at", f"lasv1.{DRAWN}"),
    ("xa", f"i-{DRAWN}{DRAWN}"),
    ("CF", f"PAT-{DRAWN}{DRAWN}"),
    ("sb", f"p_{HEX[:40]}"),
    ("ps", f"cale_pw_{DRAWN}"),
    ("ps", f"cale_tkn_{DRAWN}"),
    ("op", f"s_eyJ{DRAWN}{DRAWN}"),
    ("du", f"ffel_live_{DRAWN}{DRAWN}"),
    ("fm", f"2_{DRAWN}"),
    ("ts", f"key-auth-{DRAWN}"),
    ("sn", f"tryu_{HEX}"),
    ("ru", f"bygems_{HEX[:48]}"),
    ("v1", f".0-{HEX[:24]}-{HEX}"),
    ("wh", f"sec_{DRAWN}"),
    ("ph", f"c_{DRAWN}"),
    ("lo", f"cal-{HEX[:40]}"),
    ("hf", f"_{DRAWN}"),
    ("tg", f"p_v1_{DRAWN}{DRAWN}"),
    ("ls", f"v2_pt_{HEX[:32]}_{HEX[:10]}"),
    ("pc", f"sk_{DRAWN}{DRAWN}"),
    ("hooks.slack", f".com/services/T00000000/B00000000/{DRAWN[:24]}"),
    ("discord", f".com/api/webhooks/1234567890/{DRAWN}"),
    ("a.webhook.office", f".com/webhookb2/{HEX[:36]}@a/IncomingWebhook/{HEX[:32]}/y"),
]
# A command, a variable or a line of a log, and the part of it that nobody may read.
IN_WORDS = [
    ("--pass hunter2x", "hunter2x"),
    ("--pw hunter2x", "hunter2x"),
    ("--db-pw hunter2x", "hunter2x"),
    ("DB_PW=hunter2x", "hunter2x"),
    ("--db-pass=hunter2x", "hunter2x"),
    ("MYSQL_PWD=abcx", "abcx"),
    ("PGPASSWORD=hunter2x", "hunter2x"),
    ("smtp_pass = hunter2x", "hunter2x"),
    (f"--api-key {DRAWN}", DRAWN),
    (f"api key {DRAWN}", DRAWN),
    (f"wandb login {HEX[:40]}", HEX[:40]),
    (f"secret: {DRAWN}", DRAWN),
    (f"aws_secret_access_key {DRAWN[:20]}/x/y", DRAWN[:20]),
    ("password is hunter2swordfish", "hunter2swordfish"),
    ("sshpass -p hunter2 ssh host", "hunter2"),
    ("mysql -u ann -phunter2x db", "hunter2x"),
    ("curl -u bob:hunter2 http://x", "hunter2"),
    ("postgres://u:pw12@h/db", "pw12"),
    (f"Authorization: Bearer {DRAWN}", DRAWN),
    (f"x-api-key: {DRAWN}", DRAWN),
    (f"Cookie: session={DRAWN}", DRAWN),
    (f"https://x.com/?token={DRAWN}", DRAWN),
    (f"https://x.blob.core.windows.net/c?sig={DRAWN}%3D", DRAWN),
    ("--webhook https://example.org/in/3f2a", "in/3f2a"),
    (f"AccountKey={DRAWN}{DRAWN}==", DRAWN),
    ("--password $ecret1x", "$ecret1x"),
    ("DB_PASSWORD=$3cret", "$3cret"),
    ("--password='<9x>y'", "9x"),
    ("${DB_PASSWORD:-hunter2x}", "hunter2x"),
    ("--password {x9y8", "{x9y8"),
]


@pytest.mark.parametrize(("begin", "rest"), OF_SERVICES)
def test_a_key_of_a_service_is_known_by_its_shape(begin: str, rest: str) -> None:
    key = begin + rest
    for told in (
        redact_text(f"could not log in with {key}, see below"),
        " ".join(redact_words(["train.py", "x", key])),
    ):
        assert rest not in told and "***" in told


@pytest.mark.parametrize(("line", "secret"), IN_WORDS)
def test_a_secret_is_known_by_what_stands_before_it(line: str, secret: str) -> None:
    assert secret in line
    assert secret not in " ".join(redact_words(line.split()))
    if not line.startswith("api key"):  # in a line of a log two words are prose
        assert secret not in redact_text(line)


def test_no_word_of_an_ordinary_command_is_hidden() -> None:
    """Written for what looks like a secret and is none; and all of seven projects' manuals (tests/data/README.md)."""
    lines = (DATA / "command_lines.txt").read_text().splitlines()
    lines += gzip.decompress((DATA / "public_command_lines.txt.gz").read_bytes()).decode().splitlines()
    assert len(set(lines)) > 2300
    hidden = [line for line in lines if redact_words(line.split()) != line.split() or redact_text(line) != line]
    assert hidden == []


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
