"""Launchers by name: what each starts, and what is refused with the command that can."""

import sys
from pathlib import Path

import pytest

from traceops.core.errors import UsageError
from traceops.launch.launchers import NAMES, Started, command_of, python_program

GPUS = Started(("train.py", "--lr", "1"), None, 2)


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    for name in ("accelerate", "deepspeed", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("launcher", "begins", "ends"),
    [
        ("accelerate", "accelerate launch --multi_gpu --num_processes 2", "train.py --lr 1"),
        ("deepspeed", "deepspeed --num_gpus 2", "train.py --lr 1"),
        ("lightning", sys.executable, "train.py --lr 1"),
        ("srun", f"srun --ntasks 2 {sys.executable}", "train.py --lr 1"),
    ],
)
def test_the_command_of_each(launcher, begins, ends):
    command = " ".join(command_of(launcher, GPUS))
    assert command.startswith(begins) and command.endswith(ends)
    assert launcher in NAMES


@pytest.mark.parametrize(("launcher", "flag"), [("accelerate", "--module"), ("deepspeed", "--module"), ("srun", "-m")])
def test_modules(launcher, flag):
    command = command_of(launcher, Started(("-m", "pkg", "--a"), 4, 4))
    assert command[-3:] == [flag, "pkg", "--a"] and "4" in command


def test_a_command_of_the_launcher_itself_stays_as_it_is():
    own = ("accelerate", "launch", "--config_file", "mine.yaml", "train.py")
    assert command_of("accelerate", Started(own, None, 2)) == list(own)


def test_srun_over_machines():
    assert command_of("srun", Started(("train.py",), 8, 8, nnodes=2))[:5] == ["srun", "--nodes", "2", "--ntasks", "16"]


def test_what_cannot_work_is_refused_with_the_command_that_can(monkeypatch):
    with pytest.raises(UsageError, match=r"a single process.*traceops run --nproc 2 -- train\.py --lr 1"):
        command_of("accelerate", Started(GPUS.trains, None, 0))
    with pytest.raises(UsageError, match=r"devices=…"):
        command_of("lightning", Started(("train.py",), 2, 2))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"no srun here.*traceops run --nproc 2 -- train\.py"):
        command_of("srun", GPUS)
    with pytest.raises(UsageError, match="after --"):
        command_of("srun", Started((), None, 0))


def test_a_program_that_pip_installed_is_run_by_each_rank_and_launchers_are_not(installed):
    program = installed / "trl"
    program.write_text("#!/opt/env/bin/python\nimport sys\n")
    program.chmod(0o755)
    assert python_program(["trl", "sft"]) == [str(program), "sft"]
    (installed / "accelerate").write_text("#!/opt/env/bin/python\n")
    assert python_program(["accelerate", "launch"]) == ["accelerate", "launch"]
    assert python_program(["srun", "x"]) == ["srun", "x"]
    assert python_program(["gone"]) == ["gone"] and python_program(["-m", "x"]) == ["-m", "x"]
    Path("trl").unlink(missing_ok=True)
