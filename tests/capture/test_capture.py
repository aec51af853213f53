import json

import pytest
from capture_reading import run_json, step_numbers

import traceops
from traceops.capture import CaptureSettings, Schedule
from traceops.capture.environment import environment_that_matters
from traceops.core.errors import UsageError

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_TRAIN = """
import sys, torch, traceops
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{before}
schedule = traceops.Schedule(skip_first=1, unprofiled=2, warmup=1, active=3, repeat=2)
with traceops.capture({arguments}) as profiler:
    for step in range(16):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        if step == {fail_at}:
            raise ValueError("boom")
        profiler.step(samples=4)
    assert profiler.done and profiler.total_steps == 13, profiler.steps
print(profiler.out)
"""


def program(arguments, fail_at=None, before=""):
    return _TRAIN.format(arguments=arguments, fail_at=fail_at, before=before)


def test_one_process_without_torch_distributed(python, tmp_path):
    done = python("-c", program("schedule=schedule, manifest={'strategy': 'mine', 'lr': 0.1}"), compiler=True)
    assert done.returncode == 0, done.stderr
    out = tmp_path / done.stdout.strip()
    assert out.parent == tmp_path / "profile"
    run = run_json(out)
    (rank,) = run["ranks"]
    assert [step_numbers(out / trace) for trace in rank["traces"]] == [[4, 5, 6], [10, 11, 12]]
    assert [window["steps"] for window in rank["windows"]] == [[4, 5, 6], [10, 11, 12]]
    assert run["profiled_steps"] == rank["profiled_steps"] == [4, 5, 6, 10, 11, 12]
    assert (len(rank["unprofiled_step_ms"]), len(rank["profiled_step_ms"])) == (4, 6)
    assert run["unprofiled_step_ms"] > 0 and run["profiled_step_ms"] > 0
    assert (run["strategy"], run["training"]["lr"], run["status"], run["steps"]) == ("mine", 0.1, "finished", 16)
    assert (rank["samples"], rank["step_clock"], run["device"], run["backend"]) == (64, "host", "cpu", None)
    assert run["schema_version"] == 1 and run["ranks_missing"] == []
    assert not [path for path in out.rglob("*") if path.name.endswith(".part")]


def test_an_exception_in_a_window_keeps_what_was_recorded(python, tmp_path):
    done = python("-c", program("'run', schedule=schedule", fail_at=11))
    assert done.returncode == 1 and "ValueError: boom" in done.stderr
    (rank,) = run_json(tmp_path / "run")["ranks"]
    assert (rank["status"], rank["error"], rank["steps"]) == ("failed", "ValueError: boom", 11)
    assert [(w["steps"], w["complete"]) for w in rank["windows"]] == [([4, 5, 6], True), ([10], False)]
    assert 10 in step_numbers(tmp_path / "run" / rank["traces"][1])


def test_two_runs_are_never_mixed(python, tmp_path):
    first = python("-c", program("'run', schedule=schedule"))
    assert first.returncode == 0, first.stderr
    before = sorted((tmp_path / "run" / "rank_0").iterdir())
    again = python("-c", program("'run', schedule=schedule"))
    assert again.returncode != 0 and "holds another run" in again.stderr
    assert sorted((tmp_path / "run" / "rank_0").iterdir()) == before
    replaced = python("-c", program("'run', schedule=schedule, overwrite=True"))
    assert replaced.returncode == 0, replaced.stderr
    assert len(list((tmp_path / "run" / "rank_0").glob("*.gz"))) == 2


def test_ranks_without_a_launcher_agree_on_one_folder(python, tmp_path):
    group = "import torch.distributed as dist; dist.init_process_group('gloo')"
    (tmp_path / "train.py").write_text(program("schedule=schedule", before=group))
    done = python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py")
    assert done.returncode == 0, done.stderr
    (out,) = (tmp_path / "profile").iterdir()
    run = run_json(out)
    assert [(rank["rank"], rank["local_rank"], len(rank["traces"])) for rank in run["ranks"]] == [(0, 0, 2), (1, 1, 2)]
    assert (run["world_size"], run["backend"], run["status"]) == (2, "gloo", "finished")


def test_the_environment_overrides_arguments(monkeypatch):
    monkeypatch.setenv("TRACEOPS_CAPTURE", json.dumps({"out": "there", "schedule": {"active": 9}}))
    settings = traceops.capture("here", schedule=Schedule(active=3, warmup=1), with_stack=True).settings
    assert (settings.out, settings.with_stack) == ("there", True)
    assert (settings.schedule.active, settings.schedule.warmup) == (9, 1)
    for bad in ("{", "[]", '{"colour": 1}', '{"schedule": {"passive": 1}}'):
        monkeypatch.setenv("TRACEOPS_CAPTURE", bad)
        with pytest.raises(UsageError, match="TRACEOPS_CAPTURE"):
            traceops.capture()


def test_a_schedule_longer_than_the_training_is_refused():
    with pytest.raises(UsageError, match="needs 14 steps"):
        traceops.capture(settings=CaptureSettings(), total_steps=11)


def test_secrets_stay_out_of_run_json():
    kept = environment_that_matters(
        {"NCCL_DEBUG": "INFO", "WANDB_API_KEY": "x", "TORCH_TOKEN": "x", "HOME": "x", "OMP_NUM_THREADS": "1"}
    )
    assert kept == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1"}
