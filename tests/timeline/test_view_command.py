"""`traceops view` writes one file where it should, or leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from perfetto_reading import packets_of
from small_traces import training, write_run, x

from traceops.cli import main
from traceops.timeline.choose import file_name

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "profile" / "mine", [training(0), training(1)])
    return Path("profile/mine")


def test_it_says_what_it_wrote_and_how_to_open_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run)]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("Writing about ")
    assert "reports/mine/timeline.pftrace.gz" in said.out
    assert "2 ranks" in said.out
    assert "ui.perfetto.dev" in said.out
    assert said.err == ""
    assert packets_of(Path("reports/mine/timeline.pftrace.gz"))
    assert [path.name for path in Path("reports/mine").iterdir()] == ["timeline.pftrace.gz"]


def test_a_part_has_a_file_of_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--around and --steps wrote over the whole timeline, which may have taken minutes to write."""
    assert main(["view", str(run), "-q"]) == 0
    whole = Path("reports/mine/timeline.pftrace.gz").read_bytes()
    assert main(["view", str(run), "-q", "--steps", "4,6", "--ranks", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "reports/mine/timeline.ranks_1.steps_4_6.pftrace.gz"
    assert Path("reports/mine/timeline.pftrace.gz").read_bytes() == whole
    assert packets_of(Path("reports/mine/timeline.ranks_1.steps_4_6.pftrace.gz"))


@pytest.mark.parametrize(
    ("around", "ranks", "steps", "name"),
    [
        (None, None, None, "timeline.pftrace.gz"),
        ("TO-S001", None, None, "timeline.TO-S001.pftrace.gz"),
        (" to-s001#2", None, [5], "timeline.TO-S001.2.steps_5.pftrace.gz"),
        ("TO-S001.1", [7, 4, 5, 6, 0], None, "timeline.TO-S001.ranks_0_4-7.pftrace.gz"),
        (None, range(0, 400, 2), None, "timeline.ranks_200_eb9542d1.pftrace.gz"),
    ],
)
def test_the_name_of_a_part(around, ranks, steps, name) -> None:
    assert file_name(around, ranks, steps) == name


def test_what_is_no_finding_names_no_file(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "--around", "../x"]) == 2
    assert "'../x' is no finding" in capsys.readouterr().err
    assert not Path("reports").exists()


def test_json_for_those_who_ask(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "-o", "t.json.gz"]) == 0
    assert "t.json.gz" in capsys.readouterr().out
    assert json.loads(gzip.decompress(Path("t.json.gz").read_bytes()))


def test_quietly_elsewhere_and_not_compressed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run), "-q", "-o", "new/folder/t.json", "--ranks", "1", "--steps", "4, 6-6"]) == 0
    assert capsys.readouterr().out == "new/folder/t.json\n"
    names = {event["name"] for event in json.loads(Path("new/folder/t.json").read_text())["traceEvents"]}
    assert {"step 4", "step 6"} <= names
    assert "step 5" not in names


def test_what_is_in_the_file_names_no_folder_of_this_machine(run: Path) -> None:
    assert main(["view", str(run), "-q", "-o", "t.json"]) == 0
    assert str(Path.cwd()) not in Path("t.json").read_text()
    assert json.loads(Path("t.json").read_text())["traceops"]["ranks"][1] == {"rank": 1, "trace": "rank_1.json"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--ranks", "0,5"], 2, "no trace of rank 5"),
        (["--steps", "9"], 2, "do not hold step 9"),
        (["-o", "profile"], 2, "is a folder"),
        (["-o", "profile/mine/rank_0.json"], 2, "is one of the traces"),
        (["-o", "profile/mine/rank_0.json/x/t.json"], 3, "cannot be written"),
    ],
)
def test_errors_leave_nothing(
    run: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(Path().rglob("*"))
    assert main(["view", str(run), *arguments]) == code
    assert words in capsys.readouterr().err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "0-999999999", "-1", "1.5"])
def test_lists_that_are_none(run: Path, text: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["view", str(run), f"--ranks={text}"])
    assert stopped.value.code == 2


def test_input_that_cannot_be_read(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in run.iterdir():
        path.write_text('{"traceEvents": [ {"ph": "X", ')
    assert main(["view", str(run)]) == 3
    assert main(["view", "nowhere"]) == 3
    assert not Path("reports").exists()


def test_damage_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "rank_1.json"
    path.write_text(path.read_text()[:-900])
    assert main(["view", str(run), "-q"]) == 0
    said = capsys.readouterr()
    assert "rank_1.json: the JSON ends" in said.err
    assert said.out == "reports/mine/timeline.pftrace.gz\n"


def test_a_full_disk_leaves_the_old_file(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("reports/mine").mkdir(parents=True)
    Path("reports/mine/timeline.pftrace.gz").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("traceops.timeline.pieces.shutil.copyfileobj", full)
    assert main(["view", str(run)]) == 3
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in Path("reports/mine").iterdir()] == ["timeline.pftrace.gz"]
    assert Path("reports/mine/timeline.pftrace.gz").read_text() == "old"


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough events that it is surely writing when its folder appears."""
    folder = tmp_path_factory.mktemp("long")
    more = json.dumps([x("aten::mm", 5000.0 + i, 0.5) for i in range(150_000)])[1:]
    for rank in range(2):
        text = json.dumps({"traceEvents": training(rank)}).removesuffix("]}")
        (folder / f"rank_{rank}.json").write_text(f"{text}, {more}}}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_leaves_nothing(jobs: str, long_run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "traceops", "view", str(long_run), "-o", str(tmp_path / "out" / "t.json.gz")]
    process = subprocess.Popen(
        [*command, "--jobs", jobs],
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Whoever runs the tests in the background of a shell has made their children deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    limit = time.monotonic() + 600
    while not list(tmp_path.glob("out/.*/*")) and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_the_command_is_listed_without_loading_what_it_needs() -> None:
    code = "import sys; from traceops.cli import build_parser; build_parser(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
