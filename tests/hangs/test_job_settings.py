"""Advice by the setting in which a job runs: Ray's own for a job of Ray, srun's for one of Slurm."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from traceops.hangs import job as settings
from traceops.report.hang_seen import what_would_decide
from traceops.report.hang_text import root_advice

LOST = "RuntimeError: Connection reset by peer\n"
DEFAULT = settings.how_to_bring(None)


@pytest.mark.parametrize(
    ("line", "setting", "brings"),
    [
        ("(raylet) some line", "ray", "session_latest/logs"),
        ("(EngineCore_DP0 pid=7) INFO 08-13 loading", "vllm", "VLLM_LOGGING_LEVEL"),
        ('  File "/x/sglang/srt/managers/scheduler.py", line 7, in f', "sglang", "TP rank"),
        ("# nThread 1 nGpus 8 minBytes 8 maxBytes 1", "nccl_tests", "nccl-tests"),
        ("srun: Job step aborted: Waiting up to 32 seconds", "slurm", "srun --output"),
        ("[pod/llama-worker-0/pytorch] start", "kubernetes", "kubectl logs"),
        ("W0829 10:11 torch/distributed/run.py:766] OMP_NUM_THREADS", "torchrun", "--redirects 3"),
        ("epoch 1", None, "--log-dir DIR"),
    ],
)
def test_each_ranks_output_is_brought_as_the_setting_has_it(told, line: str, setting: str | None, brings: str) -> None:
    diagnosis = told(f"{line}\n{LOST}")
    assert diagnosis.evidence.setting == setting
    assert brings in settings.how_to_bring(setting) and settings.how_to_bring(setting) in what_would_decide(diagnosis)


def test_what_to_do_about_memory_is_said_in_slurms_terms_under_slurm(told) -> None:
    killed = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n"
    (root,) = told(killed).roots
    assert "--mem" in root_advice(root) and "dmesg" not in root_advice(root)
    (root,) = told("[ 99.1] Out of memory: Killed process 4711 (python) total-vm:1kB\n").roots
    assert "dmesg" in root_advice(root)


def test_the_file_of_settings_has_no_sign_twice() -> None:
    file = Path(settings.__file__).with_name("settings.json")
    known = msgspec.json.decode(file.read_bytes())["settings"]
    signs = [sign for one in known for sign in one["signs"]]
    assert len(signs) == len(set(signs)) and all(one["bring"] != DEFAULT for one in known)
