"""The rules: id, what it means when it fires, and what to do about it. Ids are a contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.core.findings import SEVERITIES, Check, Confidence, Evidence, Finding, Severity
from traceops.core.rule import Rule
from traceops.rules.fabric_texts import FABRIC_RULES
from traceops.rules.hang_texts import HANG_RULES

_PLANNED = "not judged by this version of traceops"
_ELSEWHERE = {"TO-R001": "not judged of one run alone; traceops compare judges it"}

_LATE_BY_CAUSE = (
    (
        "gpu_compute",
        "Compare this GPU's clocks, temperature and power with its peers' (nvidia-smi -q -d PERFORMANCE,CLOCK), look "
        "for another process on it, and for a larger batch or longer sequences on this rank.",
    ),
    (
        "host",
        "Look at the rank's CPU binding and NUMA node, for other processes on its cores, and for logging, metrics or "
        "checkpoints that only this rank does.",
    ),
    (
        "input",
        "Look at the loader, the data shard and the storage of this rank: more workers (num_workers), prefetch_factor, "
        "samples of even size.",
    ),
    (
        "copy",
        "Pin the memory this rank copies from and use non_blocking=True; check its GPU's PCIe generation and width "
        "against its siblings' (nvidia-smi -q).",
    ),
)

RULES: tuple[Rule, ...] = (
    Rule(
        "TO-V001",
        "Ranks of the world have no trace",
        "Collect the missing ranks' traces: a straggler among them cannot be seen, and collectives they belong to "
        "cannot be split into waiting and transfer.",
        True,
        "Fires where the world size in run.json or in the traces is larger than the number of ranks found.",
    ),
    Rule(
        "TO-V002",
        "A trace is truncated or damaged",
        "Capture again, or copy the file again; check the disk's free space and that the job was not killed while "
        "it wrote. What could be read is used.",
        True,
        "Fires for every file that looks like a trace and is empty, cut off, not JSON, a second trace of one rank "
        "or of another run.",
    ),
    Rule(
        "TO-V003",
        "Ranks cover different steps",
        "Start all ranks' profilers at the same step: use `traceops run`, or one schedule everywhere.",
        True,
        "Fires where the step numbers differ between ranks.",
    ),
    Rule(
        "TO-V004",
        "No gradient synchronisation inside backward",
        "If this window is gradient accumulation under no_sync(), capture a window with an optimizer step; "
        "otherwise the gradients are not synchronised while backward runs, and nothing can overlap with it.",
        True,
        "Fires where the strategy, or DDP or FSDP seen in the trace, synchronises inside backward, and no "
        "collective was launched between backward's first and last function in any step.",
    ),
    Rule(
        "TO-V005",
        "The profiler itself slowed the steps",
        "Trust shares of device time, not the host's: leave stacks, shapes and memory off, and compare with the "
        "unprofiled step time.",
        True,
        "Compares the median profiled with the median unprofiled step of the same run: info from 10 %, warning "
        "from 30 %.",
    ),
    Rule(
        "TO-V006",
        "Clocks cannot be aligned well enough",
        "Keep the hosts' clocks in step (chrony, PTP), and capture longer windows: every all-reduce, all-gather or "
        "reduce-scatter is an anchor. Do not compare positions of ranks in the merged timeline.",
        True,
        "Warning where the ends of matched collectives still differ between ranks by more than 5 % of the step "
        "(median) after offset and drift are taken out; info where ranks share too few collectives with the others.",
    ),
    Rule(
        "TO-S001",
        "A rank is persistently late and makes the others wait",
        "Compare what this rank does in a step with a peer's, in the merged timeline (traceops view).",
        True,
        "Fires where a rank causes 10 % or more of all waiting, running it at its peers' pace saves 10 % of the step "
        "(warning; error from 20 %) in most steps, the others are seen to wait, and a permutation test puts chance "
        "at 12 % or less. Info where the others wait 10 % of the step for one rank but would hardly be faster "
        "without it, or where the cause is the host and the profiler slowed the steps by more than 20 %, or by an "
        "unknown amount in a run that its hosts bound anyway.",
        _LATE_BY_CAUSE,
    ),
    Rule(
        "TO-S002",
        "A rank is late in some steps only",
        "Look at what that rank does in those steps only: checkpointing, evaluation, logging, garbage collection, a "
        "longer sample, a data shard's end, a neighbour on the same host. See the steps in the merged timeline.",
        True,
        "As TO-S001, for a rank late in at most half of the steps: info where it costs 10 % of a step or more in the "
        "worst of them, warning from 25 %, error where the mean over all steps reaches 20 %.",
    ),
    Rule(
        "TO-O001",
        "Communication is exposed",
        "Let communication run beside backward: smaller first bucket (bucket_cap_mb), prefetching in FSDP, "
        "gradient accumulation with no_sync(), lower precision for communication; and check with the bus "
        "bandwidth below whether the link itself is slow.",
        True,
        "Time a step spends in transfer (waiting for late ranks not counted) that nothing hides, median over "
        "ranks: info from 10 % of the step, warning from 20 %, error from 40 %.",
    ),
    Rule(
        "TO-O002",
        "Many small collectives",
        "Send fewer and larger messages: DDP's bucket_cap_mb (25 is the default), one flat buffer or "
        "all_reduce_coalesced instead of a call a parameter, larger FSDP units.",
        True,
        "At least 20 collectives a step below 4 MB that reach less than a quarter of what their link gives (where that "
        "is not known, of their group's best): info where their transfer takes 2 % of the step, hidden or not, or "
        "their exposed transfer 5 %, warning from 10 %, error from 25 %.",
    ),
    Rule(
        "TO-O003",
        "Communication starts only after backward ended",
        "Let gradients leave while backward still computes: smaller buckets (DDP's bucket_cap_mb; one bucket as large "
        "as the model can only leave at the end), hooks on parameters, or FSDP units per block.",
        True,
        "90 % or more of the transfer of all-reduces and reduce-scatters lies behind backward's last kernel, on every "
        "rank: info where exposed transfer takes 3 % of the step, warning from 10 %, error from 25 %.",
    ),
    Rule(
        "TO-I001",
        "GPUs starve: kernels wait for the host to launch them",
        "Give the GPU more work per launch: a larger batch, torch.compile or CUDA graphs, fused optimizers "
        "(fused=True); look for Python work in the step, and for too few CPU cores per rank.",
        True,
        "Idle time that ends with a kernel launched after the idle time began, on the worst rank: info from 10 % "
        "of the step, warning from 20 %, error from 40 %.",
    ),
    Rule(
        "TO-I002",
        "Waiting for input",
        "Load ahead of need: more DataLoader workers (num_workers), prefetch_factor, pin_memory with "
        "non_blocking copies, cheaper transforms, data nearer to the node.",
        True,
        "Idle time in which the launching thread was inside data loading, on the worst rank: info from 5 % of the "
        "step, warning from 10 %, error from 30 %.",
    ),
    Rule(
        "TO-I003",
        "The host blocks on the device inside the step",
        "Keep values on the device: no .item(), .cpu(), print or `if tensor` in the step; log every N steps; use "
        "non_blocking=True and torch.where.",
        True,
        "Idle time that began while the launching thread waited in a device synchronisation, on the worst rank: "
        "info from 1 % of the step, warning from 3 %, error from 15 %.",
    ),
    *FABRIC_RULES,
    *HANG_RULES,
    Rule("TO-M001", "A rank is near or over its memory", ""),
    Rule("TO-M002", "Memory is lost to fragmentation or imbalance", ""),
    Rule(
        "TO-R001",
        "A metric regressed",
        "The explanations below the verdict say what changed, the first one most likely why. Where it is accepted, "
        "write a waiver with a reason and a day it ends into traceops.toml.",
        True,
        "`traceops compare` only: a gated metric is worse by more than its threshold, and (unless it is exact) its "
        "interval excludes zero after Holm's correction.",
    ),
)
BY_ID = {rule.id: rule for rule in RULES}


@dataclass(frozen=True)
class Verdict:
    """What one rule's judge says: findings, or why there are none."""

    rule: str
    findings: tuple[Finding, ...] = ()
    not_evaluated: str = ""
    clear: str = ""


def finding(
    rule: str,
    severity: Severity,
    confidence: Confidence,
    message: str,
    evidence: Sequence[Evidence],
    *,
    ranks: Sequence[int] = (),
    steps: Sequence[int] = (),
    impact_ms: float | None = None,
    cause: str | None = None,
) -> Finding:
    """A finding of a rule, with the rule's title and advice. No evidence, no finding."""
    if not evidence:
        raise ValueError(f"{rule}: a finding needs evidence")
    return Finding(
        rule=rule,
        severity=severity,
        confidence=confidence,
        title=BY_ID[rule].title,
        message=message,
        evidence=tuple(evidence),
        ranks=tuple(ranks),
        steps=tuple(steps),
        impact_ms=impact_ms,
        cause=cause,
        advice=BY_ID[rule].advice_for(cause),
    )


def severity_of(value: float, info: float, warning: float, error: float = float("inf")) -> Severity | None:
    """The severity a value reaches, None below all bounds."""
    for severity, bound in (("error", error), ("warning", warning), ("info", info)):
        if value >= bound:
            return severity  # type: ignore[return-value]
    return None


def most_important_first(findings: Sequence[Finding]) -> list[Finding]:
    """By severity, then by what a step loses, so that the first is the one to fix first.

    What is wrong with the fabric comes before the low bandwidth that it causes.
    """
    return sorted(
        findings,
        key=lambda f: (
            -SEVERITIES.index(f.severity), -(f.impact_ms or 0.0), not f.rule.startswith("TO-P"), f.rule,
        ),
    )  # fmt: skip


def judged_checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """One line for each rule that has a verdict."""
    judged = {verdict.rule for verdict in verdicts}
    return [check for check in checks(verdicts) if check.rule in judged]


def checks(verdicts: Sequence[Verdict]) -> list[Check]:
    """One line for each rule there is, also for those that nobody judged."""
    by_rule = {verdict.rule: verdict for verdict in verdicts}
    result = []
    for rule in RULES:
        verdict = by_rule.get(rule.id)
        if verdict is None:
            result.append(Check(rule.id, "not_evaluated", _ELSEWHERE.get(rule.id, _PLANNED)))
        elif verdict.findings:
            result.append(Check(rule.id, "fired", verdict.findings[0].message))
        elif verdict.not_evaluated:
            result.append(Check(rule.id, "not_evaluated", verdict.not_evaluated))
        else:
            result.append(Check(rule.id, "clear", verdict.clear))
    return result
