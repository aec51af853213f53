"""Comparisons of every verdict for the renderers' tests, with names that try to break out of each format."""

from __future__ import annotations

from datetime import date
from typing import Any

from changed import replace

from traceops.compare.model import (
    CaptureInfo,
    Change,
    Comparison,
    ComparisonVerdict,
    Explanation,
    MetricChange,
    OutlierStep,
    Samples,
    Side,
    StepPoint,
    Waiver,
)
from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.measure.ledger import BUCKETS
from traceops.rules.registry import BY_ID

HOSTILE = (
    "</script><img src=x onerror=alert(1)> | `a` ``b`` \\| @all #123 GH-7 o/r#4 http://evil.example www.evil.example "
    ":tada: ]]> --> ::error::x ##[add-mask]y %0A $x$ *b* _i_ [l](http://evil) \u202e\x1b[31m\x00\x0b\u2028\r\n# h\n"
)
COMMIT = "db015ac0123456789abcdef0123456789abcdef0"

STEP_MS = {"base": 60.0, "head": 63.0}
STEP = MetricChange(
    "step_time", "step time", "ms", "time", "lower", 60.114, 63.24, "regression",
    "it grew by 5.2 %, at least 3.9 %, and the threshold is 5 %",
    change=3.126, change_pct=5.2, low_pct=3.9, high_pct=6.6, p=0.0004, mde_pct=1.6, threshold_pct=5.0,
    samples=Samples(60, 60),
)  # fmt: skip
EXPOSED = MetricChange(
    "exposed_comm", "exposed communication", "ms", "communication", "lower", 4.0, 4.02, "unchanged",
    "within its threshold", change=0.02, change_pct=0.03, low_pct=-0.4, high_pct=0.5, p=0.9, mde_pct=0.8,
    threshold_pct=2.0, of_step=True, samples=Samples(60, 60),
)  # fmt: skip
KERNELS = MetricChange(
    "kernels", "kernels per step", "", "exact", "lower", 1204.0, 1206.0, "informative", "counted exactly",
    change=2.0, change_pct=0.1661, samples=Samples(3, 3),
)  # fmt: skip
MEMORY = MetricChange(
    "peak_memory", "peak memory", "B", "exact", "lower", 33_603_584.0, 33_607_680.0, "informative",
    "counted exactly", change=4096.0, change_pct=0.0122,
)  # fmt: skip
UNKNOWN = MetricChange(
    "busbw", "bus bandwidth", "GB/s", "communication", "higher", None, 120.0, "informative",
    "not known in the base",
)  # fmt: skip


def sample_comparison(verdict: ComparisonVerdict = "regression", hostile: str = HOSTILE) -> Comparison:
    """3 captures of 20 steps a side, in turn; 5.2 % slower by a new kernel and `.item()` calls."""
    return Comparison(
        verdict=verdict,
        sentence=f"Step time regressed by 5.2 %. {hostile}",
        base=_side("base", hostile),
        head=_side("head", hostile),
        metrics=(_step(verdict), EXPOSED, *_ledger(), KERNELS, MEMORY, UNKNOWN, _named(hostile)),
        explanations=(
            Explanation(
                "new_kernel", f"1 new kernel: {hostile}", 2.1, ("compute",), (Evidence(Fact.OTHER, 2.1, subject="ms"),)
            ),
            Explanation("blocking", "3 blocking calls per step more", 0.9, ("idle_sync",)),
            Explanation("communication", "all-reduce is faster", -0.2, ("comm_transfer",)),
            Explanation("other", "what is left", 0.3),
        ),
        changes=_changes(hostile),
        unchanged=("collectives: 12 a step, as before", hostile),
        outliers=(OutlierStep("head", "head_1", 7, True, 95.1, 63.2),),
        new_findings=(_finding("TO-I003", "error", hostile), _finding("TO-I002", "info", "second")),
        gone_findings=(_finding("TO-O001", "warning", hostile),),
        findings=() if verdict != "regression" else (_finding("TO-R001", "error", hostile),),
        checks=(Check("TO-R001", "fired" if verdict == "regression" else "clear", hostile),),
        warnings=(hostile, "torch 2.11 against 2.12"),
        notes=(hostile,),
        paired=True,
        settings={"seed": 1, "thresholds": {"step_time": 5.0}, "until": date(2027, 1, 31), "name": hostile},
        steps=_steps(),
    )


def single_captures(**changes: Any) -> Comparison:
    """One capture a side, nothing found: the least a comparison can hold."""
    sample = sample_comparison("no_regression", "plain")
    bare = replace(
        sample,
        sentence="No regression of step time.",
        base=replace(sample.base, captures=sample.base.captures[:1]),
        head=replace(sample.head, captures=sample.head.captures[:1], run={}),
        metrics=(replace(_step("no_regression"), low_pct=None, high_pct=None, mde_pct=None),),
        explanations=(), changes=(), unchanged=(), outliers=(), new_findings=(), gone_findings=(), checks=(),
        warnings=(), notes=(), paired=False, launch_noise_pct=0.8, settings={}, steps=(),
    )  # fmt: skip
    return replace(bare, **changes)


def many_changes(count: int = 5000) -> Comparison:
    """So many changes, with kernel names of 4,000 characters, that no comment can hold them."""
    name = "void " + "at::native::|`<é>" * 250
    changes = tuple(
        Change("kernel", "new", f"{name[:3990]}{n:05}", "", None, 2.0, None, n / 1000, "shape [8, 8]" * 40)
        for n in range(count)
    )
    sample = sample_comparison()
    metrics = tuple(replace(KERNELS, metric=f"m{n}", label=f"{name[:3990]}{n:05}") for n in range(500))
    findings = tuple(_finding("TO-I003", "error", HOSTILE * 40) for _ in range(200))
    return replace(
        sample,
        sentence="a|" * 5000,
        changes=(*changes, *sample.changes),
        metrics=(*sample.metrics, *metrics),
        new_findings=findings,
        notes=("`" * 9000,) * 50,
        warnings=("@" * 9000,) * 50,
    )


def waived() -> Comparison:
    """The regression, accepted until a day."""
    waiver = Waiver("step_time", "needed for the new loss", date(2027, 1, 31), 8.0)
    metric = replace(STEP, outcome="waived", waiver=waiver)
    sample = sample_comparison("no_regression")
    return replace(sample, metrics=(metric, *sample.metrics[1:]), findings=())


def _step(verdict: ComparisonVerdict) -> MetricChange:
    if verdict == "regression":
        return STEP
    if verdict == "improvement":
        return replace(
            STEP, head=57.0, outcome="improvement", reason="faster", change=-3.114, change_pct=-5.18, low_pct=-6.6,
            high_pct=-3.9,
        )  # fmt: skip
    if verdict == "inconclusive":
        return replace(
            STEP, outcome="inconclusive", reason="4 steps are too few", low_pct=-2.0, high_pct=12.0, mde_pct=9.0
        )
    return replace(
        STEP, head=60.2, outcome="unchanged", reason="no change was found", change=0.086, change_pct=0.14,
        low_pct=-0.9, high_pct=1.2,
    )  # fmt: skip


def _named(hostile: str) -> MetricChange:
    return replace(UNKNOWN, metric="hostile", label=f"bandwidth of {hostile}", reason=hostile)


def _ledger() -> list[MetricChange]:
    values = {
        "compute": (40.0, 42.1), "comm_transfer": (4.0, 3.8), "comm_wait": (10.0, 10.0), "memory": (0.1, 0.1),
        "idle_sync": (1.0, 1.9), "idle_host": (5.0, 5.3),
    }  # fmt: skip
    return [
        MetricChange(
            bucket, BUCKET_WORDS[bucket].metric, "ms", "ledger", "lower",
            *values.get(bucket, (0.0, 0.0)), "informative", "",
            change=(change := values.get(bucket, (0.0, 0.0))[1] - values.get(bucket, (0.0, 0.0))[0]),
            change_pct=change / 0.6, low_pct=change / 0.6 - 0.3, high_pct=change / 0.6 + 0.3, of_step=True,
        )
        for bucket in BUCKETS
    ]  # fmt: skip


def _side(label: str, hostile: str) -> Side:
    began = 1_795_258_081_060_300_389 + 30_000_000_000 * (label == "head")
    captures = tuple(
        CaptureInfo(f"{label}_{n}", f"profile/{label}_{n}{hostile}", began + n * 60_000_000_000, COMMIT, n > 1, 8, 12)
        for n in (1, 2, 3)
    )
    run = {
        "name": hostile, "world_size": 2, "ranks_present": [0, 1], "ranks_missing": [], "hosts": ["vm"],
        "device": "cpu", "backend": "gloo", "torch_version": "2.11", "nccl_version": None, "strategy": "pytorch_ddp",
        "steps": [18, 19], "command": ["runners/train.py", "--steps", "8"],
    }  # fmt: skip
    return Side(f"{label} {hostile}", captures, run)


def _changes(hostile: str) -> tuple[Change, ...]:
    return (
        Change("kernel", "new", f"void at::native::{hostile}<float>(int)", "", None, 2.0, None, 2.1, hostile),
        Change("kernel", "renamed", "gemm_f32", f"gemm_tf32 {hostile}", 12.0, 12.0, 3.0, 3.1),
        Change("operator", "changed", "aten::item", "aten::item", 1.0, 4.0, 0.3, 1.2, "[8, 8]"),
        Change("collective", "vanished", "all_reduce", "all_reduce", 0.5, None, 0.2, None, "2 ranks, 33.6 MB"),
        Change("blocking_call", "changed", "cudaStreamSynchronize", "cudaStreamSynchronize", 0.001, 3.0),
        Change("environment", "changed", "OMP_NUM_THREADS", "OMP_NUM_THREADS", base_value=None, head_value=hostile),
    )


def _finding(rule: str, severity: Any, message: str) -> Any:
    evidence = [Evidence(Fact.OTHER, 3.1, "ms/step", 1.0, subject=f"metric {message}")]
    return BY_ID[rule].finding(severity, "high", message, evidence, ranks=(0,), impact_ms=3.1, cause=None)


def _steps() -> tuple[StepPoint, ...]:
    return tuple(
        StepPoint(side, f"{side}_{n}", index, index >= 12, STEP_MS[side] + (index * 7 % 5) / 4 + n / 5)
        for n in (1, 2, 3)
        for side in ("base", "head")
        for index in range(20)
    )  # type: ignore[arg-type, misc]  # fmt: skip
