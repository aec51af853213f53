"""The planted faults: what each case does to the training, and what the report of it must say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


_NO_P2P = (("NCCL_P2P_DISABLE", "1"),)
_SOCKETS = (*_NO_P2P, ("NCCL_SHM_DISABLE", "1"))


def _of_group(kind: str, ranks: Iterable[int], share: float) -> tuple[Plant, ...]:
    """The same on each of these ranks, which must be told as a group and none of them alone."""
    return tuple(Plant(kind, rank, share, rule=None) for rank in ranks)


# In the order in which they are made and packed: what is most wanted comes first.
CASES: tuple[Case, ...] = (
    Case("healthy_ddp"),
    Case("slow_gpu", plants=(Plant("gpu", 6, 0.25),)),
    Case("slow_loader", plants=(Plant("loader", 1, 0.30, "input"),)),
    Case("slow_host", plants=(Plant("host", 3, 0.40, "host"),)),
    Case("slow_copy", plants=(Plant("copy", 4, 0.30, "copy"),)),
    Case("late_step", plants=(Plant("gpu", 5, 0.60, rule="TO-S002", once=True),)),
    Case("healthy_fsdp2", "pytorch_zero3"),
    Case("slow_fsdp2", "pytorch_zero3", plants=(Plant("gpu", 2, 0.25),)),
    Case("sockets", rules=("TO-C001",), env=_SOCKETS),
    Case("no_p2p", rules=("TO-C001",), env=_NO_P2P),
    Case("one_bucket", rules=("TO-O003",), bucket_mb=10000.0),
    Case("usual_buckets", shape="narrow"),
    Case("tiny_buckets", rules=("TO-O002",), bucket_mb=1.0, shape="narrow", twin="usual_buckets"),
    Case("item_sync", plants=(Plant("items", None, 40, "other"),), rules=("TO-I003",), shape="half"),
    Case("uneven_batch", plants=(Plant("batch", 7, 0.50),)),
    Case("two_slow", plants=(Plant("gpu", 1, 0.25), Plant("gpu", 3, 0.25)), min_world=4),
    Case("two_slow_mixed", plants=(Plant("gpu", 0, 0.30), Plant("loader", 2, 0.30, "input")), min_world=4),
    Case("healthy_hsdp", "pytorch_hsdp", min_world=4),
    Case("slow_hsdp", "pytorch_hsdp", plants=(Plant("gpu", 5, 0.25),), min_world=4),
    Case("host_hsdp", "pytorch_hsdp", plants=(Plant("host", 2, 0.40, "host"),), min_world=4),
    Case("slow_loader_all", plants=(Plant("fetch", None, 0.30, "input"),), rules=("TO-I002",)),
    Case("slow_gpu_small", plants=(Plant("gpu", 3, 0.05, rule=None),)),
    Case("healthy_zero1", "pytorch_zero1"),
    # Two troubles of unlike cause at once: both must be named.
    Case("slow_no_p2p", plants=(Plant("gpu", 1, 0.30),), rules=("TO-C001",), env=_NO_P2P),
    Case("starved_slow", plants=(Plant("fetch", None, 0.30, "input"), Plant("gpu", 1, 0.30)), rules=("TO-I002",)),
    Case("host_and_input", plants=(Plant("host", 1, 0.40, "host"), Plant("loader", 2, 0.40, "input")), min_world=4),
    # What one of two ranks loses hides a part of what the other does.
    Case("host_beside_input", plants=(Plant("host", 1, 0.80, "host"), Plant("loader", 0, 0.30, rule=None))),
    # The same work by other kernels.
    Case("other_precision", plants=(Plant("precision", 1, 0.0),)),
    Case("other_attention", plants=(Plant("attention", 1, 0.0),)),
    # Groups of ranks, on CPUs or with several ranks on a GPU (gloo).
    Case("healthy_many", min_world=8),
    Case(
        "host_and_input_of_many",
        plants=(Plant("host", 1, 0.40, "host"), Plant("loader", 6, 0.40, "input")),
        min_world=8,
    ),
    Case("group_host", plants=_of_group("host", range(4, 8), 0.40), rules=("TO-S003",), min_world=8),
    Case("group_input", plants=_of_group("loader", range(4, 8), 0.40), rules=("TO-S003",), min_world=8),
    Case("group_batch", plants=_of_group("batch", range(4, 8), 0.75), rules=("TO-S003",), min_world=8),
    Case("group_gpu", plants=_of_group("gpu", range(4, 8), 0.40), rules=("TO-S003",), min_world=8),
    Case("group_copy", plants=_of_group("copy", range(4, 8), 0.40), rules=("TO-S003",), min_world=8),
    Case(
        "group_mixed",
        plants=(*_of_group("gpu", range(4, 8), 0.30), *_of_group("copy", range(4, 8), 0.30)),
        rules=("TO-S003",),
        min_world=8,
    ),
    Case(
        "two_groups",
        plants=(*_of_group("host", range(4, 8), 0.30), *_of_group("loader", range(8, 12), 0.50)),
        rules=("TO-S003",),
        min_world=16,
    ),
)
# Captured many times, to be compared with each other (compare/gate.py): every rank is as much slower.
GATE_CASES: tuple[Case, ...] = (
    Case("same"),
    Case("compute_02", plants=(Plant("gpu", None, 0.02),)),
    Case("compute_05", plants=(Plant("gpu", None, 0.05),)),
    Case("compute_10", plants=(Plant("gpu", None, 0.10),)),
    Case("input_05", plants=(Plant("fetch", None, 0.05, "input"),)),
    Case("input_10", plants=(Plant("fetch", None, 0.10, "input"),)),
)
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
