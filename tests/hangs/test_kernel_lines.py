"""The kernel's log beside a job's: an Xid is the job's cause only where something joins the two."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.report.hang_text import hang_level

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
