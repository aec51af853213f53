"""Containers that were started again: what ended them then is not how they are now."""

from __future__ import annotations

import json

import pytest
from quiet import is_quiet

from traceops.hangs.model import Diagnosis
from traceops.report.hang_seen import seen_events
from traceops.report.hang_text import hang_level, hang_sentence

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
