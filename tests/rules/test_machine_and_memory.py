"""Rules of a machine, and TO-M001 to TO-M005: what ranks hold of their GPUs, and a cold allocator."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from changed import replace

from traceops import doctor
from traceops.across.run_use import MemoryUse, growth
from traceops.core.claims import claim_of
from traceops.core.rule import Verdict
from traceops.core.words import STEP
from traceops.doctor.document import judge_tests
from traceops.doctor.model import Trial
from traceops.machine.look import Level, Look
from traceops.machine.platform import Limits
from traceops.pipeline.analyze import analyze
from traceops.rules import machine, registry
from traceops.rules.explained import checks
from traceops.rules.inputs import Inputs
from traceops.rules.machine.judge import RULES, judge_looks
from traceops.rules.machine.limits import judge_limits
from traceops.rules.machine.variables import check_variables
from traceops.rules.memory import judge
from traceops.rules.steps import LongSteps
from traceops.traces.memory_snapshot import Held
from traceops.words.catalogue import sections

MIB, GIB = 1 << 20, 1 << 30
CAPACITY = 80 * GIB


def looks(held, reserved=20 * GIB, apart=5):
    """Rows of an observed run: what tensors held at the ends of steps."""
    rows = [(apart * n, size, reserved, 0, 0, 0) for n, size in enumerate(held)]
    return np.array(rows, np.int64).reshape(-1, 6)


def use(rank=0, peak=10 * GIB, reserved=11 * GIB, **more):
    own = MemoryUse(rank=rank, capacity=CAPACITY, peak=peak, reserved=reserved, **more)
    return replace(own, growth=growth(own.looks))


def judged(*uses, bubbles=(), experts=(), strategy="pytorch_zero3", step_ms=100.0, earlier=()):
    """By rule, without its letter: the finding, else how the check came out."""
    on_gpu = SimpleNamespace(summary=SimpleNamespace(on_gpu=True))
    run = SimpleNamespace(bubbles=bubbles, experts=experts, step_ms=step_ms, step_words=STEP, ranks=[on_gpu])
    found = SimpleNamespace(manifest={"strategy": strategy}, root=str(Path()))
    verdicts = judge(Inputs(found, run, memory=uses, earlier=earlier))
    return {
        verdict.rule: verdict.findings[0] if verdict.findings else ("clear" if verdict.clear else "not_evaluated")
        for verdict in verdicts
    }


def test_a_healthy_run():
    calm = looks([9 * GIB + (n % 3) * 40 * MIB for n in range(40)])
    said = judged(*(use(rank, looks=calm, mallocs=0.0, retries=0) for rank in range(4)))
    assert set(said.values()) == {"clear"}


def test_nothing_is_known():
    said = judged()
    assert said["TO-M001"] == said["TO-M002"] == said["TO-M003"] == said["TO-M004"] == "not_evaluated"


def test_near_capacity():
    said = judged(use(0), use(1, peak=78 * GIB, reserved=79 * GIB))
    told = said["TO-M001"]
    assert (told.severity, told.ranks) == ("warning", (1,)) and "98 % of rank 1's GPU" in told.headline
    assert judged(use(0, peak=73 * GIB, reserved=79 * GIB))["TO-M001"].severity == "info"
    assert judged(use(0, peak=60 * GIB, reserved=79 * GIB))["TO-M001"] == "clear", "a full cache is no trouble"


def test_one_rank_holds_more():
    held = {"allocated": 4 * GIB, "parameters": GIB, "gradients": GIB, "optimizer_state": 2 * GIB}
    said = judged(*(use(rank, held=held, peak=(20 if rank == 3 else 10) * GIB, reserved=22 * GIB) for rank in range(4)))
    told = said["TO-M002"]
    assert (told.severity, told.ranks, told.cause) == ("info", (3,), "activations")
    assert told.facts["more"] == 10 * GIB and told.facts["what"] == "activations"
    more = dict(held, allocated=12 * GIB, parameters=9 * GIB)
    assert judged(use(0, held=held), use(1, held=more, peak=19 * GIB))["TO-M002"].cause == "state"
    tight = judged(use(0, held=held, peak=50 * GIB), use(1, held=held, peak=76 * GIB))
    assert tight["TO-M002"].severity == "warning"


def test_what_is_no_imbalance():
    stages = (SimpleNamespace(pipeline=SimpleNamespace(ranks=(0, 1))),)
    uneven = (use(0, peak=30 * GIB), use(1, peak=10 * GIB))
    assert judged(*uneven, bubbles=stages)["TO-M002"] == "clear"
    assert judged(*uneven, experts=(object(),))["TO-M002"] == "clear"
    held = {"allocated": 8 * GIB, "parameters": 3 * GIB, "gradients": 0, "optimizer_state": 5 * GIB}
    twice = [use(rank, held=held, peak=(13 if rank == 1 else 10) * GIB) for rank in range(4)]
    assert judged(*twice, strategy="pytorch_ddp")["TO-M002"] == "clear", "a rank may hold DDP's first buckets twice"


def test_a_leak_and_its_line():
    rows = looks([9 * GIB + n * 100 * MIB for n in range(40)])
    told = judged(use(1, looks=rows))["TO-M003"]
    assert (told.severity, told.confidence, told.ranks) == ("warning", "medium", (1,))
    assert told.facts["per_step"] == 20 << 20 and told.facts["left"] > 0
    stays = (Held("train.py:60 log_metrics", 3 * GIB, 30),)
    told = judged(*(use(rank, looks=rows, stays=stays) for rank in range(2)))["TO-M003"]
    assert (told.cause, told.ranks, told.confidence) == ("line", (0, 1), "high")
    assert (told.facts["place"], told.facts["blocks"]) == ("train.py:60 log_metrics", 30)


@pytest.mark.parametrize(
    "held",
    [
        [9 * GIB + min(n, 6) * GIB for n in range(40)],  # the first steps of DDP and an optimizer
        [9 * GIB + (n * 7919 % 13) * 300 * MIB for n in range(40)],  # batches of all lengths
        [9 * GIB + (2 * GIB if n > 25 else 0) for n in range(40)],  # an evaluation model that stays, once
        [9 * GIB + n * 4096 for n in range(40)],  # a number a step
        [9 * GIB + n * 100 * MIB for n in range(5)],  # too short to tell
    ],
)
def test_what_is_no_leak(held):
    assert judged(use(looks=looks(held)))["TO-M003"] in ("clear", "not_evaluated")


def test_reserved_and_unused():
    told = judged(use(peak=10 * GIB, reserved=30 * GIB))["TO-M004"]
    assert (told.severity, told.cause) == ("info", None) and told.facts["reserved"] == 30 * GIB
    told = judged(use(peak=40 * GIB, reserved=76 * GIB, pieces=0.4))["TO-M004"]
    assert (told.severity, told.cause) == ("warning", "pieces") and told.facts["pieces"] == 40
    assert judged(use(peak=10 * GIB, reserved=13 * GIB))["TO-M004"] == "clear", "as FSDP's streams cost"


def test_calls_for_memory_weigh_what_they_take_and_not_how_many_they_are():
    """1.3 calls a step were a warning at 5.4 of 153 ms."""
    assert judged(use(mallocs=1.3, calls=1.3, allocating_ms=3.5))["TO-M005"].severity == "info"
    assert judged(use(mallocs=0.6, calls=0.6, allocating_ms=5.5))["TO-M005"].severity == "warning"
    assert judged(use(mallocs=1.3))["TO-M005"].severity == "warning", "the recorded steps do not show them"


def test_the_driver_is_asked():
    told = judged(use(mallocs=3.0, retries=0, calls=3.0, allocating_ms=12.0))["TO-M005"]
    assert (told.severity, told.cause, told.impact_ms) == ("warning", None, 12.0)
    assert (told.facts["calls"], told.facts["takes"], told.facts["step"]) == (3, 12, 100)
    told = judged(use(mallocs=0.1, retries=4))["TO-M005"]
    assert (told.severity, told.cause) == ("warning", "retries") and told.facts["retries"] == 4
    told = judged(use(calls=8.0, allocating_ms=12.0))["TO-M005"]
    assert (told.severity, told.impact_ms, told.facts["calls_recorded"]) == (
        "info",
        None,
        8,
    ) and "takes" not in told.facts
    told = judged(use(mallocs=0.01, retries=3))["TO-M005"].message
    assert "cudaMalloc" not in told and "3 times" in told
    assert judged(use(mallocs=0.0, retries=1))["TO-M005"] == "clear", "the one that ended the program"
    assert judged(use(calls=1.0, allocating_ms=0.1))["TO-M005"] == "clear"


def write(folder, mallocs):
    """Five steps of 10 ms on a GPU; mallocs: so many calls of 8 ms in the first one, in an operator."""
    events, at = [], 0.0

    def add(cat, name, ts, dur, tid=1, **args):
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for number in range(5):
        calls = mallocs if number == 0 else 0
        add("user_annotation", f"ProfilerStep#{number}", at, 10_000.0 + 8000 * calls)
        if calls:
            add("cpu_op", "aten::empty", at + 10, 8000 * calls)
        for one in range(calls):
            add("cuda_runtime", "cudaMalloc", at + 11 + 8000 * one, 7990)
        at += 8000 * calls
        add("cuda_runtime", "cudaLaunchKernel", at + 100, 5, correlation=number + 1)
        add("kernel", "gemm", at + 110, 9800, 7, stream=7, correlation=number + 1)
        at += 10_000
    (folder / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return {found.rule: found for found in analyze(folder).findings}


def test_a_typical_step_has_none_of_them_and_the_long_one_is_explained_by_them(tmp_path):
    """ "12 calls a step, and they take 107 ms of a recorded step of 110": all were in step 0, which took 641."""
    found = write(tmp_path, 6)
    assert "TO-M005" not in found
    assert found["TO-T001"].cause == "allocation"
    claim = claim_of(found["TO-T001"], LongSteps)
    assert (claim.does, claim.ranks, claim.place) == ("allocation", (0,), "aten::empty")


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
    folders = (*machine.__path__, *doctor.__path__)
    code = "".join(path.read_text() for folder in folders for path in Path(folder).glob("*.py"))
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
