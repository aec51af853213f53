"""How a process ended, as shells, launchers, containers, editors and Python's subprocess word it."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.hangs.readers.launchers import NEEDLES, ended
from traceops.report.hang_text import hang_level, hang_sentence

KILLED = (
    "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
    "Process finished with exit code 137 （interrupted by signal 9： SIGKILL）",
    "command terminated with exit code 137",
    "trainer_1 exited with code 137",
    "    Exit Code:    137",
    "##[error]Process completed with exit code 137.",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
    "Command terminated by signal 9",
    "make: *** [Makefile:12: train] Killed",
    "make[1]: *** [train] Error 137",
    "Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    "subprocess.CalledProcessError: Command '['sh', 'run.sh']' returned non-zero exit status 137.",
    "[1]+  Killed                  python train.py",
    "[2]  - 4242 killed     torchrun --nproc-per-node 8 train.py",
    "zsh: killed     python3 train.py",
    "[2024-01-01 10:00:00,000] [INFO] [launch.py:1] exits with return code = -9",
    "ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=1",
)
CRASHED = (
    "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
    "=   EXIT CODE: 139",
    "APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)",
    "make: *** [train] Segmentation fault (core dumped)",
    "Command '['python', 'train.py']' died with <Signals.SIGABRT: 6>.",
    "zsh: segmentation fault (core dumped)  python train.py",
    "zsh: illegal hardware instruction  python train.py",
    "[Tue Sep  8 10:05:32 2026] traps: lmdeploy[3838286] general protection fault ip:7f83 sp:7f7f error:0 in libc.so.6",
    "[12.5] VLLM::EngineCor[77]: segfault at b000 ip 00007f sp 00007f error 4 in libcuda.so",
    "2024-03-06T17:53:31.052444Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown "
    "with signal 4 rank=0",
)
PLAIN = (
    "Process finished with exit code 1",
    "Process finished with exit code -1073741819 (0xC0000005)",
    "command terminated with exit code 1",
    "trainer_1 exited with code 2",
    "=   EXIT CODE: 1",
    "Command exited with non-zero status 1",
    "make: *** [Makefile:12: train] Error 2",
    "Command '['flower-simulation', '--app', '.']' returned non-zero exit status 1.",
)
NO_END = (
    "Process finished with exit code 0",
    "Process finished with exit code 130 (interrupted by signal 2: SIGINT)",
    "trainer_1 exited with code 0",
    "make: *** [clean] Error 1 (ignored)",
    "WARNING: Command '['which', 'nvcc']' returned non-zero exit status 1.",
    "[1]+  Killed                  tensorboard --logdir runs",
    "[1]+  Done                    python train.py",
    "run.sh: line 5:  4711 Killed                  sleep 1000",
    "run.sh: line 6:  4712 Killed                  nvidia-smi dmon -s u > gpu.txt",
    "run.sh: line 7:  4713 Killed                  /usr/bin/tail -f log.txt",
    "the job exited with code 1 if its input is empty",
    "[12.5] chrome[77]: segfault at b000 ip 00007f sp 00007f error 4 in chrome",
)


@pytest.mark.parametrize("line", KILLED)
def test_a_process_that_was_killed(line):
    assert (ended(line) or "").endswith("a process was killed: SIGKILL")


@pytest.mark.parametrize("line", CRASHED)
def test_a_process_that_crashed(line):
    assert "says that a process crashed: SIG" in (ended(line) or "")


@pytest.mark.parametrize("line", PLAIN)
def test_a_process_that_gave_an_exit_code(line):
    assert ended(line) == ""


@pytest.mark.parametrize("line", NO_END)
def test_what_tells_of_no_end(line):
    assert ended(line) is None


@pytest.mark.parametrize("line", [*KILLED, *CRASHED, *PLAIN])
def test_each_is_found_in_a_large_log_too(line):
    assert any(needle in line.encode() for needle in NEEDLES)


def test_an_exit_code_alone_is_trouble_without_a_cause(told):
    diagnosis = told(f"loading\n{PLAIN[-1]}\nloading\n{PLAIN[-1]}\n")
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"


def test_a_launcher_s_exception_tells_how_its_child_ended(told):
    """Not that the launcher crashed: 'CalledProcessError' is its word on the child."""
    diagnosis = told(
        'Traceback (most recent call last):\n  File "launch.py", line 9, in main\n    run()\n'
        f"subprocess.CalledProcessError: {KILLED[10]}\n"
    )
    assert "was killed (SIGKILL)" in hang_sentence(diagnosis)


def test_of_a_long_line_no_word_is_cut_in_two(told):
    """'was killed: SIGKILL (ROR] [launch.py:325:sigkill_handler] …'."""
    diagnosis = told(
        "[2026-11-23 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', "
        "'--local_rank=1'] exits with return code = -9\n"
    )
    assert "SIGKILL (… [launch.py:325:sigkill_handler] [" in hang_sentence(diagnosis)


def test_a_traceback_says_more_than_the_exit_code_behind_it(told):
    diagnosis = told(
        'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    run()\n'
        f"ValueError: no samples\n\n{PLAIN[0]}\n"
    )
    assert "ValueError: no samples" in hang_sentence(diagnosis)


@pytest.mark.parametrize("line", [NO_END[0], NO_END[1], NO_END[3]])
def test_a_program_that_ended_well_or_was_stopped_by_hand_is_none(told, line):
    assert is_quiet(told(f"epoch 1 loss 0.3\n\n{line}\n"))
