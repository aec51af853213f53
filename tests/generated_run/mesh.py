"""Trainings on a mesh: data × tensor × pipeline parallel ranks, with experts over some of the replicas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .builders import Size
from .program import Collective, Compute, Groups, HostSync, HostWork, Join, LoadInput, Memcpy, Op, Program

SIZE = Size()
_BACKWARD = "autograd::engine::evaluate_function: {}Backward0"


@dataclass(frozen=True)
class Mesh:
    """How many ranks share each kind of work; tensor parallel ranks are neighbours, pipeline stages lie far apart.

    `experts` of the replicas exchange tokens, so it divides `data`. `named`: the groups have names, as those of a
    device mesh; else torch calls them all alike, and only what they do tells what they are for.
    """

    data: int = 2
    tensor: int = 1
    pipeline: int = 1
    experts: int = 1
    layers: int = 2  # of a stage
    micro_batches: int = 4
    named: bool = True

    @property
    def world(self) -> int:
        """All ranks."""
        return self.data * self.tensor * self.pipeline

    def program(self, steps: int = 3, size: Size = SIZE) -> Program:
        """GPipe over the stages; gradients are all-reduced while the last micro-batch's backward pass runs."""
        near, far = (size.bandwidth_gbs, size.latency_us), (size.far_bandwidth_gbs, size.latency_us)
        groups = [
            Groups("tp", self._name("tp"), self.tensor, 1, *near),
            Groups("ep", self._name("ep"), self.experts, self.tensor, *near),
            Groups("dp", self._name("dp"), self.data, self.tensor, *far),
            Groups("pp", self._name("pp"), self.pipeline, self.data * self.tensor, *far),
        ]
        stages = tuple(tuple(self._stage(stage, size)) for stage in range(self.pipeline))
        return Program(
            name="mesh",
            groups=tuple(groups),
            steps=((),) * (steps + 1),
            stages=stages,
            staged="pp",
            launch_us=size.launch_us,
            queue=1 << 20,  # the host waits for the loss at the end of each step
            jitter=size.jitter,
            end_jitter_us=size.end_jitter_us,
        )

    def _name(self, key: str) -> str:
        return f"mesh_{key}" if self.named else "undefined"

    def _stage(self, stage: int, size: Size) -> Iterator[Op]:
        first, last = stage == 0, stage == self.pipeline - 1
        if first:
            yield from (LoadInput(size.input_us), Memcpy(size.input_bytes, label="input"))
        for batch in range(self.micro_batches):
            yield from self._passed("recv", -1, "F", batch, size) if not first else ()
            for layer in range(self.layers):
                yield from self._layer("F", f"{batch}.{layer}", size, "")
            yield Compute("copy_kernel", 10.0, f"handover.F.{batch}")
            yield from self._passed("send", 1, "F", batch, size) if not last else ()
        for batch in range(self.micro_batches):
            yield from self._passed("recv", 1, "B", batch, size) if not last else ()
            for layer in reversed(range(self.layers)):
                yield from self._layer("B", f"{batch}.{layer}", size, _BACKWARD)
                if batch == self.micro_batches - 1:
                    yield Compute("wgrad_kernel", size.kernel_us, f"gradients.{layer}", _BACKWARD.format("Mm"))
                    yield Collective(
                        "allreduce", "dp", size.elements, f"dp.{layer}", "dp", inside=_BACKWARD.format("Hook")
                    )
            yield Compute("copy_kernel", 10.0, f"handover.B.{batch}", _BACKWARD.format("Copy"))
            yield from self._passed("send", -1, "B", batch, size) if not first else ()
        yield from (Join(f"dp.{layer}") for layer in range(self.layers))
        yield HostWork("Optimizer.step#AdamW.step", 30.0)
        yield Compute("multi_tensor_apply_kernel", size.kernel_us, "optimizer", "aten::_fused_adamw_")
        yield HostSync("compute")

    def _layer(self, way: str, at: str, size: Size, inside: str) -> Iterator[Op]:
        """Attention and its all-reduce, then experts between two exchanges of tokens; backward takes twice as long."""
        us = size.kernel_us * (1 if way == "F" else 2)
        own = inside.format("Mm") or "aten::mm"
        around = inside.format("AllReduce") if inside else ""
        yield Compute("nvjet_tst_128x256", us, f"attention.{way}.{at}", own)
        yield Compute("softmax_kernel", us, f"attention.{way}.{at}", inside.format("Softmax") or "aten::softmax")
        if self.tensor > 1:
            label = f"tp.{way}.{at}"
            yield Collective("allreduce", "tp", size.elements // 4, label, "tp", "BFloat16", inside=around)
            yield Join(label)
        for part in ("dispatch", "combine") if self.experts > 1 else ():
            label = f"{part}.{way}.{at}"
            yield Collective("all_to_allv", "ep", size.elements // 4, label, "ep", "BFloat16", inside=around)
            yield Join(label)
            if part == "dispatch":
                yield Compute("grouped_gemm_kernel", us, f"experts.{way}.{at}", own)

    def _passed(self, op: str, to: int, way: str, batch: int, size: Size) -> Iterator[Op]:
        label = f"{op}.{way}.{batch}"
        inside = _BACKWARD.format("Send") if way == "B" else ""
        stream = f"pp {op} {way}"
        yield Collective(op, "pp", size.elements // 8, label, stream, "BFloat16", to=to, inside=inside)
        if op == "recv":
            yield Join(label)
