"""Uses with their work and least times, and which of them a cause has already explained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from msgspec import Struct, field

from traceops.compute.attainable import Gpu, attainable_ns, unit_of_use
from traceops.compute.kernels import Unit
from traceops.compute.model import Cause, Loss
from traceops.compute.uses import Launched, Use, Uses, find_uses
from traceops.compute.work import Work, work_of
from traceops.core.arrays import Int


class Judged(Struct, dict=True):
    """One use. ns, attainable_ns (of all calls), calls and launches: per step."""

    use: Use
    work: Work
    unit: Unit
    ns: float
    calls: float
    launches: float
    attainable_ns: float | None
    cause: Cause | None = None

    @property
    def kind(self) -> str:
        return self.work.kind

    @property
    def over_ns(self) -> float:
        """What it takes beyond the least."""
        return max(self.ns - self.attainable_ns, 0.0) if self.attainable_ns is not None else 0.0

    @cached_property
    def numel(self) -> int:
        """Elements of the largest input."""
        return max((t.numel for t in self.use.inputs.tensors), default=0)


class Kernels(Struct):
    """All of a rank's kernels; causes claim uses, and each use has one cause."""

    all: list[Judged]
    order: list[Judged]  # of a typical step
    gpu: Gpu
    of_kernel: Int  # position in `all` of each launched kernel
    losses: list[Loss] = field(default_factory=list)

    @property
    def busy_ns(self) -> float:
        return sum((one.ns for one in self.all), 0.0)

    @property
    def launches(self) -> float:
        return sum((one.launches for one in self.all), 0.0)

    @property
    def training(self) -> bool:
        """Whether autograd's backward ran."""
        return any(one.use.node for one in self.all)

    def free(self, wanted: Callable[[Judged], bool] = lambda _: True) -> list[Judged]:
        """What no cause has explained yet."""
        return [one for one in self.all if one.cause is None and wanted(one)]

    def claim(
        self, cause: Cause, uses: Iterable[Judged], saved_ns: float, *, sizes: tuple[int, ...] = (),
        launches: float = 0.0, more_ns: float = 0.0,
    ) -> None:  # fmt: skip
        """These uses take `saved_ns` per step too long, for this cause."""
        chosen = sorted(uses, key=lambda one: -one.ns)
        total = sum(one.ns for one in chosen)
        if not chosen or (saved_ns <= 0 and more_ns <= 0):
            return
        for one in chosen:
            one.cause = cause
        self.losses.append(
            Loss(
                cause,
                float(min(saved_ns, total)),
                total,
                float(launches),
                tuple(dict.fromkeys(shown_name(one.use) for one in chosen))[:4],
                sizes,
                float(more_ns),
                _place_of(chosen),
            )
        )


def _place_of(uses: Sequence[Judged]) -> str:
    """Where most of their time is spent; '' where that is not known."""
    ns: defaultdict[str, float] = defaultdict(float)
    for one in uses:
        ns[one.use.place.said] += one.ns
    return max(ns, key=lambda said: ns[said])


def shown_name(use: Use) -> str:
    """An operator's name as a reader knows it; in backward with autograd's node."""
    name = use.name.removeprefix("aten::")
    return f"{use.node}: {name}" if use.node and use.node != name else name


def judge_uses(launched: Launched, gpu: Gpu) -> Kernels:
    """Every use with its work."""
    found: Uses = find_uses(launched)
    judged = []
    for use in found.uses:
        work = work_of(use)
        least = attainable_ns(use, work, gpu)
        judged.append(
            Judged(
                use,
                work,
                unit_of_use(use),
                use.ns / found.steps,
                use.calls / found.steps,
                use.launches / found.steps,
                None if least is None else least * use.calls / found.steps,
            )
        )
    return Kernels(judged, [judged[at] for at in found.order], gpu, found.of_kernel)
