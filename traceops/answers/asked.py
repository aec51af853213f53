"""What can be asked of a run, and with which words it is narrowed down. `--help` reads this, so it imports nothing."""

from __future__ import annotations

from dataclasses import dataclass

SUMMARY = "summary"


@dataclass(frozen=True)
class Question:
    """`about` is one line of help; `narrowed_by` are fields of `Asked` that this question takes."""

    name: str
    about: str
    narrowed_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A question with what narrows it down; empty means all. ranks, steps: those numbers. group: a group's name or
    role, or a part of the name. op, name: a part of it. kind: of kernels. severity: the least one. by: the column that
    orders the rows, most first. top: how many rows."""

    question: str = SUMMARY
    rule: str = ""
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    group: str = ""
    op: str = ""
    kind: str = ""
    name: str = ""
    severity: str = ""
    by: str = ""
    top: int | None = None


_ORDERED = ("by", "top")
QUESTIONS: tuple[Question, ...] = (
    Question(SUMMARY, "The verdict, the step, where it goes, findings, and what would help most."),
    Question("findings", "All findings, worst first, without their evidence.", ("severity", "ranks")),
    Question("finding", "One finding with its evidence, or why its rule has none: TO-S001.", ("rule",)),
    Question("ledger", "Where a step goes, ms a bucket: the median over ranks, or one rank.", ("ranks",)),
    Question("what-if", "What a change would save, by replay of the steps; the largest saving first.", ("top",)),
    Question("ranks", "One row a rank; the ranks that others wait for come first.", ("ranks", *_ORDERED)),
    Question("steps", "One row a rank and step; the longest come first.", ("ranks", "steps", *_ORDERED)),
    Question("collectives", "A row a group, operation and size; most time first.", ("group", "op", "ranks", *_ORDERED)),
    Question("kernels", "One row a kernel, over all ranks; the longest total time first.", ("kind", "name", *_ORDERED)),
    Question("roles", "Communication by kind of group (data, tensor, …); the most exposed first."),
    Question("hang", "A hang: which ranks wait for which, and the cause.", ("ranks",)),
    Question("events", "What the monitor of a run found while it trained; the oldest first.", ("ranks",)),
    Question("checks", "The result of each rule: fired, clear, or why it could not be judged.", ("rule",)),
)
BY_NAME: dict[str, Question] = {question.name: question for question in QUESTIONS}
