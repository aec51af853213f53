"""A log in any dress: prefixes, colours, broken lines, other encodings, boxes around tracebacks."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from pathlib import Path

import pytest
from dresses import DRESSES, LABELS, NAMES, WRAPS
from quiet import is_quiet

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.hangs.readers.prefixes import common_prefix, without_prefixes
from traceops.hangs.readers.whole_lines import unwrapped
from traceops.report.hang_text import hang_level, hang_sentence, root_advice, seen_lines, what_would_decide

CRASH = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 41, in step',
    "    loss = model(batch)",
    "AssertionError: batch is empty",
)
RANKED = {
    "torch": "[rank3]: {}",
    "named": "Rank 3: {}",
    "capitals": "[RANK 3] {}",
    "srun --label": "3: {}",
    "mpirun": "[1,3]<stderr>:{}",
    "mpirun with times": "Fri Aug 11 12:31:45 2023[1,3]<stderr>:{}",
    "SageMaker": "[1,mpirank:3,algo-1]<stderr>:{}",
    "torchrun --tee": "[default3]:{}",
    "docker -t": "2025-10-04T15:16:15.735000000Z [rank3]: {}",
    "containerd": "2025-10-04T15:16:15.735000000+02:00 stderr F [rank3]: {}",
    "kubectl --timestamps": "2025-10-04T15:16:15.735Z [rank3]: {}",
    "kubectl --prefix": "[pod/llama-worker-0/pytorch] [rank3]: {}",
    "stern": "llama-worker-0: [rank3]: {}",
    "compose": "trainer-1  | [rank3]: {}",
    "Ray": "(RayTrainWorker pid=77, ip=10.0.0.2) [rank3]: {}",
    "Ray's actor": "(WorkerDict pid=412033) [rank3]: {}",
    "mail": "> > [rank3]: {}",
}


@pytest.fixture
def told_text(tmp_path: Path):
    def tell(text: str):
        (tmp_path / "paste.log").write_text(text)
        return diagnose(tmp_path)

    return tell


@pytest.mark.parametrize("layout", RANKED)
def test_a_crash_is_of_its_rank_in_each_layout(told_text, layout: str) -> None:
    (root,) = told_text("".join(RANKED[layout].format(line) + "\n" for line in CRASH)).roots
    assert (root.rule, root.ranks, root.where) == ("TO-E005", (3,), "step (train.py:41)")


def test_a_paste_is_read_though_it_is_indented_and_its_beginning_is_missing(told_text) -> None:
    (root,) = told_text("".join(f"      {line}\n" for line in CRASH[1:])).roots
    assert (root.rule, root.where) == ("TO-E005", "step (train.py:41)")


def test_frames_that_no_exception_follows_are_no_crash(told_text) -> None:
    stack = f"{CRASH[1]}\n{CRASH[2]}\nstep 12 took 0.5 s\n"
    said = told_text(stack + "[rank1]: RuntimeError: Connection reset by peer\n")
    assert said.roots == () and [event.kind for event in said.evidence.log] == ["connection"]


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("step-3: loss 2.1", "step-3: loss 2.1"),
        ("2025-10-04 15:16:15 INFO: x", "2025-10-04 15:16:15 INFO: x"),
        ("[rank3]: x", "[rank3]: x"),
        ("(see below) x", "(see below) x"),
        ("2025-10-04T15:16:15.7Z (pid=12) x", "x"),
    ],
)
def test_only_what_collectors_write_is_taken_off(line: str, rest: str) -> None:
    assert without_prefixes(line) == rest


SLURM = "slurmstepd: error: *** {} ON gpu-12 CANCELLED AT 2024-04-20T09:09:37{} ***\n"


@pytest.mark.parametrize(
    ("text", "rule", "cause", "ranks"),
    [
        (SLURM.format("JOB 7", " DUE TO TIME LIMIT"), "TO-E008", "time_limit", ()),
        (SLURM.format("JOB 7", " DUE TO PREEMPTION"), "TO-E008", "preempted", ()),
        (SLURM.format("STEP 7.0", " DUE TO NODE FAILURE"), "TO-E008", "node_failure", ()),
        (SLURM.format("STEP 7.0", ""), "TO-E008", "cancelled", ()),
        ("srun: error: node7: task 3: Out Of Memory\n", "TO-H004", "host_memory", (3,)),
        ("W0920 api.py] Received Signals.SIGTERM death signal, shutting down\n", "TO-E008", "terminated", ()),
        ("      Reason:       OOMKilled\n      Exit Code:    137\n", "TO-E002", "host_memory", ()),
        ("      Reason:       Error\n      Exit Code:    139\n", "TO-E005", "native_crash", ()),
        ("5m  Warning  Evicted  pod/t-0  The node had condition: [DiskPressure].\n", "TO-E007", "evicted_disk", ()),
        ("./run.sh: line 3:   415 Segmentation fault      (core dumped) python x.py\n", "TO-E005", "native_crash", ()),
    ],
)  # fmt: skip
def test_what_slurm_kubernetes_and_the_shell_say(told_text, text: str, rule: str, cause: str, ranks) -> None:
    said = told_text(f"step 10 loss 2.1\n{text}")
    (root,) = said.roots
    assert (root.rule, root.cause, root.ranks) == (rule, cause, ranks)
    assert root_advice(root) and len(hang_sentence(said)) < 400


@pytest.mark.parametrize(
    "text",
    [
        '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 0}\n',
        "      Reason:       Completed\n      Exit Code:    0\n",
        "Killed the old server, starting the new one\n",
        "saving: File cut, Exit Code: 3 in the table\n",
    ],
)
def test_what_only_looks_like_an_end_is_none(told_text, text: str) -> None:
    said = told_text(text + "[rank1]: RuntimeError: Connection reset by peer\n")
    assert said.roots == () and len(said.evidence.log) == 1


def test_what_a_scheduler_did_follows_from_a_failure_before_it(told_text) -> None:
    raised = "".join(f"[rank2]: {line}\n" for line in CRASH)
    (root,) = told_text(raised + SLURM.format("STEP 7.0", "")).roots
    assert (root.rule, root.ranks) == ("TO-E005", (2,))


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
    assert "KeyError" in told.roots[0].message and {Path(e.path).name for e in told.evidence.log} == {"slurm-77_1.out"}
    assert [(Path(file).name, what) for file, what in told.evidence.problems] == [
        ("slurm-77_0.out", f"it is of another job of Slurm than the one shown here (77_1): traceops diagnose {other}"),
        ("slurm-77_2.out", "it is of a later job of Slurm than 77_1, and shows no failure"),
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
    assert root.where == "step (train.py:3)" and root.message.endswith("ValueError: no {}.")


def test_steps_in_a_logger_s_records_say_that_it_went_on(told) -> None:
    trace = 'Traceback (most recent call last):\n  File "/app/train.py", line 3, in step\n    a / b\nValueError: no\n'
    steps = [
        json.dumps({"timestamp": f"2026-11-02T10:{step:02}:00Z", "level": "info", "event": "done", "step": step})
        for step in range(1, 50)
    ]
    failed = json.dumps({"timestamp": "2026-11-02T10:05:30Z", "level": "error", "event": "x", "exception": trace})
    assert told("\n".join((*steps[:5], failed, *steps[5:])) + "\n").roots == ()


FLAT = (
    "Traceback (most recent call last):\n"
    'File "/x/bin/lightning", line 8, in\n'
    "sys.exit(_cli_entry_point())\n"
    'File "/home/me/train.py", line 109, in main\n'
    "_main()\n"
    'File "/x/lib/python3.9/site-packages/click/core.py", line 1157, in call\n'
)
WRAPPED = (
    "[rank{rank}]:[E424 01:11:21.1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4, OpTy\npe=BROADCAST, NumelIn=112, Nume"
)
REST = "lOut=112, Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out.\n"


def test_a_line_of_code_is_no_exception(told):
    """Markdown takes '<module>' and the spaces away: 'sys.exit(…)' was told as what the program crashed with."""
    diagnosis = told(FLAT + "return ctx.invoke(self.callback, **ct")
    assert diagnosis.roots == () and "main (/home/me/train.py:109)" in hang_sentence(diagnosis)


@pytest.mark.parametrize("code", ["return self.main(*args, **kwargs)\n", ""], ids=["with code", "without"])
def test_the_exception_behind_such_frames_is(told, code):
    (root,) = told(f"{FLAT}{code}ValueError: no such option\n").roots
    assert "ValueError: no such option" in root.message


def test_a_rank_whose_last_line_is_wrapped_and_cut_waits_too(told):
    """Nothing was said of rank 2."""
    diagnosis = told(WRAPPED.format(rank=1) + REST + WRAPPED.format(rank=2))
    assert {rank.rank for rank in diagnosis.ranks if rank.state == "waiting"} == {1, 2} and diagnosis.roots == ()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[22340.220490] amdgpu: sq_intr: error, detail 0x00000000, type 1, sh 1, priv 1, wave_id 4", "sq_intr: error"),
        ("==========\ntorchtitan.train FAILED\n----------", "torchtitan.train FAILED"),
        (
            'Lmod has detected the following error: The following module(s) are unknown:\n"cuda/11.8"',
            'unknown: "cuda/11.8"',
        ),
    ],
    ids=["amdgpu", "torchrun", "the next line"],
)
def test_what_a_line_means_is_shown(told, line, shown):
    diagnosis = told(f"step 1 loss 2.0\n{line}\n\nbye\n")
    assert diagnosis.roots == () and any(shown in event.text for event, _ in seen_lines(diagnosis))


@pytest.mark.parametrize(
    "line",
    [
        "[    3.1] amdgpu 0000:03:00.0: amdgpu: SMU is initialized successfully!",
        "[    3.1] [drm] amdgpu kernel modesetting enabled, error reporting on",
        "val FAILED 0",
        "validation error rate: 0.02",
    ],
)
def test_healthy_lines_of_the_same_words(told, line):
    diagnosis = told(f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n")
    assert hang_sentence(diagnosis) == "No failure found: training was at step 2 when job.out ends."


TORN = FLAT + 'File "/x/site-packages/accelerate/config_args.py"\n'


def test_what_a_traceback_that_is_cut_off_lacks_comes_behind_it(told):
    """'Bring the whole log, with the lines before these.' Of the frame that is cut the file is told."""
    diagnosis = told(TORN)
    assert "accelerate/config_args.py" in hang_sentence(diagnosis)
    assert "lines after these" in what_would_decide(diagnosis)


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("/bin/sh: 1: torchrun: not found", "PATH"),
        ("bash: torchrun: command not found", "PATH"),
        ("(raylet) A worker died or was killed while executing a task by an unexpected system error.", "worker-"),
    ],
)
def test_what_would_tell_more_of_such_a_line(told, line, more):
    assert more in what_would_decide(told(f"{line}\n"))


def test_a_title_is_told_only_where_the_text_does_not_say_it(told):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.27 GiB. GPU 0 has a total capacity of 23.99 "
        "GiB of which 168.00 MiB is free. Of the allocated memory 16.64 GiB is allocated by PyTorch, and 4.49 GiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    (root,) = told(f"# CUDA out of memory\n\nit says\n\n{text}").roots
    assert root.cause == "fragmented"
    (root,) = told("# CUDA out of memory\n\nwhat is it?\n").roots
    assert root.cause == "gpu_memory"


def test_an_exception_behind_a_box_is_why_the_launcher_saw_its_process_end(told):
    """'Rank 0 died: it ended with exit code 1.'"""
    end = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 24) of binary: "
        "/opt/conda/bin/python\n"
    )
    box = "│   113 │   tokenizer = convert(slow)      │\n╰──────────────────────────────────╯\n"
    (root,) = told(f"{box}Exception: expected value at line 1\n{end}").roots
    assert root.ranks == (0,) and "expected value at line 1" in root.message
    (root,) = told(f"{end}Exception: of something later\n").roots
    assert "later" not in root.message


def test_a_call_of_nccl_that_failed_in_the_words_of_old_torch(told):
    (root,) = told("  what(): NCCL Error 1: unhandled cuda error\n").roots
    assert root.cause == "nccl_gpu"


def test_a_bus_error_that_a_launcher_tells_has_its_cure(told):
    """It was told as 'crashed in compiled code'."""
    (root,) = told("[launch.py:321:sigkill_handler] ['python', 'main.py'] exits with return code = -7\n").roots
    assert root.cause == "bus_error"


def test_an_actor_of_ray_that_is_gone_is_no_error_of_the_program(told):
    text = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    (root,) = told(f'Traceback (most recent call last):\n  File "a.py", line 5, in f\n    x()\n{text}\n').roots
    assert root.cause == "actor_died" and "is gone" in root_advice(root)


def test_operations_that_timed_out_are_told_without_the_watchdog_s_line(told):
    """'Nobody is seen to wait for another rank.'"""
    line = "[rank0]:[E307 05:30:18.2 ProcessGroupNCCL.cpp:744] [Rank 0] Some NCCL operations have failed or timed out."
    assert "failed or timed out" in hang_sentence(told(f"{line}\n"))


PLAIN_CRASH = "RuntimeError: CUDA error: an illegal memory access was encountered"
RECORDS = "".join(
    json.dumps({"level": "ERROR", "timestamp": "2026-01-01T00:00:00", "message": line}) + "\n"
    for line in (
        "user café began",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        PLAIN_CRASH,
    )
)


@pytest.mark.parametrize("pretty", [False, True])
def test_a_log_of_json_with_a_byte_of_another_encoding_is_read(tmp_path: Path, capsys, pretty: bool) -> None:
    """One such byte in one line, and no log of the folder was told: "this is a mistake in traceops"."""
    text = RECORDS.replace("{", "{\n  ").replace(", ", ",\n  ").replace("}", "\n}") if pretty else RECORDS
    path = tmp_path / "rank_0.log"
    path.write_bytes(text.replace("\\u00e9", "é").encode("latin-1"))
    main(["diagnose", str(path), "-o", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert "mistake in traceops" not in said.err
    assert pretty or "illegal memory access" in said.out


def test_a_zip_archive_whose_names_are_damaged_is_named(tmp_path: Path, capsys) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rängé.log", PLAIN_CRASH)
    raw = bytearray(packed.getvalue())
    for at in (raw.index(b"\xc3"), raw.rindex(b"\xc3")):
        raw[at] = 0xFF
    path = tmp_path / "in.zip"
    path.write_bytes(bytes(raw))
    assert main(["diagnose", str(path), "-o", str(tmp_path / "out")]) == 3
    assert "the zip archive is cut off or corrupt" in capsys.readouterr().err


HEAD = 'Traceback (most recent call last):\n  File "a.py", line 1, in main\n    x()\n'
THC = "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory\n"
OUT_OF_MEMORY = (
    f"{HEAD}RuntimeError: cuda runtime error (2) : out of memory at /opt/conda/THCStorage.cu:58",
    f"step 1\n{THC}{HEAD}",
    "F0926 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
    f"{HEAD}mxnet.base.MXNetError: [12:00:00] src/pooled.h:157: cudaMalloc failed: out of memory",
    f"{HEAD}MemoryError: std::bad_alloc: CUDA error at: memory.hpp:62: cudaErrorMemoryAllocation out of memory",
    f"{HEAD}ResourceExhaustedError: OOM when allocating tensor with shape[32,128] on /device:GPU:0 by GPU_0_bfc",
    "RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : CUDA failure 2: out of memory ; GPU=0",
    "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.0GB memory on GPU 0",
    "Exception has occurred: RuntimeError\nCUDA error: out of memory\n",
    "CUDA Error: out of memory\ndarknet: ./src/cuda.c:36: check_error: Assertion `0' failed.",
)
# What the sentence says, and the log.
DRAWN = (
    (
        "KeyError: 'foo'",
        "Exception has occurred: KeyError       (note: full exception trace is shown but execution is paused at: run)\n"
        "'foo'\n",
    ),
    ("ValueError: math domain error", "发生异常: ValueError\nmath domain error\n"),
    (
        "RuntimeError: Caught RuntimeError in replica 1 on device 1.",
        "Exception has occurred: RuntimeError\nCaught RuntimeError in replica 1 on device 1.\n"
        'Original Traceback (most recent call last):\n  File "a.py", line 1, in main\n    x',
    ),
    (
        "cuda runtime error (30) : unknown error at /pytorch/THCGeneral.c:70",
        f"THCudaCheck FAIL file=/pytorch/THCGeneral.c line=70 error=30 : unknown error\n{HEAD}",
    ),
)
CUT_OFF = (
    "│ /opt/conda/lib/python3.9/site-packages/deepspeed/utils/nvtx.py:11 in wrapped_fn       │\n"
    "│ ❱ 11 │   │   ret_val = func(*args, **kwargs)                                          │\n",
    "╭───────────────── Traceback (most recent call last) ──────────────────╮\n"
    "│ C:\\kohya_ss\\venv\\lib\\site-packages\\acceler\n",
    "frame #2: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) + 0x1d2 (0x1 in /libtorch_cuda.so)\n"
    "frame #3: clone + 0x43 (0x155553e398d3 in /lib64/libc.so.6)\n",
    "Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1521 (most recent\n",
    "RuntimeError                     Traceback (most recent call last)\nCell In[21], line 1\n----> 1 train(1)\n",
)


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_gpu_memory_is_named_in_whatever_words(tmp_path: Path, text: str) -> None:
    assert "ran out of GPU memory" in said(tmp_path, text)


@pytest.mark.parametrize(("sentence", "text"), DRAWN)
def test_the_exception_is_told(tmp_path: Path, sentence: str, text: str) -> None:
    assert sentence in said(tmp_path, text)


@pytest.mark.parametrize("text", CUT_OFF)
def test_a_piece_of_a_drawn_traceback_is_trouble(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.txt").write_text(text, encoding="utf-8")
    assert hang_level(diagnose(str(tmp_path / "log.txt"))) == "warning"


def test_a_call_that_failed_once_and_was_survived_ends_nothing(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss 0.5\n" for step in range(200))
    assert "ran out" not in said(tmp_path, f"{steps}{THC}| WARNING: skipping batch\n{steps}")


@pytest.mark.parametrize(
    "text", ("│ epoch │ loss │\n│ 1 │ 0.5 │\n", "╭──── Training ────╮\n│ step 5 in 3 s │\n", "Traceback level  2\n")
)
def test_tables_and_boxes_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.txt").write_text(text, encoding="utf-8")
    assert is_quiet(diagnose(str(tmp_path / "log.txt")))


def said(folder: Path, text: str) -> str:
    (folder / "log.txt").write_text(text, encoding="utf-8")
    return hang_sentence(diagnose(str(folder / "log.txt")))


PTXAS = (
    "Traceback (most recent call last):",
    '  File "/x/train.py", line 297, in make',
    "    raise RuntimeError(log)",
    "RuntimeError: Internal Triton PTX codegen error:",
    "ptxas fatal   : Value 'sm_100' is not defined for option 'gpu-name'",
)
CHECKPOINT = "/v/lib/python3.11/site-packages/torch/distributed/checkpoint"
GOES_ON = (
    "Traceback (most recent call last):",
    '  File "/x/train.py", line 103, in resume',
    "    dcp.load(state)",
    f'  File "{CHECKPOINT}/utils.py", line 192, in reduce_scatter',
    "    raise result",
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])",
)
ON_RANK = (
    f'  File "{CHECKPOINT}/default_planner.py", line 400, in create_default_local_load_plan',
    '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")',
    "RuntimeError: Missing key in checkpoint state_dict: model.2.weight.",
)


@pytest.mark.parametrize("label", ["", "[rank6]: ", "[default6]:[rank6]: "])
def test_the_rest_of_a_message_behind_labels(told, label):
    """mlcommons/training 826: 'Internal Triton PTX codegen error:.' was all that was said, where ranks have labels."""
    said = hang_sentence(told("".join(f"{label}{line}\n" for line in PTXAS)))
    assert "codegen error: ptxas fatal : Value 'sm_100' is not defined" in said


@pytest.mark.parametrize("label", ["", "[rank0]: "])
def test_what_failed_on_the_ranks_of_a_checkpoint(told, label):
    """pytorch/pytorch 148252: only 'CheckpointException ranks:dict_keys([0])' was told."""
    of_ranks = [line for rank in range(2) for line in (f"Traceback (most recent call last): (RANK {rank})", *ON_RANK)]
    said = hang_sentence(told("".join(f"{label}{line}\n" for line in (*GOES_ON, *of_ranks))))
    assert "at resume (train.py:103)" in said
    assert said.count("Missing key in checkpoint state_dict: model.2.weight") == 1
