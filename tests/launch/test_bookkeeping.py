"""Whatever the launcher does for itself may fail: the training's exit code is what comes out."""

import copy
import errno
import json
import signal
from functools import partial
from itertools import count, cycle
from pathlib import Path

import pytest
from faults import Faults

import traceops.launch.process as process
import traceops.launch.session as session
from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest, write_rank
from traceops.core.errors import UsageError
from traceops.core.run_lock import RunLock
from traceops.launch import ended as run_document
from traceops.launch.display import Screen
from traceops.launch.plan import Cluster, Plan
from traceops.launch.process import LauncherGuard, TorchrunResult
from traceops.launch.signals import Received

HERE = str(Path(session.__file__).parent)
ERRORS = [
    OSError(errno.ENOSPC, "No space left on device"),
    PermissionError(errno.EACCES, "Permission denied"),
    RuntimeError("no"),
    MemoryError(),
]
_ARITHMETIC = ("exit_code", "shell_code")


@pytest.fixture(autouse=True)
def own_signals():
    """What restores them fails here too: they would stay for all tests that come after."""
    handlers = {number: signal.getsignal(number) for number in (1, 2, 3, 15)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Runs the launcher around a training that has just ended, into a new folder each time."""
    numbers = count()
    monkeypatch.setattr(run_document, "git_state", lambda folder: None)
    monkeypatch.setattr(run_document, "software_versions", dict)
    monkeypatch.setattr(session, "FabricEvidence", lambda *args, **options: None)

    def run(returncode, damage=lambda out: None):
        out = tmp_path / str(next(numbers))
        plan = Plan("mine", out, Cluster(2), ["train.py"], {}, {}, log_files=True)

        def training(*args, **options):
            for rank in range(2):
                note = "no optimizer step was seen"
                write_rank(
                    out, RankManifest(rank, rank, 2, host(), 1, {"type": "cpu"}, {}, {}, traces=["t"], note=note)
                )
            log = out / "logs" / "none" / "attempt_0" / "0" / "stderr.log"
            log.parent.mkdir(parents=True)
            log.write_text("a line")
            damage(out)
            return TorchrunResult(returncode, None, "torchrun's own words")

        monkeypatch.setattr(session, "run", training)
        return session.launch(plan), out

    return run


@pytest.mark.parametrize(
    ("launcher", "nproc", "returncode", "rank_codes", "code"),
    [
        ("none", 1, 6, (None,), 6),
        ("none", 1, 143, (None,), 143),
        ("torchrun", 1, 1, (6,), 6),
        ("torchrun", 1, 1, (0,), 0),
        ("torchrun", 1, 1, (None,), 143),
        ("torchrun", 2, 1, (6, 6), 143),
    ],
)
def test_a_command_or_an_only_rank_that_handles_a_signal_has_its_own_exit_code(
    tmp_path, launcher, nproc, returncode, rank_codes, code
):
    for rank, own in enumerate(rank_codes):
        write_rank(tmp_path, RankManifest(rank, rank, nproc, host(), 1, {"type": "cpu"}, {}, {}, exit_code=own))
    plan = Plan("mine", tmp_path, Cluster(nproc), ["train.py"], {}, {}, launcher=launcher)
    ended = TorchrunResult(returncode, signal.SIGTERM, "")
    assert run_document.how_it_ended(plan, ended, [], [], Screen()).code == code


def test_no_failure_of_the_launchers_own_changes_the_exit_code(launched, monkeypatch, capsys):
    guard, record = str(Path(HERE, "containment.py")), session._record
    faults = Faults(lambda file: file.startswith(HERE) and file != guard, frozenset({record.__code__}))

    def recorded(*arguments):
        with contextmanager():
            return record(*arguments)

    monkeypatch.setattr(session, "_record", recorded)
    contextmanager = faults.counted
    for _ in range(2):  # what is imported when it is first needed is in the first run only; the last one counts
        assert launched(7)[0] == 7
    calls = dict(reversed([(call, number) for number, call in enumerate(faults.calls)]))
    calls = {call: number for call, number in calls.items() if call.called not in _ARITHMETIC}
    assert len(calls) > 60, "one of each line and what it calls"
    for (call, number), error, code in zip(calls.items(), cycle(ERRORS), cycle([7, 7, 7, 7, 0, 0, 0, 0])):
        capsys.readouterr()
        contextmanager = partial(faults.failing, number, copy.copy(error))
        ended, out = launched(code)
        assert ended == code and (faults.raised or code == 0), call
        said = capsys.readouterr().err
        run = json.loads((out / "run.json").read_text())
        assert run["status"] == ("failed" if code else "finished") or "run.json failed" in said, call
        assert not list(out.glob(".*")), "nothing half-written is left"


def test_a_damaged_manifest_hides_no_other_rank(launched, capsys):
    code, out = launched(0, lambda out: (out / "rank_1" / "manifest.json").write_text("{"))
    run = json.loads((out / "run.json").read_text())
    assert code == 0 and run["status"] == "finished"
    assert [rank["rank"] for rank in run["ranks"]] == [0] and run["ranks_missing"] == [1]
    assert "rank_1/manifest.json is damaged" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(session, "run", lambda *args, **options: pytest.fail("started"))
    with pytest.raises(UsageError, match=r"file/out cannot be written \(Not a directory.*choose another --out"):
        session.launch(Plan("mine", tmp_path / "file" / "out", Cluster(1), ["train.py"], {}, {}))


def test_ranks_are_waited_for_where_they_cannot_be_watched(tmp_path, monkeypatch, capsys):
    def damaged(folder):
        raise ValueError("no such record")

    monkeypatch.setattr(process, "read_progress", damaged)
    ended = process.run(
        ["sh", "-c", "sleep 0.3; exit 5"], {"PATH": "/bin:/usr/bin"}, progress=tmp_path, ranks=1, logs=None,
        rank_of=lambda local: local, screen=Screen(), received=Received(), guard=LauncherGuard(RunLock(None)),
    )  # fmt: skip
    assert ended.returncode == 5
    assert capsys.readouterr().err.count("watching the ranks failed: ValueError: no such record") == 1
