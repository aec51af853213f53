"""One rank in one step: what every parallelism has, loading, a layer's kernels, the optimizer, and troubles."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TypeAlias

from generated_run import Collective, Compute, HostSync, HostWork, Join, LoadInput, Memcpy

from benchmarks.simulated.spec import Kernel, Spec, Trouble

Op: TypeAlias = Compute | Memcpy | Collective | Join | HostWork | LoadInput | HostSync
Ops = Iterator[Op]
EXTRA = "void extra_kernel<float>(float*, int)"
EXTRA_LAUNCHES = 4
FUNCTIONS = ("augment", "log_metrics", "update_ema")  # of the program's own; the first comes before forward


def _slowed(spec: Spec, rank: int, step: int) -> float:
    """How much longer a rank's kernels take for its troubles."""
    factor = 1.0
    for trouble in spec.troubles:
        at = {
            "slow_gpu": trouble.rank == rank, "throttled": trouble.rank == rank,
            "slow_node": trouble.rank // spec.per_host == rank // spec.per_host and rank not in spec.steady,
            "slow_stage": trouble.rank == spec.stage(rank),
        }.get(trouble.kind, False)  # fmt: skip
        factor *= trouble.size if at and trouble.in_step(step) else 1.0
    return factor


class Step:
    """One rank in one step; `step` is its position among the recorded ones, negative for the warm-up."""

    def __init__(self, spec: Spec, rank: int, step: int) -> None:
        self.spec, self.rank, self.step = spec, rank, step
        self.mine = [t for t in spec.troubles if t.rank == rank and t.in_step(step)]
        self.batch, self.experts = self._share("uneven_batch"), self._share("hot_expert")
        chance = Random(f"{spec.seed}/{rank}/{step}")
        self.steady = rank in spec.steady
        uneven = 0.0 if self.steady else spec.uneven
        self.batch *= 1 + uneven * chance.uniform(-1, 1) * (spec.kind not in ("tp", "pp", "ep"))
        self.experts *= 1 + uneven * chance.uniform(-1, 1)
        self.pause = Random(f"{spec.seed}/{rank}/{step}/host")
        self.slow = spec.devices[rank] * chance.uniform(0.995, 1.005)
        if spec.kind == "pp" and spec.shared:
            self.slow *= sum(_slowed(spec, other, step) for other in range(spec.world)) / spec.world
        else:
            self.slow *= _slowed(spec, rank, step)

    def of(self, *kinds: str) -> list[Trouble]:
        return [trouble for trouble in self.mine if trouble.kind in kinds]

    def _share(self, kind: str) -> float:
        """How much of an even share this rank has: a hot expert takes from the others, more samples do not."""
        for trouble in self.spec.troubles:
            if trouble.kind == kind:
                world = self.spec.world
                if self.spec.shared:
                    return 1.0 if kind == "hot_expert" else (world - 1 + trouble.size) / world
                most = min(trouble.size, 0.9 * world) if kind == "hot_expert" else trouble.size
                if trouble.rank == self.rank:
                    return most
                return 1.0 if kind == "uneven_batch" else (world - most) / (world - 1)
        return 1.0

    def ops(self) -> Ops:
        """All of the step."""
        yield from self._function(0)
        yield from self.passes()
        yield from self.pauses("end")
        yield from self._optimizer()
        peers = self.spec.world // self.spec.stages  # who can share it: the ranks of its stage
        for trouble in self.spec.of("evaluation"):
            mine = self.spec.stage(trouble.rank) == self.spec.stage(self.rank) and self.spec.shared
            if not trouble.in_step(self.step) or (trouble.rank != self.rank and not mine):
                continue
            count = max(int(trouble.size * 1e3 / sum(k.us for k in self.spec.kernels)), 1)
            for batch in range(max(count // peers, 1) if self.spec.shared else count):
                yield from self.kernels("forward", f"evaluation.{batch}")
            yield from self._read()
        if self.spec.metric:
            yield Collective("allreduce", "world", 1, "metric", "metric")
            yield Join("metric")
        if (self.spec.sync or self.spec.metric) and not self.spec.no_sync:
            yield from self._read()
        for trouble in self.of("checkpoint"):
            yield HostWork("py:save", trouble.size * 1e3)
        yield from self._function(1)

    def passes(self) -> Ops:
        """Loading, forward and backward, with what ranks exchange: each parallelism has its own."""
        raise NotImplementedError

    def _read(self) -> Ops:
        """.item(): the host waits for all that was launched."""
        yield Memcpy(4, "DtoH", "item")
        yield HostSync("compute")

    def _function(self, late: int) -> Ops:
        for trouble in self.of("late_host"):
            if (trouble.variant > 0) == late:
                yield HostWork(f"py:{FUNCTIONS[trouble.variant]}", trouble.size * 1e3)

    def pauses(self, where: str) -> Ops:
        for trouble in self.of("gc"):
            if ("start", "middle", "end")[trouble.variant] == where:
                yield HostWork("", trouble.size * 1e3)
        for trouble in self.spec.of("gc_by_turns"):
            turn = not self.steady and (self.step + self.rank + trouble.rank) % max(self.spec.world, 3) == 0
            if turn and ("start", "middle", "end")[trouble.variant] == where:
                yield HostWork("", trouble.size * 1e3)

    def input(self) -> Ops:
        spec = self.spec
        late = sum(t.size for t in self.of("late_loader")) + sum(t.size for t in spec.of("slow_loader"))
        yield LoadInput(1.0 if spec.no_input else spec.input_us * self.batch + late * 1e3)
        yield from self.pauses("start")
        size = 4 if spec.no_copy else int(spec.input_bytes * self.batch)
        slow = sum(t.size for t in self.of("slow_copy")) + sum(t.size for t in spec.of("exposed_copy"))
        if slow and not spec.no_copy:
            yield Memcpy(size + int(slow * 20e6), label="pageable")
            yield HostSync("compute")
        else:
            yield Memcpy(size, label="input")

    def kernels(self, way: str, label: str, *, share: float = 1.0, kernels: tuple[Kernel, ...] | None = None) -> Ops:
        """A layer's kernels one way; backward launches twice as many."""
        kernels = self.spec.kernels if kernels is None else kernels
        if not self.spec.no_host and (behind := self.spec.hosts[self.rank] - 1) > 0:
            yield HostWork("", behind * len(kernels) * self.spec.launch_us)
        if not (self.spec.no_host or self.steady) and self.pause.random() < self.spec.hiccups:
            yield HostWork("", 100 * 20 ** self.pause.random())
        share *= self.batch
        for kernel in kernels if way == "forward" else kernels[::-1]:
            blocks = kernel.blocks if kernel.persistent else max(int(kernel.blocks * share), 1)
            where, op = f"{label}|{blocks}", kernel.forward if way == "forward" else kernel.backward
            for _ in range(1 if way == "forward" else 2):
                yield Compute(kernel.name, kernel.us * share * self.slow, where, op)

    def layer(self, way: str, layer: int) -> Ops:
        yield from self.kernels(way, f"{way}.{layer}")
        if way == "forward":
            yield from self.beside(layer)

    def beside(self, layer: int) -> Ops:
        """What a trouble adds behind a layer's forward pass."""
        extra = self.spec.of("extra_kernel") if self.spec.shared else self.of("extra_kernel")
        for trouble in extra if layer == 0 else ():
            kernel, us = self.spec.kernels[0], trouble.size * 1e3 / EXTRA_LAUNCHES
            us /= self.spec.world if self.spec.shared else 1
            name = kernel.name if trouble.variant == 1 else EXTRA
            for _ in range(EXTRA_LAUNCHES):
                yield Compute(name, us, f"forward.extra|{kernel.blocks}", kernel.forward)
        for trouble in () if self.spec.no_sync else self.spec.of("item_sync"):
            times = int(trouble.size)
            for _ in range(times // self.spec.layers + (layer < times % self.spec.layers)):
                yield from self._read()
        if layer == self.spec.layers // 2:
            yield from self.pauses("middle")

    def _optimizer(self) -> Ops:
        us = max(self.spec.elements * self.spec.layers * 16 / 3e6 / 4, 3.0)  # at 3 TB/s
        if self.spec.kind == "fsdp2":
            us = max(us / self.spec.world, 3.0)
        for _ in range(4):
            yield Compute("multi_tensor_apply_kernel<Adam>", us * self.spec.devices[self.rank],
                          "optimizer|320", "aten::_fused_adamw_")  # fmt: skip
