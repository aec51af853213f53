"""TO-D001 to TO-D607: makes findings and checks of what was looked at on a machine."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from traceops.core.claims import Claim
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding, Severity
from traceops.core.rule import JudgedBy, Rule, Verdict, described
from traceops.machine.look import Level, Look
from traceops.rules.machine import gpus, limits, links, network, platform, variable_clashes, variables


class OneSentence(Claim, frozen=True):
    """What is said in one sentence, which may end with the words of a program."""

    family = "machine"

    def sentence(self) -> str:
        """Without its full stop."""
        return self.sentences("sentence")[0]

    def message(self) -> str:
        return f"{self.sentence()}."


class FailedTest(OneSentence, frozen=True, kw_only=True):
    """A test of communication that did not come out right. host: where it ran, of several. said: by itself."""

    test: str
    outcome: str
    host: str | None = None
    after_s: float | None = None
    said: str = ""


class WrongOnMachine(OneSentence, frozen=True, kw_only=True):
    """What is wrong on a machine. hosts: those that it is on, where it is not on all; more: how many are not listed."""

    what: str
    found: str
    because: str = ""
    hosts: tuple[str, ...] = ()
    more: int | None = None


# What tests of communication show: traceops/doctor runs and judges them.
TEST_FAILED = described("machine", "TO-D601", JudgedBy.DOCTOR)
SLOW_VARIABLE = described("machine", "TO-D602", JudgedBy.DOCTOR)
PAIRS = described("machine", "TO-D603", JudgedBy.DOCTOR)
DEVICE = described("machine", "TO-D604", JudgedBy.DOCTOR)
NODES = described("machine", "TO-D605", JudgedBy.DOCTOR)
SLOW_ALL_REDUCE = described("machine", "TO-D606", JudgedBy.DOCTOR)
COMES_AND_GOES = described("machine", "TO-D607", JudgedBy.DOCTOR)
TESTS = (TEST_FAILED, SLOW_VARIABLE, PAIRS, DEVICE, NODES, SLOW_ALL_REDUCE, COMES_AND_GOES)

_VARIABLES = (
    *variables.RULES,
    *variable_clashes.COSTLY_RULES,
    *variable_clashes.RULES,
    *variable_clashes.VARIABLE_CLASHES_RULES,
)

# Area of the looks that tell of it -> its rules.
AREAS: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("GPU", (*gpus.GPUS_RULES, *gpus.RULES, *gpus.XID_RULES)),
    ("NVLink", links.NVLINK_RULES),
    ("PCIe", (*links.RULES, platform.IOMMU_ACS)),
    ("network", (*network.RULES, *network.RDMA_RULES, *network.EFA_RULES, *network.GPUDIRECT_RULES)),
    ("memory", (limits.SHARED_MEMORY,)),
    ("limits", limits.LIMITS_RULES),
    ("NUMA", limits.RULES),
    ("container", (platform.CONTAINER_GPUS,)),
    ("environment", _VARIABLES),
    ("driver", (platform.DRIVER,)),
    ("software", platform.RULES),
    ("tests", TESTS),
)
RULES: tuple[Rule, ...] = tuple(sorted((rule for _, rules in AREAS for rule in rules), key=lambda rule: rule.id))
_BY_ID = {rule.id: rule for rule in RULES}
_SEVERITIES: dict[Level, Severity] = {"note": "info", "warning": "warning", "error": "error"}
_NOT_LOOKED_AT = "this machine was not looked at"
_MOST_HOSTS = 8


def wrong_looks(looks: Sequence[Look]) -> list[Look]:
    """Looks that are not all right, also those that could not be made. Of a variable whose cost was measured, what is
    usually said of it is left out."""
    measured = {name for look in looks if look.level != "ok" for name in look.facts.get("variables", ())}
    return [look for look in looks if look.level != "ok" and not (look.area == "environment" and look.what in measured)]


def judge_looks(looks: Sequence[Look], hosts: Sequence[str], tested: bool) -> list[Verdict]:
    """A verdict for each rule of a machine. hosts: all that were looked at; tested: communication was, too."""
    findings: dict[str, list[Finding]] = {}
    # Looks that say the same of several hosts together
    merged: dict[tuple[str, ...], list[Look]] = {}
    for look in wrong_looks(looks):
        key = (look.area, look.what, look.found, look.level, look.why, look.advice, look.rule)
        merged.setdefault(key, []).append(look)
    for same in list(merged.values()):
        if (rule := _BY_ID.get(same[0].rule)) is not None and same[0].level in _SEVERITIES:
            findings.setdefault(rule.id, []).append(_finding(rule, same, hosts))
    return [
        rule.verdict(*findings[rule.id]) if rule.id in findings else _without_findings(rule, area, looks, tested)
        for area, rules in AREAS
        for rule in rules
        if rule is not TEST_FAILED
    ]


def _finding(rule: Rule, same: Sequence[Look], hosts: Sequence[str]) -> Finding:
    look = same[0]
    on = list(dict.fromkeys(one.host for one in same))
    if len(hosts) == 1 or len(on) == len(hosts):
        on = []
    claim = WrongOnMachine(
        what=look.what,
        found=look.found,
        because=look.why.rstrip("."),
        hosts=tuple(on[:_MOST_HOSTS]),
        more=len(on) - _MOST_HOSTS if len(on) > _MOST_HOSTS else None,
    )
    numbers = [
        Evidence(Fact.MACHINE_NUMBER, value, subject=name.replace("_", " "))
        for name, value in look.facts.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    evidence = [Evidence(Fact.MACHINE, look.found, subject=look.what), *numbers]
    found = rule.finding(_SEVERITIES[look.level], "high", claim, evidence)
    return replace(found, advice=look.advice) if look.advice else found


def _without_findings(rule: Rule, area: str, looks: Sequence[Look], tested: bool) -> Verdict:
    """Clear where the rule, or at least its area, was judged on some host."""
    own = [look for look in looks if look.rule == rule.id]
    ran = tested and area == "tests"
    about = own or [look for look in looks if look.area == area and not ran]
    if fine := [look for look in about if look.level != "not_evaluated"]:
        return rule.clear(fine[0].found if own else "")
    if about:
        return rule.not_evaluated(about[0].why)
    if ran:
        return rule.clear("")
    unseen = next((look.why for look in looks if look.level == "not_evaluated" and look.area == "GPU"), "")
    return rule.not_evaluated(unseen or _NOT_LOOKED_AT)
