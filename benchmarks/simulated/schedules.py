"""The order of a step's work in each parallelism: DDP, FSDP2, tensor and expert parallel, a pipeline by 1F1B."""

from __future__ import annotations

from generated_run import Collective, Compute, Join

from benchmarks.simulated.spec import Kind
from benchmarks.simulated.step import Ops, Step


class Ddp(Step):
    """Gradients are all-reduced in buckets while backward runs, of the last of `accumulate` micro-batches."""

    def passes(self) -> Ops:
        yield from self.input()
        spec = self.spec
        buckets = 1 if spec.of("one_bucket") else min(spec.buckets, spec.layers)
        parts = next((int(t.size) for t in spec.of("tiny_buckets")), 1)
        for batch in range(spec.accumulate):
            if batch:
                yield from (op for layer in range(spec.layers)[::-1] for op in self.layer("backward", layer))
                yield from self.input()
            for layer in range(spec.layers):
                yield from self.kernels("forward", f"forward.{layer}")
                yield from self.beside(layer) if not batch else ()
        sizes = [spec.layers // buckets + (bucket < spec.layers % buckets) for bucket in range(buckets)]
        layer, sent = spec.layers, []
        for bucket, own in enumerate(sizes):
            for _ in range(own):
                layer -= 1
                yield from self.layer("backward", layer)
            pieces = parts * own if parts > 1 else 1
            for piece in range(pieces):
                sent.append(f"bucket.{bucket}.{piece}")
                yield Collective("allreduce", "world", own * spec.elements // pieces, sent[-1],
                                 inside="torch::autograd::AccumulateGrad")  # fmt: skip
        yield from (Join(label) for label in sent)


class Fsdp2(Step):
    """Parameters are gathered a layer ahead on a stream of their own, gradients scattered on another."""

    def passes(self) -> Ops:
        yield from self.input()
        spec = self.spec

        def gather(way: str, layer: int) -> Collective:
            return Collective("_allgather_base", "world", spec.elements, f"{way}.gather.{layer}", "gather",
                              "BFloat16")  # fmt: skip

        last = []
        for way, order in (("forward", range(spec.layers)), ("backward", range(spec.layers)[::-1])):
            for at, layer in enumerate(order):
                if at == 0:
                    yield gather(way, layer)
                if at + 1 < len(order):
                    yield gather(way, order[at + 1])
                yield Join(f"{way}.gather.{layer}")
                yield Compute("split_with_sizes_copy", 4.0, f"{way}.copy_out|64", "fsdp::split_with_sizes_copy")
                yield from self.layer(way, layer)
                if way == "backward":
                    yield Compute("chunk_cat", 4.0, "backward.copy_in|64", "fsdp::chunk_cat")
                    last.append(f"backward.scatter.{layer}")
                    yield Collective("_reduce_scatter_base", "world", spec.elements, last[-1], "scatter")
        yield from (Join(label) for label in last)


class TensorParallel(Step):
    """Each half of a layer ends in an all-reduce of neighbours; gradients are all-reduced across them."""

    def passes(self) -> Ops:
        yield from self.input()
        spec = self.spec
        sent = []
        for way, order in (("forward", range(spec.layers)), ("backward", range(spec.layers)[::-1])):
            for layer in order:
                half = len(spec.kernels) // 2
                for part, kernels in enumerate((spec.kernels[:half], spec.kernels[half:])):
                    yield from self.kernels(way, f"{way}.{layer}", kernels=kernels)
                    label = f"{way}.tp.{layer}.{part}"
                    inside = "AllReduceBackward" if way == "backward" else ""
                    yield Collective("allreduce", "tp", spec.elements // 8, label, "tp", "BFloat16", inside=inside)
                    yield Join(label)
                if way == "forward":
                    yield from self.beside(layer)
                elif spec.world > spec.degree:
                    sent.append(f"backward.grad.{layer}")
                    yield Collective("allreduce", "dp", spec.elements, sent[-1], "dp")
        yield from (Join(label) for label in sent)


class ExpertParallel(Step):
    """Tokens go to experts and come back in each layer; the rest is data parallel."""

    def passes(self) -> Ops:
        yield from self.input()
        spec = self.spec
        sent = []
        half = len(spec.kernels) // 2
        # An exchange takes as long as the rank that moves most.
        most = max(ExpertParallel(spec, rank, self.step).experts for rank in range(spec.world))
        tokens = int(spec.elements // 8 * most)
        for way, order in (("forward", range(spec.layers)), ("backward", range(spec.layers)[::-1])):
            for layer in order:
                yield from self.kernels(way, f"{way}.{layer}", kernels=spec.kernels[:half])
                for part in ("dispatch", "combine"):
                    label = f"{way}.{part}.{layer}"
                    inside = "AllToAllBackward" if way == "backward" else ""
                    yield Collective("all_to_allv", "ep", tokens, label, "ep", "BFloat16", inside=inside)
                    yield Join(label)
                    if part == "dispatch":
                        yield from self.kernels(way, f"{way}.experts.{layer}", share=self.experts,
                                              kernels=spec.kernels[half:])  # fmt: skip
                if way == "forward":
                    yield from self.beside(layer)
                else:
                    sent.append(f"backward.grad.{layer}")
                    yield Collective("allreduce", "world", spec.elements, sent[-1], "dp")
        yield from (Join(label) for label in sent)


class Pipeline(Step):
    """1F1B: each stage runs as many micro-batches ahead as there are stages behind it."""

    def passes(self) -> Ops:
        spec, stage = self.spec, self.spec.stage(self.rank)
        if stage == 0:
            yield from self.input()
        else:
            yield from self.pauses("start")
        many, ahead = spec.micro_batches, min(spec.degree - 1 - stage, spec.micro_batches)
        yield from (op for batch in range(ahead) for op in self._micro("forward", batch))
        for batch in range(many):
            if batch + ahead < many:
                yield from self._micro("forward", batch + ahead)
            yield from self._micro("backward", batch)
        yield from (Join(f"grad.{layer}") for layer in range(spec.layers))

    def _micro(self, way: str, batch: int) -> Ops:
        spec = self.spec
        stage, last = self.spec.stage(self.rank), self.spec.degree - 1
        before, behind = (stage > 0, stage < last) if way == "forward" else (stage < last, stage > 0)
        to = 1 if way == "forward" else -1
        inside = "SendBackward" if way == "backward" else ""
        activations = max(spec.elements // 16, 1 << 12)
        if before:
            label = f"{way}.recv.{batch}"
            yield Collective("recv", "pp", activations, label, f"pp recv {way}", "BFloat16", to=-to, inside=inside)
            yield Join(label)
        for layer in range(spec.layers) if way == "forward" else range(spec.layers)[::-1]:
            if batch == 0 and way == "forward":
                yield from self.layer(way, layer)
            else:
                yield from self.kernels(way, f"{way}.{layer}")
            if way == "backward" and batch == spec.micro_batches - 1 and spec.world > spec.degree:
                yield Collective("allreduce", "dp", spec.elements, f"grad.{layer}", "dp", inside="Hook")
        if behind:
            label = f"{way}.send.{batch}"
            yield Collective("send", "pp", activations, label, f"pp send {way}", "BFloat16", to=to, inside=inside)


BY_KIND: dict[Kind, type[Step]] = {
    "ddp": Ddp,
    "fsdp2": Fsdp2,
    "tp": TensorParallel,
    "ep": ExpertParallel,
    "pp": Pipeline,
}
