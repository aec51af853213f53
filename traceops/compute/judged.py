"""Uses with their work and least times, and which of them a cause has already explained."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from msgspec import Struct, field

from traceops.compute.attainable import Gpu, attainable_ns, expected_ns, unit_of_use
from traceops.compute.model import Cause, KernelTime, KernelWork, Loss, OperatorTime, Phase
from traceops.compute.named import Unit
from traceops.compute.uses import Launched, Place, Tensor, Use, Uses, find_uses
from traceops.compute.work import Product, Work, work_of
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
    def tensors(self) -> Sequence[Tensor]:
        """Those among its inputs."""
        return self.use.inputs.tensors

    @property
    def over_ns(self) -> float:
        """What it takes beyond the least."""
        return max(self.ns - self.attainable_ns, 0.0) if self.attainable_ns is not None else 0.0

    @cached_property
    def numel(self) -> int:
        """Elements of the largest input."""
        return max((t.numel for t in self.tensors), default=0)


def time_of(uses: Iterable[Judged]) -> float:
    """What they take, ns per step."""
    return sum((one.ns for one in uses), 0.0)


def calls_of(uses: Iterable[Judged]) -> float:
    """How often they are called per step."""
    return sum((one.calls for one in uses), 0.0)


def launches_of(uses: Iterable[Judged]) -> float:
    """The kernels that they launch per step."""
    return sum((one.launches for one in uses), 0.0)


def call_ns(uses: Iterable[Judged]) -> float:
    """What one call of each takes, ns."""
    return sum((one.ns / one.calls for one in uses), 0.0)


class Kernels(Struct):
    """All of a rank's kernels; causes claim uses, and each use has one cause."""

    all: list[Judged]
    order: list[Judged]  # of a typical step
    gpu: Gpu
    of_kernel: Int  # position in `all` of each launched kernel
    losses: list[Loss] = field(default_factory=list)
    loops: list[Any] | None = None  # of `measure.find_loops`, once they are asked for

    @property
    def busy_ns(self) -> float:
        return time_of(self.all)

    @property
    def launches(self) -> float:
        return launches_of(self.all)

    @property
    def training(self) -> bool:
        """Whether a backward pass or an optimizer ran; old traces have no nodes of autograd."""
        return any(one.use.node or one.use.optimizing or "backward" in one.use.name for one in self.all)

    @property
    def norms_groups(self) -> bool:
        """Whether group norms run, which take longer with channels last."""
        return any("group_norm" in one.use.name for one in self.all)

    @property
    def changing(self) -> bool:
        """Whether passes of a step change the next: the optimizer runs again, or backward is differentiated."""
        updates = sum(own for own, _ in itertools.groupby(one.use.optimizing for one in self.order))
        return updates > 1 or any(one.use.again for one in self.all)

    def free(self, wanted: Callable[[Judged], bool] = lambda _: True) -> list[Judged]:
        """What no cause has explained yet."""
        return [one for one in self.all if one.cause is None and wanted(one)]

    def free_products(self) -> list[tuple[Judged, Product]]:
        """Products that no cause has explained yet, with their shapes."""
        return [(one, one.work.product) for one in self.free() if one.work.product is not None]

    def claim(
        self, cause: Cause, uses: Iterable[Judged], saved_ns: float, *, sizes: tuple[int, ...] = (),
        launches: float = 0.0, more_ns: float = 0.0, ns: float = 0.0,
    ) -> None:  # fmt: skip
        """These uses take `saved_ns` per step too long, for this cause. ns: of the kernels in question, if not all."""
        chosen = sorted(uses, key=lambda one: -one.ns)
        total = ns or time_of(chosen)
        if not chosen or max(saved_ns, more_ns) <= 0:
            return
        ns_at: defaultdict[str, float] = defaultdict(float)
        for one in chosen:
            one.cause = cause
            ns_at[one.use.place.said] += one.ns
        self.losses.append(
            Loss(
                cause,
                float(min(saved_ns, total)),
                total,
                float(launches),
                tuple(dict.fromkeys(shown_name(one.use) for one in chosen))[:4],
                sizes,
                float(more_ns),
                max(ns_at, key=lambda said: ns_at[said]),
            )
        )


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
        least = None if gpu.source == "assumed" else attainable_ns(use, work, gpu)
        fixed = expected_ns(work.kind, 0.0) * use.launches
        judged.append(
            Judged(
                use,
                work,
                unit_of_use(use),
                use.ns / found.steps,
                use.calls / found.steps,
                use.launches / found.steps,
                None if least is None else (least * use.calls + fixed) / found.steps,
            )
        )
    return Kernels(judged, [judged[at] for at in found.order], gpu, found.of_kernel)


_OPERATORS = 40  # that are kept one by one, by their time
_KERNELS = 3  # of an operator
_KERNELS_OF_ALL = 80


def operator_times(by_time: Sequence[Judged]) -> list[OperatorTime]:
    """Those that take most time, and the others of each place together."""
    rest: defaultdict[tuple[Phase, Place], list[Judged]] = defaultdict(list)
    for one in by_time[_OPERATORS:]:
        rest[_phase(one), one.use.place].append(one)
    return [*map(_operator, by_time[:_OPERATORS]), *(_together(uses, *key) for key, uses in rest.items())]


def _phase(one: Judged) -> Phase:
    return "optimizer" if one.use.optimizing else "backward" if one.use.node else "forward"


def _operator(one: Judged) -> OperatorTime:
    tensors, place, steps = one.use.inputs.tensors, one.use.place, one.use.calls / one.calls
    kernels = sorted(one.use.kernels.items(), key=lambda item: -item[1][1])[:_KERNELS]
    return OperatorTime(
        one.use.name,
        one.work.kind,
        " ".join("×".join(map(str, t.dims)) for t in tensors[:3] if t.dims),
        one.calls,
        one.ns,
        one.work.flops * one.calls,
        -1.0 if one.work.bytes is None else one.work.bytes * one.calls,
        -1.0 if one.attainable_ns is None else one.attainable_ns,
        one.cause,
        0.0 if one.attainable_ns is None else one.ns,
        _phase(one),
        place.module,
        place.line,
        tuple(KernelTime(name, count / steps, ns / steps) for name, (count, ns) in kernels),
    )


def _together(uses: Sequence[Judged], phase: Phase, place: Place) -> OperatorTime:
    known = [one for one in uses if one.attainable_ns is not None]
    return OperatorTime(
        "",
        "other",
        "",
        calls_of(uses),
        time_of(uses),
        sum(one.work.flops * one.calls for one in uses),
        sum((one.work.bytes or 0.0) * one.calls for one in known),
        sum(one.attainable_ns or 0.0 for one in known),
        None,
        time_of(known),
        phase,
        place.module,
        place.line,
    )


def kernel_works(judged: Sequence[Judged]) -> list[KernelWork]:
    """Kernels by their time, over all operators that launch them."""
    parts: defaultdict[str, list[tuple[float, Judged]]] = defaultdict(list)
    for one in judged:
        for name, (_, spent) in one.use.kernels.items():
            parts[name].append((spent / one.use.ns if one.use.ns else 0.0, one))
    found = []
    for name, own in parts.items():
        most = max(own, key=lambda part: part[0] * part[1].ns)[1]
        ns = known_ns = flops = moved = attainable = 0.0
        for share, one in own:
            ns += share * one.ns
            if one.attainable_ns is not None:
                known_ns += share * one.ns
                flops += share * one.work.flops * one.calls
                moved += share * (one.work.bytes or 0.0) * one.calls
                attainable += share * one.attainable_ns
        found.append(KernelWork(name, shown_name(most.use), ns, known_ns, flops, moved, attainable, most.cause))
    return sorted(found, key=lambda one: -one.ns)[:_KERNELS_OF_ALL]
