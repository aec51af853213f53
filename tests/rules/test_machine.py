"""Rules of a machine: findings and checks made of looks."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from changed import replace

from traceops.core.rule import Verdict
from traceops.doctor.document import judge_tests
from traceops.doctor.model import Trial
from traceops.machine.look import Level, Look
from traceops.machine.platform import Limits
from traceops.rules import machine, registry
from traceops.rules.explained import checks
from traceops.rules.machine.judge import RULES, judge_looks
from traceops.rules.machine.limits import judge_limits
from traceops.rules.machine.variables import check_variables
from traceops.words.catalogue import sections

SMALL = Look("a", "memory", "/dev/shm", "64 MB", "error", "too small", "--ipc=host", {"bytes": 64 << 20}, "TO-D301")


def verdicts(*looks: Look, hosts: tuple[str, ...] = ("a",), tested: bool = False) -> dict[str, Verdict]:
    return {verdict.rule: verdict for verdict in judge_looks(looks, hosts, tested)}


def test_every_rule_of_a_machine_is_documented_and_judged_once() -> None:
    assert [rule.id for rule in RULES] == sorted({rule.id for rule in RULES})
    assert all(rule.id.startswith("TO-D") and rule.title and rule.fires and rule.advice for rule in RULES)
    judged = [verdict.rule for verdict in judge_looks((), (), tested=False)]
    assert sorted([*judged, "TO-D601"]) == [rule.id for rule in RULES]
    assert set(RULES) <= set(registry.RULES)


@pytest.mark.parametrize(("level", "severity"), [("error", "error"), ("warning", "warning"), ("note", "info")])
def test_a_look_that_is_not_all_right_is_a_finding(level: Level, severity: str) -> None:
    [found] = verdicts(replace(SMALL, level=level))["TO-D301"].findings
    assert (found.rule, found.severity, found.advice) == ("TO-D301", severity, "--ipc=host")
    assert found.message == "/dev/shm: 64 MB; too small."
    assert [(one.metric, one.value) for one in found.evidence] == [("/dev/shm", "64 MB"), ("bytes", 64 << 20)]


def test_equal_looks_of_several_hosts_are_one_finding_that_names_them() -> None:
    hosts = ("a", "b", "c")
    [found] = verdicts(SMALL, replace(SMALL, host="c"), hosts=hosts)["TO-D301"].findings
    assert found.message.startswith("/dev/shm on a, c: 64 MB")
    [everywhere] = verdicts(*(replace(SMALL, host=host) for host in hosts), hosts=hosts)["TO-D301"].findings
    assert everywhere.message.startswith("/dev/shm: 64 MB")


def test_a_rule_is_clear_only_where_it_was_looked_at() -> None:
    fine = replace(SMALL, found="128 GB", level="ok")
    assert verdicts(fine)["TO-D301"].clear == "128 GB"
    unseen = replace(SMALL, level="not_evaluated", why="there is no /dev/shm")
    assert verdicts(unseen)["TO-D301"].not_evaluated == "there is no /dev/shm"
    assert verdicts(unseen, replace(fine, host="b"))["TO-D301"].clear == "128 GB"
    assert verdicts()["TO-D301"].not_evaluated == "this machine was not looked at"


def test_without_a_gpu_its_rules_are_not_evaluated() -> None:
    none = Look("a", "GPU", "GPUs", "none", "not_evaluated", "nvidia-smi is not installed")
    found = verdicts(none)
    assert found["TO-D001"].not_evaluated == found["TO-D501"].not_evaluated == "nvidia-smi is not installed"


def test_rules_of_tests_are_clear_only_where_tests_ran() -> None:
    not_tested = Look("a", "tests", "communication", "not tested", "not_evaluated", "left out: --no-tests")
    assert verdicts(not_tested)["TO-D603"].not_evaluated == "left out: --no-tests"
    assert verdicts(tested=True)["TO-D603"] == Verdict("TO-D603")


def test_a_variable_whose_cost_was_measured_is_told_once() -> None:
    usual = Look("a", "environment", "NCCL_P2P_DISABLE", "1", "warning", "slow", rule="TO-D404")
    facts = {"variables": ["NCCL_P2P_DISABLE"], "lost_gbs": 300.0}
    measured = Look("a", "tests", "NCCL_P2P_DISABLE=1", "costs", "error", facts=facts, rule="TO-D602")
    found = verdicts(usual, measured, tested=True)
    assert found["TO-D602"].findings and not found["TO-D404"].findings


def test_tests_that_failed_are_findings_but_not_those_of_changes() -> None:
    hung = Trial("start", "hung", (0, 1), 45.0, 45.0, "rank 1 never came to it")
    [found] = judge_tests((hung, replace(hung, set={"NCCL_IB_DISABLE": "1"})), ("a",)).findings
    assert found.message == "start hung after 45 s: rank 1 never came to it."
    assert judge_tests((replace(hung, outcome="ok"),), ("a",)).clear == "1 tests came out right"
    assert judge_tests((), ()).not_evaluated


def test_what_is_not_all_right_names_its_rule() -> None:
    known = {rule.id for rule in RULES}
    limits = Limits(memory=1 << 30, memlock=1 << 16, files=64, processes=64, shm=64 << 20, shm_free=64 << 20)
    environ = {
        "NCCL_P2P_DISABLED": "1", "NCCL_ALGO": "Bush", "NCCL_P2P_LEVEL": "LOC", "NCCL_P2P_DISABLE": "true",
        "NCCL_SHM_DISABLE": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "1", "CUDA_LAUNCH_BLOCKING": "1",
    }  # fmt: skip
    looks = [*judge_limits(limits, 8, True, "a"), *check_variables(environ, "a")]
    assert {look.rule for look in looks if look.level != "ok"} <= known
    assert {"TO-D301", "TO-D302", "TO-D303", "TO-D304", "TO-D401", "TO-D402", "TO-D404"} <= {
        look.rule for look in looks
    }


def test_reports_of_runs_do_not_list_rules_that_only_the_doctor_judges() -> None:
    assert not [check.rule for check in checks([]) if check.rule.startswith("TO-D")]


def test_each_look_of_the_catalogue_is_made_somewhere_and_knows_its_place() -> None:
    code = "".join(path.read_text() for path in Path(machine.__path__[0]).glob("*.py"))
    outcomes = 0
    for about, texts in sections("looks").items():
        for key, text in texts.items():
            level, colon, _ = text.partition(":")
            if "." in key or not colon or level not in get_args(Level):
                continue
            outcomes += 1
            assert f'"{about}"' in code and (f'"{key}"' in code or key.isdecimal()), (about, key)
            assert all(texts.get(f"{key}.{part}", texts.get(part)) for part in ("area", "what")), (about, key)
            rule = texts.get(f"{key}.rule", texts.get("rule", ""))
            assert not rule or rule == "{rule}" or rule in {one.id for one in RULES}, (about, key)
            assert level in ("ok", "not_evaluated") or texts.get(f"{key}.why", texts.get("why")), (about, key)
    assert outcomes > 150
