"""The job that evidence is of: its setting, what the kernel logged meanwhile, and the states of its pods."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from quiet import is_quiet

from traceops.hangs import job as settings
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.report.hang_seen import seen_events, what_would_decide
from traceops.report.hang_text import hang_level, hang_sentence, root_advice

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


STEPS = "".join(f"2026-11-23 10:{n // 60:02}:{n % 60:02},000 - INFO - step {n}: loss 2.1\n" for n in range(900))
GLOG = "".join(f"I1123 10:{n // 60:02}:{n % 60:02}.000 77 train.py:3] step {n}: loss 2.1\n" for n in range(900))
BARE = "".join(f"step {n}: loss 2.1\n" for n in range(900))
RAISED = (
    "Traceback (most recent call last):\n  File \"/app/train.py\", line 41, in step\n    f(batch)\nKeyError: 'labels'\n"
)
CUDA = RAISED.replace("KeyError: 'labels'", "RuntimeError: CUDA error: unspecified launch failure")
EXIT = "  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 4711)\n"
XID = "[{}] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.\n"
BOOT = "81234.123456"
AT_END, BEFORE, DAYS = "Mon Nov 23 10:15:00 2026", "Mon Nov 23 08:07:00 2026", "Fri Nov 20 09:00:00 2026"
ZONE = "Mon Nov 23 08:15:00 2026"


@pytest.fixture
def beside(tmp_path: Path):
    def tell(job: str, kernel: str, name: str = "dmesg.txt") -> Diagnosis:
        (tmp_path / "train.log").write_text(job)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(kernel)
        return diagnose(tmp_path)

    return tell


def xid_text(diagnosis: Diagnosis) -> str:
    [event] = [event for event in diagnosis.evidence.log if "Xid" in event.text]
    assert event.kind == "trouble"
    return event.text.rpartition("bus. ")[2]


@pytest.mark.parametrize(
    ("job", "when", "why"),
    [
        (STEPS, DAYS, "(3 days before the job's log begins)"),
        (STEPS, "Tue Nov 24 09:00:00 2026", "(22 hours after the job's log ends)"),
        (STEPS, "Mon Nov 23 10:05:00 2026", "(the job's log has steps for 9 minutes after it)"),
        (GLOG, DAYS, "(3 days before the job's log begins)"),
        (STEPS, ZONE, "(the same minutes if the two logs have clocks of two time zones; which is unknown)"),
        (BARE, DAYS, "(nothing says that it is of this job; no times tell)"),
        (STEPS, BOOT, "(nothing says that it is of this job; it counts seconds since the boot: dmesg -T has dates)"),
    ],
)
@pytest.mark.parametrize("end", ["", RAISED])
def test_an_xid_that_nothing_joins_to_the_job_is_not_its_cause(beside, job: str, when: str, why: str, end: str) -> None:
    """'The program saw its GPU fail (hardware)' was said of jobs that ran, and of one that ended with a KeyError."""
    diagnosis = beside(job + end, XID.format(when))
    assert xid_text(diagnosis) == why and hang_level(diagnosis) == ("error" if end else "warning")
    assert ["KeyError" in root.statement for root in diagnosis.roots] == ([True] if end else [])


@pytest.mark.parametrize(
    ("job", "when"),
    [
        (STEPS + CUDA, AT_END),  # by the time
        (STEPS, AT_END),
        (GLOG, AT_END),
        (STEPS + CUDA, BOOT),  # by what failed
        (STEPS + EXIT, BOOT),  # by the process
        (STEPS + EXIT, DAYS),
    ],
)
def test_an_xid_that_something_joins_to_the_job_is_its_cause(beside, job: str, when: str) -> None:
    roots = beside(job, XID.format(when)).roots
    assert roots and all("hardware" in root.statement for root in roots)


@pytest.mark.parametrize("when", [DAYS, BOOT, AT_END])
def test_the_kernels_log_alone_is_told_as_it_is(told, when: str) -> None:
    [root] = told(XID.format(when)).roots
    assert root.cause == "gpu_hardware"


def test_what_the_run_itself_saved_is_of_the_run(beside) -> None:
    [root] = beside(STEPS + RAISED, XID.format(BOOT), "evidence/kernel.node7.txt").roots[:1]
    assert root.cause == "gpu_hardware"


def test_a_process_killed_on_another_day_is_not_the_jobs(beside) -> None:
    killed = "[{}] Out of memory: Killed process 99 (python) total-vm:9kB, anon-rss:8kB\n"
    assert beside(STEPS, killed.format(DAYS)).roots == ()
    [root] = beside(STEPS, killed.format(AT_END)).roots
    assert root.cause == "host_memory"


RUNS = "Running\n      Started:      Mon, 23 Nov 2026 11:00:02 +0000"
LOOPS = "Waiting\n      Reason:       CrashLoopBackOff"
DONE = "Terminated\n      Reason:       Completed\n      Exit Code:    0"
ENDED = "Terminated\n      Reason:       OOMKilled\n      Exit Code:    137"
OOM = ("OOMKilled", 137)
ERROR = ("Error", 1)
WHEN = "finished Mon, 23 Nov 2026 10:59:58 +0000"


def described(now: str, last: tuple[str, int] | None) -> str:
    before = (
        ""
        if last is None
        else f"""    Last State:     Terminated
      Reason:       {last[0]}
      Exit Code:    {last[1]}
      Started:      Mon, 23 Nov 2026 10:00:13 +0000
      Finished:     Mon, 23 Nov 2026 10:59:58 +0000
"""
    )
    return f"""Name:             train-worker-0
Status:           Running
Init Containers:
  fetch-data:
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
    Ready:          True
    Restart Count:  0
Containers:
  pytorch:
    Image:          repo/train:1
    State:          {now}
{before}    Ready:          True
    Restart Count:  3
Conditions:
  Type              Status
  Ready             True
Events:
  Type     Reason            Age                 From               Message
  ----     ------            ----                ----               -------
  Warning  FailedScheduling  65m                 default-scheduler  0/8 nodes are available: 8 Insufficient gpu.
  Normal   Scheduled         60m                 default-scheduler  Successfully assigned default/t to gpu-1
  Warning  Unhealthy         30m (x3 over 40m)   kubelet            Readiness probe failed: connection refused
"""


def document(now: dict[str, object]) -> dict[str, object]:
    last = {"terminated": {"exitCode": 137, "finishedAt": "2026-11-23T10:59:58Z", "reason": "OOMKilled"}}
    one = {"lastState": last, "name": "pytorch", "ready": True, "restartCount": 3, "state": now}
    return {
        "apiVersion": "v1",
        "status": {"conditions": [{"message": "all is well", "type": "Ready"}], "containerStatuses": [one]},
    }


def as_yaml(now: str) -> str:
    return f"""status:
  containerStatuses:
  - image: repo/train:1
    lastState:
      terminated:
        exitCode: 137
        finishedAt: "2026-11-23T10:59:58Z"
        reason: OOMKilled
    name: pytorch
    restartCount: 3
    state:
      {now}
"""


def texts(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in seen_events(diagnosis)]


@pytest.mark.parametrize(("now", "how"), [(RUNS, "it runs again"), (DONE, "it has completed since")])
def test_a_container_that_runs_again_is_told_with_what_ended_it_then(told, now: str, how: str) -> None:
    """'The program ran out of the host's memory', with high confidence, of a pod that runs."""
    diagnosis = told(described(now, OOM))
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"
    [(kind, text)] = texts(diagnosis)
    assert (kind, text) == (
        "passed",
        f"Reason: OOMKilled: the last state of container pytorch, exit code 137, {WHEN}; {how}, restarts: 3; "
        "kubectl logs --previous has its last lines",
    )
    assert "of trouble that passed" in hang_sentence(diagnosis)


def test_one_that_is_started_again_and_again_has_its_last_end_as_the_cause(told) -> None:
    [root] = told(described(LOOPS, OOM)).roots
    assert root.cause == "host_memory" and "now it waits (CrashLoopBackOff), restarts: 3" in root.evidence[0][1]


def test_a_plain_exit_code_of_one_that_is_started_again_is_trouble_with_what_to_bring(told) -> None:
    diagnosis = told(described(LOOPS, ERROR))
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"
    assert any("exit code 1" in text and "kubectl logs --previous" in text for _, text in texts(diagnosis))


def test_one_that_ended_now_is_the_cause_and_its_earlier_end_is_not(told) -> None:
    diagnosis = told(described(ENDED, OOM))
    [root] = diagnosis.roots
    assert root.cause == "host_memory" and "last state" not in root.evidence[0][1]
    assert [kind for kind, text in texts(diagnosis) if "ended once more" in text] == ["passed"]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_yaml_and_json_of_kubectl_say_the_same(told, form: str) -> None:
    runs = as_yaml("running: {}") if form == "yaml" else json.dumps(document({"running": {}}), indent=4)
    loops = (
        as_yaml("waiting:\n        reason: CrashLoopBackOff")
        if form == "yaml"
        else json.dumps(document({"waiting": {"reason": "CrashLoopBackOff"}}), indent=4)
    )
    diagnosis = told(runs)
    assert diagnosis.roots == () and [kind for kind, _ in texts(diagnosis)] == ["passed"]
    assert "container pytorch, exit code 137, finished 2026-11-23T10:59:58Z; it runs again" in texts(diagnosis)[0][1]
    assert [root.cause for root in told(loops).roots] == ["host_memory"]


def test_a_pods_warnings_that_passed_are_no_trouble(told) -> None:
    assert is_quiet(told(described(RUNS, None)))


def test_a_list_of_pods_tells_of_those_that_are_started_again_and_again(told) -> None:
    diagnosis = told(
        "NAME             READY   STATUS             RESTARTS     AGE\n"
        "train-worker-0   0/1     CrashLoopBackOff   7 (2m ago)   30m\n"
        "train-worker-1   1/1     Running            3 (9m ago)   30m\n"
    )
    assert hang_level(diagnosis) == "warning" and [kind for kind, _ in texts(diagnosis)] == ["trouble"]
