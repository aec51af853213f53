"""The planted faults: what each case does to the training, and what the report of it must say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import read_records

STRAGGLER = ("TO-S001", "TO-S002")
# None of these may come above info where it is not the fault that was planted.
QUIET = (*STRAGGLER, "TO-C001", "TO-C002", "TO-O002", "TO-O003")

# Which case shows a strategy without a fault: what a "what if" of the others is compared with.
HEALTHY = {
    "pytorch_ddp": "healthy_ddp",
    "pytorch_zero3": "healthy_fsdp2",
    "pytorch_hsdp": "healthy_hsdp",
    "pytorch_zero1": "healthy_zero1",
}


@dataclass(frozen=True)
class Plant:
    """A fault on one rank and the finding it must lead to.

    kind: gpu (matrix products inside forward), host (Python between forward and backward), loader (sleep in
    the DataLoader), fetch (sleep in `dataloader_next`), copy (pageable copies to the device), batch (a larger
    batch), items (`.item()` calls), precision (TF32 in place of bf16), attention (no fused kernel for it).
    rank: any number, taken modulo the world; None is every rank.
    share: of a healthy step that it costs; of the batch for batch; the number of calls for items. precision and
    attention cost what they cost.
    rule: of the finding it must lead to; None if it must not be reported above info.
    once: in one recorded step only.
    """

    kind: str
    rank: int | None
    share: float
    cause: str = "gpu_compute"
    rule: str | None = "TO-S001"
    once: bool = False


@dataclass(frozen=True)
class Case:
    """One run. rules: further rules that must fire, whatever they name.

    shape: full, half (of the batch) or narrow (so many tokens and so little width that gradients are small).
    twin: the run without the fault, where that is not the healthy one of the strategy. The rules need not fire where
    the fault costs next to nothing beside it.
    """

    name: str
    strategy: str = "pytorch_ddp"
    plants: tuple[Plant, ...] = ()
    rules: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    bucket_mb: float = 25.0
    shape: str = "full"
    min_world: int = 2
    twin: str | None = None

    @property
    def healthy(self) -> str | None:
        """The case that shows its model and batch without the fault."""
        return self.twin or (HEALTHY[self.strategy] if self.shape == "full" else None)

    @property
    def comparable(self) -> bool:
        """Whether only the plants tell it from the healthy case of its strategy."""
        return self.shape == "full" and not self.env and self.bucket_mb == 25.0


# In the order in which they are made and packed: what is most wanted comes first.
CASES = read_records(Path(__file__).with_name("cases.jsonl"), Case)
# Captured many times, to be compared with each other (compare/gate.py): every rank is as much slower.
GATE_CASES = read_records(Path(__file__).with_name("gate_cases.jsonl"), Case)
BY_NAME = {case.name: case for case in (*CASES, *GATE_CASES)}


@dataclass(frozen=True)
class ExpectedFinding:
    """A straggler that must be found; `step` is the one it was late in, None where it always was."""

    rule: str
    rank: int
    cause: str
    step: int | None = None


@dataclass(frozen=True)
class Expectation:
    """What a report must and must not say.

    findings: stragglers. rules: further rules that must fire. quiet: rules that must not fire above info,
    for ranks other than the expected ones. spared: ranks with a fault too small to be reported above info.
    """

    findings: tuple[ExpectedFinding, ...] = ()
    rules: tuple[str, ...] = ()
    quiet: tuple[str, ...] = QUIET
    spared: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """The stragglers."""
        return tuple(sorted(finding.rank for finding in self.findings))


def rank_of(plant: Plant, world: int, shift: int = 0) -> int | None:
    """The rank that gets the fault in a run of `world` ranks, all plants moved on by `shift`."""
    return None if plant.rank is None else (plant.rank + shift) % world


def expectation(case: Case, world: int, shift: int, late_step: int | None) -> Expectation:
    """What the report of `case` must say, made on `world` ranks; `late_step` is the step of `once` plants."""
    findings, spared = [], []
    for plant in case.plants:
        rank = rank_of(plant, world, shift)
        if rank is None:
            continue
        if plant.rule is None:
            spared.append(rank)
        else:
            findings.append(ExpectedFinding(plant.rule, rank, plant.cause, late_step if plant.once else None))
    quiet = tuple(rule for rule in QUIET if rule not in case.rules)
    return Expectation(tuple(findings), case.rules, quiet, tuple(spared))
