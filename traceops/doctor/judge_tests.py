"""TO-D601: tests of communication that did not come out right with the environment as it is."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.rule import Verdict
from traceops.doctor.model import BAD, Trial
from traceops.rules.machine.judge import TEST_FAILED


def judge_tests(trials: Sequence[Trial], hosts: Sequence[str]) -> Verdict:
    """A finding for each test that failed, hung or gave wrong results. hosts: of the checkup."""
    ran = [trial for trial in trials if trial.as_it_is and trial.outcome != "not_evaluated"]
    if not ran:
        return TEST_FAILED.not_evaluated("communication was not tested")
    findings = [
        TEST_FAILED.finding(
            "error",
            "high",
            f"{trial_text(trial, hosts)}.",
            [
                Evidence(Fact.TRIAL, trial.outcome, subject=trial.name),
                Evidence(Fact.TOOK, round(trial.seconds, 1), "s", trial.deadline_s),
            ],
        )
        for trial in ran
        if trial.outcome in BAD
    ]
    return TEST_FAILED.verdict(*findings, clear=f"{len(ran)} tests came out right")


def trial_text(trial: Trial, hosts: Sequence[str]) -> str:
    """'all_reduce hung after 30 s: rank 1 never came to it'; of several hosts with the one that it ran on."""
    how = {"wrong": "gave wrong results", "failed": "failed", "hung": "hung"}.get(trial.outcome, trial.outcome)
    after = f" after {trial.seconds:.0f} s" if trial.outcome == "hung" else ""
    on = f" on {trial.hosts[0]}" if len(trial.hosts) == 1 < len(hosts) else ""
    return f"{trial.name} {how}{on}{after}" + (f": {trial.message.rstrip('.')}" if trial.message else "")
