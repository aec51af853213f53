"""What whole logs of users hold: starts before the last, interruptions, loggers that go on, ranks that only print."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.hangs.readers.loggers import Loggers
from traceops.report.hang_text import hang_level, hang_sentence

WATCHDOG = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:523] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600272 milliseconds "
    "before timing out.\n"
)
IMPORTS = """Traceback (most recent call last):
  File "train.py", line {line}, in <module>
    from .brain import Brain
  File "brain.py", line 63, in <module>
    import missing
ModuleNotFoundError: No module named 'missing'
"""
LATER = """Traceback (most recent call last):
  File "train.py", line {line}, in <module>
    main()
  File "train.py", line 151, in main
    step(batch)
ValueError: no such batch
"""


def test_who_failed_while_importing_is_another_start_than_who_came_further(told):
    said = hang_sentence(told(IMPORTS.format(line=20) + LATER.format(line=168)))
    assert "ValueError: no such batch" in said
    assert "ModuleNotFoundError" not in said


@pytest.mark.parametrize("line", [20, 4])
def test_who_did_not_come_further_may_be_another_rank_of_the_same_start(told, line):
    assert "No module named" in hang_sentence(told(IMPORTS.format(line=20) + LATER.format(line=line)))


def test_a_call_in_the_first_column_ends_no_traceback(told):
    said = hang_sentence(
        told(
            "Traceback (most recent call last):\n"
            '      File "/usr/lib/python3.10/runpy.py", line 196, in _run_module_as_main\n'
            "fire.Fire(train)\n"
            '  File "/x/fire/core.py", line 143, in Fire\n'
        )
    )
    assert "crashed" not in said
    assert "Traceback" in said


@pytest.mark.parametrize("end", ["ray.exceptions.RayTaskError(ValueError): bad", "x.FooError('a', 3)", "StopIteration"])
def test_what_ends_a_traceback_all_the_same(told, end):
    said = hang_sentence(told(f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n{end}\n'))
    assert end.split("(")[0].split(".")[-1] in said


def test_a_label_that_is_cut_ends_no_frames(told):
    prefix = "(EngineCore_DP0 pid=2003562) "
    frames = '  File "/x/vllm/v1/engine/core.py", line 788, in run_engine_core\n', "    raise e\n"
    assert "core.py:788" in hang_sentence(told("".join(prefix + line for line in frames) + prefix[:18]))


@pytest.mark.parametrize(
    ("last", "quoted"),
    [
        (
            '    raise KeyboardInterrupt("terminated")\nKeyboardInterrupt: terminated\n',
            "“KeyboardInterrupt: terminated”",
        ),
        ("2024-07-14 07:04:38 - LOGS - Keyboard interruption. Exiting\n", "Keyboard interruption. Exiting”"),
        ("^CKeyboardInterrupt\n", "“^CKeyboardInterrupt”"),
        ("Detected KeyboardInterrupt, attempting to shut down\n", "“Detected KeyboardInterrupt, attempting"),
        # CqGao112/CN-Mini-Phi3, dpo.log: it was said to hold no evidence, and not a word of the interruption.
        (
            "[2025-02-20 20:27:14,864] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 2606460\n"
            "[2025-02-20 20:27:14,902] [INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting\n",
            "Main process received SIGINT, exiting”",
        ),
        ("W0829 10:11:12.1 14 api.py:704] Received Signals.SIGINT death signal, shutting down\n", "Signals.SIGINT"),
        ("WARNING: Received 2 death signal, shutting down workers\n", "Received 2 death signal"),
        ("torch.distributed.elastic.SignalException: Process 33 got signal: 2\n", "got signal: 2”"),
        ("^Csrun: sending Ctrl-C to StepId=12.0\nsrun: forcing job termination\n", "sending Ctrl-C to StepId=12.0”"),
        ("^Cmpirun: killing job...\n", "mpirun: killing job"),
        ("INFO: SIGINT received, saving a checkpoint\n", "SIGINT received, saving a checkpoint”"),
    ],
)
def test_an_interruption_is_no_failure_and_is_told(told, last, quoted):
    diagnosis = told(f"epoch 1\nepoch 2\n{last}")
    assert is_quiet(diagnosis) and hang_sentence(diagnosis).startswith("Interrupted by Ctrl-C or a signal")
    assert quoted in hang_sentence(diagnosis)


@pytest.mark.parametrize(
    "named",
    [
        "Registered handler for keyboard interrupt",
        "Press Ctrl-C to stop. Keyboard interrupt saves a checkpoint",
        "+except KeyboardInterrupt:",
        "INFO keyboard interrupt handler installed",
        "If SIGINT is received it saves a checkpoint",
        "the trainer stops once it has received SIGINT",
        "INFO got SIGINT handler of the parent",
        "Process 33 got signal: 23",
    ],
)
def test_who_only_names_an_interruption_was_not_interrupted(told, named):
    diagnosis = told(f"{named}\nloading data\nsaved to out/\n")
    assert is_quiet(diagnosis) and "nterrupted" not in hang_sentence(diagnosis)


def test_an_interruption_that_steps_follow_is_of_an_earlier_start(told):
    steps = "".join(f"step {n} loss 1.0\n" for n in range(5))
    diagnosis = told(f"{steps}KeyboardInterrupt\n{steps}")
    assert is_quiet(diagnosis) and "nterrupted" not in hang_sentence(diagnosis)


def logged(*levels: str, minute: int = 0) -> str:
    return "".join(
        f"2025-08-27 00:{minute if level == 'INFO' else 0:02}:38,{n:03} - evalscope - {level} - word number {n} came\n"
        for n, level in enumerate(levels)
    )


def test_an_error_after_which_its_logger_goes_on_for_long_is_shown_and_no_alarm(told):
    diagnosis = told(logged("INFO", "ERROR", *["INFO"] * 5, minute=9))
    assert hang_level(diagnosis) == "info"
    assert hang_sentence(diagnosis).startswith("1 line with an error, after which its logger goes on: job.out:2 says “")


@pytest.mark.parametrize("levels", [["INFO"] * 4, [*["INFO"] * 5, "ERROR"]])
def test_an_error_near_the_end_is_trouble(told, levels):
    diagnosis = told(logged("ERROR", *levels, minute=9))
    assert hang_level(diagnosis) == "warning"


@pytest.mark.parametrize(("said", "went_on"), [("shutting down", False), ("Finished evaluation", True)])
def test_a_logger_that_stops_at_once_went_on_only_to_an_end(said, went_on):
    loggers = Loggers()
    lines = ["ERROR 05-12 02:47:14 [a.py:1] lost", *[f"INFO 05-12 02:47:15 [a.py:{n}] {said}" for n in range(6)]]
    for number, line in enumerate(lines, start=1):
        loggers.take(number, line)
    assert loggers.went_on(1, len(lines)) is went_on
    assert not loggers.went_on(2, len(lines))


ROUTER = "2025-04-14T15:52:02.6{:05}Z {} text_generation_router::server: router/src/server.rs:{}: {}\n".format
WITHOUT = ROUTER(79061, "ERROR", 1672, "Failed to import python tokenizer ModuleNotFoundError: No module named 'x'")


def test_an_error_behind_which_its_server_is_up_is_no_alarm(told):
    """TGI's router goes on with another tokenizer (JulienDelavande/text-generation-inference, tgi.log)."""
    up = ROUTER(79164, " INFO", 2266, "Connected")
    assert hang_level(told(ROUTER(72671, " INFO", 1560, "Using the API") + WITHOUT + up)) == "info"


@pytest.mark.parametrize("up", ["", ROUTER(70000, " INFO", 2266, "Connected")], ids=["never", "before"])
def test_an_error_of_a_server_that_is_not_up_behind_it(told, up):
    assert hang_level(told(up + WITHOUT)) == "warning"


def test_another_loggers_lines_do_not_count():
    loggers = Loggers()
    loggers.take(1, "2025-08-27 00:00:38,1 - engine - ERROR - lost")
    for number in range(2, 20):
        loggers.take(number, f"2025-08-27 00:09:{number:02},1 - api - INFO - served")
    assert not loggers.went_on(1, 19)


@pytest.mark.parametrize(
    ("fails", "goes_on"),
    [
        ("[rank3]: {} ERROR trainer: shard 17 is corrupt", "[rank0]: {} INFO trainer: waiting for peers"),
        ("{} ERROR trainer: shard 17 is corrupt", "[rank0]: {} INFO trainer: waiting for peers"),
        ("(Worker TP3 pid=13) {} ERROR graph capture gave up", "(Worker TP0 pid=10) {} INFO serving"),
        ("node-3 {} ERROR graph capture gave up", "node-0 {} INFO serving"),
    ],
)
def test_the_lines_of_another_rank_do_not_show_that_this_one_went_on(told, fails, goes_on):
    """'1 line with an error, after which its logger goes on', and no alarm: rank 3 had ended."""
    lines = [fails.format("2025-08-27 00:00:06,017")]
    lines += [goes_on.format(f"2025-08-27 00:0{minute}:10,017") for minute in range(9)]
    diagnosis = told("".join(f"{line}\n" for line in lines))
    assert hang_level(diagnosis) == "warning"
    assert "goes on" not in hang_sentence(diagnosis)


def test_a_rank_that_goes_on_itself_did(told):
    said = ["ERROR trainer: shard 17 is corrupt", *["INFO served"] * 8]
    lines = [f"[rank3]: 2025-08-27 00:0{minute}:10,017 {text}\n" for minute, text in enumerate(said)]
    assert "after which its logger goes on" in hang_sentence(told("".join(lines)))


def test_a_rank_that_printed_anything_did_not_leave_no_evidence(told):
    steps = "".join(f"[rank{r}]: step 1 loss 2.0\n" for r in range(4))
    text = steps + "".join(WATCHDOG.format(r=r) for r in (0, 1, 2, 4))
    (root,) = told(text).roots
    assert root.ranks == (3,)
    assert root.statement.startswith("Rank 3 left no record of collectives, but messages in the log; ranks 0–2, 4 wait")
    assert any("step 1 loss 2.0" in value for _, value in root.evidence)


def test_ranks_of_which_a_log_has_no_line_are_not_blamed(told):
    diagnosis = told("[rank3]: step 1\n" + "".join(WATCHDOG.format(r=r) for r in (1, 4)))
    assert diagnosis.roots == () and diagnosis.waits == ()
    assert hang_sentence(diagnosis).endswith("Nothing in these files comes from ranks 0, 2.")


def test_what_a_child_says_of_its_parents_end_is_no_cause(told):
    child = (
        "Traceback (most recent call last):\n"
        '  File "<string>", line 1, in <module>\n'
        '  File "/x/multiprocessing/spawn.py", line 116, in spawn_main\n    exitcode = _main(fd, parent_sentinel)\n'
        '  File "/x/multiprocessing/spawn.py", line 126, in _main\n    self = reduction.pickle.load(from_parent)\n'
        "_pickle.UnpicklingError: pickle data was truncated\n"
    )
    own = 'Traceback (most recent call last):\n  File "a.py", line 3, in main\nValueError: no such file of mine\n'
    assert "no such file of mine" in hang_sentence(told(child + own))
    alone = told(child)
    assert not alone.roots
    assert "pickle data was truncated" in hang_sentence(alone)


def test_a_message_that_ends_in_a_colon_means_the_traceback_behind_it(told):
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    f()\n'
        "RuntimeError: The actor failed to import on the worker:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 9, in <module>\n    import flash\n'
        "ImportError: flash.so: undefined symbol: _Z1\n"
    )
    assert "undefined symbol" in hang_sentence(told(text))


def test_a_message_that_ends_in_a_colon_goes_on_in_the_next_line(told):
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    f()\n'
        "RuntimeError: Failed to import x because of the following error (look up):\n"
        "/lib/flash.so: undefined symbol: _Z1\n"
    )
    assert "undefined symbol" in hang_sentence(told(text))


def test_a_head_alone_is_not_quoted_where_frames_are(told):
    text = (
        "Traceback (most recent call last):\n"
        '[rank2]:   File "/x/pretrain_gpt.py", line 218, in forward_step\n[rank2]:     model(\n'
        '[rank2]:   File "/x/module.py", line'
    )
    assert "pretrain_gpt.py:218" in hang_sentence(told(text))


def test_a_warning_of_nccl_that_no_rule_knows_is_quoted(told):
    info = "vm:3355:3402 [0] NCCL INFO "
    diagnosis = told(
        f"{info}Bootstrap : Using eth0:10.0.0.1<0>\n"
        "vm:3355:3402 [0] bootstrap.cc:114 NCCL WARN Some new words of this release\n"
        f"{info}ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 3b000 - Init START\n"
    )
    assert hang_level(diagnosis) == "warning"  # a process whose rank was set wrong got a clean bill
    assert "Some new words of this release”" in hang_sentence(diagnosis)
