"""Logs as people have them: packed, in another encoding, in a collector's words, cut off. They are told as they are."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from dresses import DRESSES, LABELS, NAMES, WRAPS

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.hangs.readers.prefixes import common_prefix
from traceops.hangs.readers.whole_lines import unwrapped

DATA = Path(__file__).parents[1] / "data" / "crash_logs"
LOGS = (
    "batch_norm", "device_assert", "import_undefined_symbol", "sigkill_torchrun", "slurm_oom_kill", "planted/bus_error",
    "planted/index_out_of_range", "planted/loader_dies", "planted/terminated", "planted/no_room",
    "set_aside/duplicate_gpu_megatron", "set_aside/ecc_and_watchdog",
)  # fmt: skip


def roots(diagnosis: Diagnosis) -> list[tuple[object, ...]]:
    return [(root.rule, root.cause, root.ranks, root.where, root.confidence) for root in diagnosis.roots]


@pytest.mark.parametrize("dress", DRESSES)
def test_a_log_is_told_the_same_in_each_dress(tmp_path: Path, dress: str) -> None:
    """xz, zip, UTF-16 and a collector's JSON were 'no evidence of a hang'; mails lost frames of compiled code."""
    for name in LOGS:
        log = DATA / f"{name}.txt"
        if dress == "BuildKit" and log.read_text().count("\n") < 4:
            continue  # too short to show what is before its lines
        path = tmp_path / NAMES.get(dress, "train.log")
        path.write_bytes(DRESSES[dress](log.read_text()))
        told = diagnose(path)
        assert roots(told) == roots(diagnose(log)), name
        lines = {event.line for event in told.evidence.log}
        assert not lines or max(lines) <= max(path.read_bytes().count(b"\n") + 1, log.read_text().count("\n") + 90)


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_wrapped_log_is_told_the_same_or_less(tmp_path: Path, wrap: str) -> None:
    """'RuntimeError: un' was another crash, and '9: …' at the begin of a line another rank."""
    same = 0
    for name in LOGS:
        log, path = DATA / f"{name}.txt", tmp_path / "train.log"
        path.write_bytes(WRAPS[wrap](log.read_text()))
        told, truth = roots(diagnose(path)), roots(diagnose(log))
        same += told == truth
        for (rule, _, ranks, where, _), (is_rule, _, is_ranks, is_where, _) in zip(told, truth, strict=False):
            assert (rule, ranks, where) == (is_rule, is_ranks, is_where), name
    assert same >= 10


CLEAN = (
    "INFO:root:step {} loss 2.1\n", "2026-03-01 10:00:{:02} | ok\n", "{:6}\tstep\n", "RuntimeError: {} was caught\n",
    "srun: error: node{}: tasks 0-3: Killed\n", "[rank0]: step {}\n", "{}: step\n", "slurmstepd: error: {}\n",
)  # fmt: skip


@pytest.mark.parametrize("line", CLEAN)
def test_what_all_lines_begin_with_is_kept_where_nothing_shows_that_it_is_no_part_of_them(line: str) -> None:
    assert common_prefix([line.format(n).rstrip("\n") for n in range(30)]) is None


def test_a_prefix_ends_before_the_rank_that_follows_it() -> None:
    lines = [f"{n} INFO - [rank{n % 2}]: Traceback (most recent call last):" for n in range(9)]
    prefix = common_prefix(lines)
    assert prefix is not None and {prefix.sub("", line)[:7] for line in lines} == {"[rank0]", "[rank1]"}
    assert common_prefix([line.partition("- ")[2] for line in lines]) is None


def test_spaces_that_all_lines_begin_with_cost_no_time() -> None:
    """A table's columns, or a terminal's prompt: a log of 45 kB took minutes, each way to share the spaces out."""
    columns = [f"a{' ' * 60}b {n}" for n in range(40)]
    assert common_prefix([*columns, f"a{' ' * 75}c"]) is None


def test_lines_that_a_logger_has_of_one_traceback_alone_are_joined(told) -> None:
    """Other lines begin with nothing, or with something else."""
    raised = RAISED.format("KeyError").splitlines()
    steps = "".join(f"step {n}\n" for n in range(40))
    (root,) = told(steps + "".join(f"10:02:07 ERROR run.py:{n} | {x}\n" for n, x in enumerate(raised))).roots
    assert root.where == "f (train.py:7)"


def test_lines_of_full_width_are_joined_only_where_a_frame_shows_it() -> None:
    width = 72
    lines = [(n, f"{n:02} ".ljust(width, "x")) for n in range(20)]
    assert list(unwrapped(lines)) == lines
    frame = '  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1736, in _wrapped_call'
    broken = [(21, frame[:width]), (22, frame[width:]), (23, "    return forward(x)")]
    assert list(unwrapped(broken)) == [(21, frame), (23, "    return forward(x)")]


@pytest.mark.parametrize("label", LABELS)
def test_a_launchers_label_adds_no_rank_where_the_log_tells_it(tmp_path: Path, label: str) -> None:
    """'0: [rank1]: …' of srun --label: task 0 is a node. What came before the first such line was told of rank 0."""
    for name in LOGS:
        log = DATA / f"{name}.txt"
        path = tmp_path / "train.log"
        path.write_text("".join(LABELS[label].format(line) + "\n" for line in log.read_text().splitlines()))
        for (rule, cause, ranks, where, _), (*others, _) in zip(
            roots(diagnose(path)), roots(diagnose(log)), strict=True
        ):
            assert [rule, cause, ranks if others[2] else (), where] == others, name


def test_a_packed_log_that_is_cut_off_is_used_and_named(tmp_path: Path) -> None:
    text = (DATA / "batch_norm.txt").read_text()
    packed = gzip.compress((text + "".join(f"{n * 7919 % 104729} tokens\n" for n in range(9000))).encode())
    (tmp_path / "train.log.gz").write_bytes(packed[:-2000])
    told = diagnose(tmp_path)
    assert [root.cause for root in told.roots] == ["batch_norm"]
    [(file, what)] = told.evidence.problems
    assert file.endswith("train.log.gz") and what == "the gzip stream is cut off: what comes before that is used"


@pytest.mark.parametrize(("dress", "module"), [("xz", "lzma"), ("bzip2", "bz2")])
def test_a_python_that_cannot_unpack_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dress: str, module: str
) -> None:
    """Some builds of Python have no lzma or bz2: they read everything else."""
    path = tmp_path / NAMES[dress]
    path.write_bytes(DRESSES[dress]((DATA / "batch_norm.txt").read_text()))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=f"is packed with {dress}, which this Python was built without: unpack it"):
        diagnose(path)


def test_a_loggers_own_json_keeps_its_level(tmp_path: Path) -> None:
    """What only calls itself an error is seen by its level, which the message alone has not."""
    path = tmp_path / "train.log"
    record = {"level": "error", "message": "could not reach the store at 10.0.0.1, giving up"}
    path.write_text(json.dumps({"level": "info", "message": "started"}) + "\n" + json.dumps(record) + "\n")
    assert [event.kind for event in diagnose(path).evidence.log] == ["trouble"]
    raised = "Traceback (most recent call last):\n  File \"train.py\", line 7, in f\n    g()\nKeyError: 'a'"
    path.write_text(json.dumps({"levelname": "ERROR", "message": "step failed", "exc_info": raised}) + "\n")
    assert [root.where for root in diagnose(path).roots] == ["f (train.py:7)"]


RAISED = "Traceback (most recent call last):\n  File \"train.py\", line 7, in f\n    g()\n{}: 'labels'\n"


def test_logs_of_several_jobs_of_slurm_are_not_mixed(tmp_path: Path) -> None:
    """Three tasks of an array were told as one program, with the first one's failure."""
    for task, text in enumerate((RAISED.format("MemoryError"), RAISED.format("KeyError"), "step 1\n")):
        (tmp_path / f"slurm-77_{task}.out").write_text(text)
    told, other = diagnose(tmp_path), tmp_path / "slurm-77_0.out"
    assert "KeyError" in told.roots[0].statement and {Path(e.path).name for e in told.evidence.log} == {
        "slurm-77_1.out"
    }
    assert [(Path(file).name, what) for file, what in told.evidence.problems] == [
        ("slurm-77_0.out", f"it is of another job of Slurm than what is told here (77_1): traceops diagnose {other}"),
        ("slurm-77_2.out", "it is of a later job of Slurm than 77_1, and tells of no failure"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("train-0.previous.log", "train-0.log"),
        ("previous-train-0.log", "train-0.log"),
        ("train-0_previous.log", "train-0_current.log"),
        ("x/attempt_0/3/stderr.log", "x/attempt_1/3/stderr.log"),
    ],
)
def test_a_start_after_which_another_began_ended_no_job(tmp_path: Path, earlier: str, later: str) -> None:
    for name, text in ((earlier, RAISED.format("KeyError")), (later, "step 1\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert diagnose(tmp_path).roots == ()
    (tmp_path / later).write_text(RAISED.format("MemoryError"))
    assert [root.cause for root in diagnose(tmp_path).roots] == ["host_memory"]
    assert [root.rule for root in diagnose(tmp_path / earlier).roots] == ["TO-E005"]


OF_LOGGERS = (
    lambda text, trace: {"ts": "2026-11-02T10:00:00Z", "level": "error", "event": text, "exception": trace},
    lambda text, trace: {"SeverityText": "ERROR", "Body": text, "Attributes": {"exception.stacktrace": trace}},
    lambda text, trace: {"text": f"10:00:00 | ERROR | {text}\n{trace}", "record": {"level": {"name": "ERROR"}}},
)


@pytest.mark.parametrize("record", OF_LOGGERS, ids=("structlog", "opentelemetry", "loguru"))
def test_a_traceback_in_a_logger_s_record_is_told(told, record) -> None:
    """structlog's and loguru's were 'trouble' without a cause, OpenTelemetry's 'no evidence of a hang'."""
    trace = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in step\nValueError: no {}\n'
    good = {"ts": "2026-11-02T10:00:00Z", "level": "info", "event": "step", "step": 1, "loss": 2.0}
    (root,) = told(f"{json.dumps(good)}\n{json.dumps(record('a step failed', trace))}\n").roots
    assert root.where == "step (train.py:3)" and root.statement.endswith("ValueError: no {}")


def test_steps_in_a_logger_s_records_say_that_it_went_on(told) -> None:
    trace = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in step\n    a / b\nValueError: no\n'
    steps = [
        json.dumps({"timestamp": f"2026-11-02T10:{step:02}:00Z", "level": "info", "event": "done", "step": step})
        for step in range(1, 50)
    ]
    failed = json.dumps({"timestamp": "2026-11-02T10:05:30Z", "level": "error", "event": "x", "exception": trace})
    assert told("\n".join((*steps[:5], failed, *steps[5:])) + "\n").roots == ()
